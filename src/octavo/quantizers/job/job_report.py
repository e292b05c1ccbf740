"""What became of each tensor of a model that was quantized."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from octavo.quantizers.job.method_result import UndersampledExpert
from octavo.quantizers.job.scheme_method import FoldScales, StaticInput


@dataclass(frozen=True)
class TensorRow:
    """What became of a tensor.

    error     relative error (see `Recoded`); None for a tensor that stayed as it was, and after a dry run
    weighted  the error is weighted by importance
    exact     of rows of a checkpoint: each value is the one that the checkpoint has; None of others, and where a dry
              run can't know
    before    of a tensor that a method made: the error that the encoder alone would have left
    how       what a method chose for it, as in "gptq"
    """

    name: str
    shape: tuple[int, ...]
    source_type: str
    type: str
    source_bytes: int
    nbytes: int
    error: float | None = None
    weighted: bool = False
    exact: bool | None = None
    before: float | None = None
    how: str | None = None


@dataclass
class Report:
    """What a quantization did, or a dry run would do: a row for each tensor in file order.

    layout  how the quantized weights of a checkpoint lie there, as in "gptq"; None for a model of other weights
    scaled  channels whose scales a method chose
    inputs  static scales of activations
    starved  experts that met too few tokens for a method to go by
    """

    source: str
    target: str
    preset: str
    dry_run: bool
    layout: str | None = None
    scaled: list[FoldScales] = field(default_factory=list)
    inputs: list[StaticInput] = field(default_factory=list)
    starved: list[UndersampledExpert] = field(default_factory=list)
    rows: list[TensorRow] = field(default_factory=list)

    @property
    def source_bytes(self) -> int:
        """Bytes of the tensors before."""
        return sum(row.source_bytes for row in self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors after."""
        return sum(row.nbytes for row in self.rows)

    @property
    def bits_per_weight(self) -> float:
        """Bits for each value of the tensors after."""
        return 8 * self.nbytes / max(1, sum(prod(row.shape) for row in self.rows))
