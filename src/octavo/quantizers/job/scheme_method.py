"""What a method makes of a model before its checkpoint is written: a file to read, and weights in their scheme."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from octavo.formats.spec import F32
from octavo.huggingface.scheme_weight import Coded
from octavo.huggingface.schemes import CheckpointScheme
from octavo.io.gguf import GGUFFile
from octavo.quantizers.job.method_run import MethodRun
from octavo.quantizers.job.undersampled import UndersampledExpert
from octavo.quantizers.statistics.outliers import OutlierChannels


@dataclass(frozen=True, eq=False)
class SchemeWeight:
    """A linear layer's weight in a scheme.

    coded   codes and scales of its rows [N, K], in GGUF's order; of experts' those of each
    error   the root of sum |y' - y|^2 / sum |y|^2 of the outputs y over the calibration text
    before  the same with the weight rounded to nearest
    how     what was chosen for it, as in "qronos"; for experts what was chosen for any
    tried   the error of each way that was tried; for experts of each that was tried for all
    channels  of its input
    starved  experts that met too few tokens for the ways that were to be tried
    """

    coded: Sequence[Coded]
    error: float
    before: float
    how: str
    tried: Mapping[str, float] = field(default_factory=dict)
    channels: OutlierChannels | None = None
    starved: tuple[UndersampledExpert, ...] = ()


@dataclass(frozen=True)
class FoldScales:
    """Channels whose scales a method chose.

    fold     their name, as in "blk.0.attn_norm"
    how      the way in which scales were made, as in "awq"; "ones" where none were better
    setting  its parameter: an exponent or a threshold; None for ones
    before, after  mean squares of what rounded products err; where there were several ways, over tokens apart
    least, largest  of the scales
    readers  weights that read these channels
    channels  of what they read, before they were scaled
    """

    fold: str
    how: str
    setting: float | None
    before: float
    after: float
    least: float = 1.0
    largest: float = 1.0
    readers: tuple[str, ...] = ()
    channels: OutlierChannels | None = None


@dataclass(frozen=True)
class StaticInput:
    """The static scale of what some weights are multiplied with, if it is used.

    names    of the weights
    scale    value = code * scale
    largest  magnitude over the calibration text
    cut_off  of `values` over that text, those beyond the largest code
    before, after  the root of the mean of |y' - y|^2 / |y|^2 of products y of tokens, with the largest scale that was
             tried, and with this one
    dynamic  the same with a scale for each token
    used     whether the checkpoint has the scale; else each token gets its own
    scheme   of the weights, by its name: that of the checkpoint, or another one whose codes lose less here
    """

    names: tuple[str, ...]
    scale: float
    largest: float
    cut_off: int
    values: int
    before: float
    after: float
    dynamic: float
    used: bool
    scheme: str


@dataclass(frozen=True, eq=False)
class SchemeResult:
    """A model that a method has prepared.

    file    the model as it is to be written, folds and rotations in its weights
    made    weights in their scheme, by GGUF's names; others are rounded to nearest
    scaled  channels whose scales were chosen
    inputs  static scales of activations, of a scheme that has them
    caches  the largest magnitude of each head, float32 [heads], of what caches held, by their names as "blk.0.cache_k"
    end     is to be called when the checkpoint is written, or is not going to be: with the error then, else None
    about   what the run was
    """

    file: GGUFFile
    made: Mapping[str, SchemeWeight] = field(default_factory=dict)
    scaled: Sequence[FoldScales] = ()
    inputs: Sequence[StaticInput] = ()
    caches: Mapping[str, F32] = field(default_factory=dict)
    end: Callable[[BaseException | None], None] = lambda error: None
    about: MethodRun | None = None


class CheckpointMethod(Protocol):
    """What `quantize_checkpoint` asks for weights before anything is written."""

    @property
    def kv(self) -> Literal["int8", "fp8"] | None:
        """The type of caches that the checkpoint has scales for."""
        ...

    @property
    def static(self) -> bool:
        """Whether activations get static scales."""
        ...

    def __call__(self, file: GGUFFile, scheme: CheckpointScheme, work: str) -> SchemeResult:
        """The model prepared. `work` is a folder for what a run that is killed leaves to the next one."""
        ...

    def outline(self, file: GGUFFile, scheme: CheckpointScheme) -> GGUFFile:
        """The model as it would be written but for scales of channels. Raises what a call raises before it runs."""
        ...
