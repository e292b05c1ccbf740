"""How much each weight matters: the divergence that its quantization alone brings about.

A weight is replaced by what it would be after a probing type, the model is run over a few windows, and the divergence
from the model as it was is measured. Divided by the relative squared error that the type makes, it is the weight's
sensitivity; where errors are small the divergence grows in proportion to them, so it serves for other types as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.errors import UsageError
from octavo.evals.scores import compare
from octavo.evals.stats import Estimate, mean
from octavo.evals.windows import Mask, Window, logits, step_sizes, windows
from octavo.formats import QTensor, by_name, dequantize, quantize_reference
from octavo.formats.spec import F32
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.recode import recode
from octavo.runtime import Model

BASE_BYTES = 256 << 20
"""Most memory for the logits of the model as it was; windows beyond it are left out, but for the first."""

PROBE = "Q3_K"
PROBE_ROWS_OF_32 = "Q4_0"
"""Of rows that are not whole blocks of the first."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A weight's effect: the divergence `kl` that an error of `squared_error` (relative, squared, weighted) makes."""

    kl: Estimate
    squared_error: float

    @property
    def slope(self) -> float:
        """Divergence for a squared error of 1."""
        return self.kl.value / self.squared_error if self.squared_error else 0.0


def sensitivities(
    model: Model,
    tokens: Sequence[int],
    names: Iterable[str],
    *,
    imatrix: Imatrix | None = None,
    context: int = 512,
    chunks: int | None = 4,
    scored: Sequence[bool] | Mask | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Sensitivity]:
    """The sensitivity of each weight in `names` of a model whose weights are floats (F32, F16, BF16).

    imatrix           weighs the errors, in quantizing and in measuring them
    context, chunks, scored  as of `perplexity`

    Takes one run of the windows for each weight. Raises UsageError for a weight that the model has not, or that is
    quantized already or whose rows are not blocks of 32, and as `windows` does.
    """
    wanted = list(names)
    _check(model, wanted)
    found = windows(model, tokens, context, chunks, scored)
    before = _base(model, found)
    out: dict[str, Sensitivity] = {}
    for i, name in enumerate(wanted):
        tensor = model.file.tensor(name)
        probe, error = _probed(tensor, imatrix)
        model.engine.load().replace(probe)
        try:
            out[name] = Sensitivity(_divergence(model, found[: len(before)], before), error)
        finally:
            model.engine.load().replace(tensor)
        if progress is not None:
            progress(i + 1, len(wanted))
    return out


def _check(model: Model, names: list[str]) -> None:
    weights = {n.tensor.name: n.tensor for n in model.engine.schedule.graph.leaves("weight")}
    for name in names:
        if name not in weights:
            raise UsageError(f"{model.file.path} computes with no weight {name!r}")
        if not weights[name].format.is_float:
            raise UsageError(f"{name!r} is {weights[name].format.name} (allowed: F32, F16, BF16)")
        if weights[name].shape[-1] % by_name(PROBE_ROWS_OF_32).block:
            raise UsageError(f"rows of {name!r} have {weights[name].shape[-1]} values (allowed: multiples of 32)")


def _base(model: Model, found: list[Window]) -> list[list[F32]]:
    """The model's own logits, window by window and step by step, as far as they fit in memory."""
    kept: list[list[F32]] = []
    nbytes = 0
    for window in found:
        rows = [r for r, _ in logits(model.engine, window, *step_sizes(model.engine))]
        nbytes += sum(r.nbytes for r in rows)
        if kept and nbytes > BASE_BYTES:
            break
        kept.append(rows)
    return kept


def _divergence(model: Model, found: list[Window], before: list[list[F32]]) -> Estimate:
    kl = [
        compare(rows, base, targets).kl
        for window, bases in zip(found, before, strict=True)
        for (rows, targets), base in zip(logits(model.engine, window, *step_sizes(model.engine)), bases, strict=True)
    ]
    return mean(np.concatenate(kl))


def _probed(tensor: QTensor, imatrix: Imatrix | None) -> tuple[QTensor, float]:
    """The tensor after the probing type, in its own format, and its relative squared error."""
    fmt = by_name(PROBE if tensor.shape[-1] % by_name(PROBE).block == 0 else PROBE_ROWS_OF_32)
    importance = None if imatrix is None else imatrix.importance(tensor.name, tensor.shape)
    made = recode(tensor, fmt, importance=importance)
    return quantize_reference(dequantize(made.tensor), tensor.format, tensor.name), made.error**2
