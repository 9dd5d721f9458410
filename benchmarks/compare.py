"""How long a default ``ropewalk compare`` takes: seconds until its first ten steps are done, and in all.

python benchmarks/compare.py          # about five minutes on two cores
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time

from _timing import header, quiet

FIRST, ALL = 15, 360
"""Seconds that are wanted on two cores."""

WATCHED = """
import sys, time
from ropewalk.lab.compare import compare
from ropewalk.lab.settings import Settings
from ropewalk.lab.trial import Progress

class Watch:
    told = False
    def begin(self, specs, over):
        pass
    def tell(self, spec, event):
        if isinstance(event, Progress) and not self.told:
            self.told = True
            print(time.time(), flush=True)

compare(Settings(), sys.argv[1], watcher=Watch())
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(header() + ("" if quiet() else "; others are using the machine"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        start = time.time()
        done = subprocess.run([sys.executable, "-c", WATCHED, f"{folder}/run"], capture_output=True, text=True)
        total = time.time() - start
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return done.returncode
    first = float(done.stdout.split()[0]) - start
    print(f"{first:.0f} s until ten steps are done (wanted: {FIRST}), {total:.0f} s in all (wanted: {ALL})")
    return 1 if first > FIRST or total > ALL else 0


if __name__ == "__main__":
    sys.exit(main())
