"""Changes of a model's weights that leave what it computes as it is: scales, orders of channels and rotations."""

from octavo.calibrate.fold.channel_orders import clusters, random_order, shuffle
from octavo.calibrate.fold.find import Kind, find_folds
from octavo.calibrate.fold.fold import ChannelFold, FoldPart, apply, reorder, reordered, scaled
from octavo.calibrate.fold.folded_file import ChangedFile, TensorChanges
from octavo.calibrate.fold.rotation import rotate, rotate_possible

__all__ = [
    "ChangedFile",
    "ChannelFold",
    "FoldPart",
    "Kind",
    "TensorChanges",
    "apply",
    "clusters",
    "find_folds",
    "random_order",
    "reorder",
    "reordered",
    "rotate",
    "rotate_possible",
    "scaled",
    "shuffle",
]
