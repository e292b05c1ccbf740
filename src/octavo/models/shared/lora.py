"""Adapters: what LoRA adds to a model's weights, W + scale * B A (arXiv:2106.09685), as several of them come to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from octavo.errors import ModelError, NonFiniteError, shown, tensor_label
from octavo.formats import QTensor, by_name, dequantize, quantize_reference
from octavo.formats.spec import F32
from octavo.graph.factors import LowRank
from octavo.io.gguf import LazyTensor
from octavo.models.shared.weights import SHOWN

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Factored(LazyTensor):
    """factor * b [N, r] @ a [r, K], or that of each expert, where code that moves rows and columns wants a tensor."""

    a: LazyTensor
    b: LazyTensor
    factor: float

    @classmethod
    def of(cls, name: str, a: LazyTensor, b: LazyTensor, factor: float) -> Self:
        def load() -> QTensor:
            values = np.float32(factor) * dequantize(b.load()) @ dequantize(a.load())
            return quantize_reference(values, by_name("F32"), name)

        return cls(name, by_name("F32"), (*b.shape[:-1], a.shape[-1]), load, a, b, factor)

    def with_rows(self, change: Callable[[LazyTensor], LazyTensor]) -> Self:
        """The same with what `change` makes of b, whose rows are the matrix' rows."""
        return self.of(self.name, self.a, change(self.b), self.factor)

    def with_columns(self, change: Callable[[LazyTensor], LazyTensor]) -> Self:
        """The same with what `change` makes of a, whose columns are the matrix' columns."""
        return self.of(self.name, change(self.a), self.b, self.factor)

    @property
    def rank(self) -> int:
        return self.a.shape[-2]


@dataclass(frozen=True)
class Adapter:
    """An adapter as its file or folder has it: what is added, by the GGUF name of the weight that it is added to."""

    path: str
    parts: Mapping[str, Factored]

    def require_fitting(self, targets: Mapping[str, Shape], tensors: Iterable[str]) -> None:
        """Raise ModelError unless all parts belong to `targets`, weights of a model that are multiplied with.

        tensors  names of all that the model has
        """
        others = [name for name in self.parts if name not in targets]
        if others:
            has = others[0] in set(tensors)
            problem = "is not a weight that an adapter can change" if has else "is not a tensor of the model"
            more = ", ".join(map(shown, others[1 : SHOWN + 1]))
            rest = f", nor are {len(others) - 1} others: {more}" if more else ""
            raise ModelError(f"{problem}{rest}", file=self.path, field=f"tensor {shown(others[0])}")
        for name, part in self.parts.items():
            if part.shape != targets[name]:
                raise ModelError(
                    f"changes a weight of shape {list(part.shape)}", file=self.path, field=f"tensor {shown(name)}",
                    allowed=f"{list(targets[name])}, as the model's",
                )


def combined(adapters: Sequence[tuple[Adapter, float]]) -> dict[str, LowRank]:
    """What adapters, each times its scale, add together: the rows of all a, and the columns of all scaled b.

    Values keep the type that all have in the files where it holds them exactly, and are F32 otherwise. All are read.
    Raises NonFiniteError for NaN and Inf, and where a scale makes values too large for F32.
    """
    found: dict[str, list[tuple[Factored, F32, F32]]] = {}
    for adapter, scale in adapters:
        for name, part in adapter.parts.items():
            if scale == 0:
                continue
            a, b = (_finite(adapter, tensor) for tensor in (part.a, part.b))
            found.setdefault(name, []).append((part, a, _times(adapter, part, b, scale * part.factor)))
    added = {}
    for name, parts in found.items():
        types = {tensor.format.name for part, _, _ in parts for tensor in (part.a, part.b)}
        stored = types.pop() if len(types) == 1 else "F32"
        a, b = np.concatenate([a for _, a, _ in parts], axis=-2), np.concatenate([b for _, _, b in parts], axis=-1)
        added[name] = LowRank(_kept(a, stored, name), _kept(b, stored, name))
    return added


def _finite(adapter: Adapter, tensor: LazyTensor) -> F32:
    values = dequantize(tensor.load())
    if not np.isfinite(values).all():
        raise NonFiniteError(f"{adapter.path}: {tensor_label(tensor.name)}: NaN or Inf")
    return values


def _times(adapter: Adapter, part: Factored, b: F32, factor: float) -> F32:
    with np.errstate(over="ignore", invalid="ignore"):
        values: F32 = b * np.float32(factor)
    if not np.isfinite(values).all():
        raise NonFiniteError(f"{adapter.path}: {tensor_label(part.b.name)}: times {factor:g} is too large for F32")
    return values


def _kept(values: F32, stored: str, name: str) -> QTensor:
    """Values in the type that they were stored in if that is one of floats and holds them exactly, else in F32."""
    values = np.ascontiguousarray(values)
    if stored in ("F16", "BF16") and np.abs(values).max(initial=0) < np.finfo(np.float16).max:
        kept = quantize_reference(values, by_name(stored), name)
        if np.array_equal(dequantize(kept), values):
            return kept
    return quantize_reference(values, by_name("F32"), name)
