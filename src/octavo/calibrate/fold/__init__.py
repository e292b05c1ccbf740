"""Changes of a model's weights that leave what it computes as it is: scales, orders of channels and rotations.

Comes in: a model. Goes out: folds, channels that can be changed together, or the model's file with changes. Begin with
`find.py`; `rules.py` says what each op lets through.
"""

from octavo.calibrate.fold.find import find_folds, shuffle
from octavo.calibrate.fold.rotation import rotate

__all__ = ["find_folds", "rotate", "shuffle"]
