"""``python -m ropewalk``: the command line."""

from ropewalk.cli import main

main()
