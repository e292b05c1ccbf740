"""Weights on the device: packed planes, or plain floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.backends.gpu.launch.arguments import PackedWeight
from octavo.backends.gpu.weights.layout import PlaneLayout, padded, row_layout
from octavo.backends.gpu.weights.pack import Packed
from octavo.formats.array_like import contiguous

if TYPE_CHECKING:
    import torch

PLANES = ("codes8", "codes4", "codes2", "codes1", "scale", "minimum", "small", "rest", "factors")


@dataclass(frozen=True, eq=False)
class QuantWeight:
    """Quantized weights [experts, n, k] in a PlaneLayout; `parts` are their planes, an expert's rows after another's,
    and "factors" [n, 1] of rows where there are these.

    halves  float16 scales of groups, int32 pairs of them, once a product has asked for them, see `f16_scales`
    """

    layout: PlaneLayout
    experts: int
    n: int
    k: int
    parts: dict[str, torch.Tensor]
    halves: list[torch.Tensor] = field(default_factory=list)

    @property
    def kp(self) -> int:
        return padded(self.k)

    def planes(self, codes: torch.dtype | None = None) -> PackedWeight:
        """As kernels take it; planes of codes of type `codes`, int32 unless it is given."""
        named = {name: self.parts.get(name) for name in PLANES}
        if codes is not None:
            of_codes = {name: p for name, p in named.items() if name.startswith("codes") and p is not None}
            named |= {name: p.view(codes) for name, p in of_codes.items()}
        layout = row_layout(self.layout, self.kp)
        return PackedWeight(**named, table=table_words(self.layout), layout=layout)

    @property
    def nbytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.parts.values())


def joined(weights: Sequence[QuantWeight]) -> QuantWeight:
    """Weights of one layout and one k as one, their rows one after the other; of experts, those of each. They become
    views of its planes, so that nothing is kept twice."""
    import torch

    first, row, n = weights[0], 0, sum(w.n for w in weights)
    parts = {
        name: torch.cat([w.parts[name].view(w.experts, w.n, -1) for w in weights], 1) for name in first.parts
    }
    for w in weights:
        w.parts.update({name: part[:, row : row + w.n] for name, part in parts.items()})
        row += w.n
    whole = {name: part.flatten(0, 1) for name, part in parts.items()}
    if first.experts == 1:
        for w in weights:
            w.parts.update({name: part[0] for name, part in w.parts.items()})
    return QuantWeight(first.layout, first.experts, n, first.k, whole)


@dataclass(eq=False)
class FloatWeight:
    """Float weights [experts, n, k] as f32, f16 or bf16, contiguous."""

    experts: int
    n: int
    k: int
    data: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.data.numel() * self.data.element_size()


def joined_floats(weights: Sequence[FloatWeight]) -> FloatWeight:
    """As `joined`, of floats of one type."""
    import torch

    data, row = torch.cat([w.data for w in weights], 1), 0
    for w in weights:
        w.data = data[:, row : row + w.n]
        row += w.n
    return FloatWeight(weights[0].experts, row, weights[0].k, data)


def table_words(layout: PlaneLayout) -> tuple[int, int, int, int] | None:
    """The 16 signed bytes of a table as four int32."""
    if layout.table is None:
        return None
    a, b, c, d = np.resize(np.array(layout.table, np.int8), 16).view(np.int32).tolist()
    return a, b, c, d


def kernel_views(packed: Packed) -> dict[str, np.ndarray[Any, Any]]:
    """The parts with the types that kernels read them as: pairs of scales as one integer."""
    parts = packed.arrays()
    n = len(next(iter(parts.values())))
    out: dict[str, np.ndarray[Any, Any]] = {}
    pair_types = {2: np.int32, 1: np.int16}
    for name, part in parts.items():
        whole = contiguous(part)
        if name.startswith("codes"):
            whole = whole.view(np.int32)
        elif whole.ndim == 3 and whole.shape[2] % 2 == 0 and whole.dtype.itemsize in pair_types:
            whole = whole.reshape(n, -1).view(pair_types[whole.dtype.itemsize])
        elif name in ("rest", "small"):
            whole = whole.view(np.int8)
        out[name] = whole.reshape(n, -1)
    return out
