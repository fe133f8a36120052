"""The made-up traces of tests/figures, for the tests of the widgets."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "figures"))
