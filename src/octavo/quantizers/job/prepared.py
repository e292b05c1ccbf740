"""What a method makes of a model before its checkpoint is written: a file to read, and weights in their scheme."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from octavo.huggingface.coded import Coded
from octavo.huggingface.schemes import CheckpointScheme
from octavo.io.gguf import GGUFFile


@dataclass(frozen=True, eq=False)
class MadeWeight:
    """A linear layer's weight in a scheme.

    coded   codes and scales of its rows [N, K], in GGUF's order
    error   the root of sum |y' - y|^2 / sum |y|^2 of the outputs y over the calibration text
    before  the same with the weight rounded to nearest
    how     what was chosen for it, as in "qronos"
    """

    coded: Coded
    error: float
    before: float
    how: str


@dataclass(frozen=True)
class Scaled:
    """Channels whose scales a method chose.

    fold     their name, as in "blk.0.attn_norm"
    how      the way in which scales were made, as in "awq"; "ones" where none were better
    setting  its parameter: an exponent or a threshold; None for ones
    before, after  mean squares of what rounded products err; where there were several ways, over tokens apart
    """

    fold: str
    how: str
    setting: float | None
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model that a method has prepared.

    file    the model as it is to be written, folds and rotations in its weights
    made    weights in their scheme, by GGUF's names; others are rounded to nearest
    scaled  channels whose scales were chosen
    """

    file: GGUFFile
    made: Mapping[str, MadeWeight] = field(default_factory=dict)
    scaled: Sequence[Scaled] = ()


Method = Callable[[GGUFFile, CheckpointScheme], Prepared]
"""What `quantize_checkpoint` calls with the model's file before anything is written."""
