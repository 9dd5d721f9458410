"""Golden files and how they are compared are shared with the tests of the systems."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "systems"))
