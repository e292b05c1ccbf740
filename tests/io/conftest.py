"""The tests of files also use what the fuzz target is made of."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "fuzz"))
