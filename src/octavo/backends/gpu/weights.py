"""Weights on the device: packed planes, or plain floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.backends.gpu.layout import Layout, padded
from octavo.backends.gpu.pack import Packed

if TYPE_CHECKING:
    import torch

PARTS = ("codes8", "codes4", "codes2", "codes1", "scale", "minimum", "small", "rest")
"""Arguments of every kernel that reads packed weights, in order; four words of a table follow."""


@dataclass(frozen=True, eq=False)
class QuantWeight:
    """Quantized weights [experts, n, k] in a Layout; `parts` are their planes, an expert's rows after another's."""

    layout: Layout
    experts: int
    n: int
    k: int
    parts: dict[str, torch.Tensor]
    constants: dict[str, Any] = field(default_factory=dict)
    """What kernels are specialised on."""

    @property
    def kp(self) -> int:
        return padded(self.k)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """PARTS, those that are not there standing for nothing, and the table."""
        some = next(iter(self.parts.values()))  # of codes: they come first
        return (*(self.parts.get(name, some) for name in PARTS), *table_words(self.layout))

    @property
    def byte_arguments(self) -> tuple[Any, ...]:
        """`arguments` with the planes of codes as int8."""
        import torch

        codes = 4
        return (*(p.view(torch.int8) for p in self.arguments[:codes]), *self.arguments[codes:])

    @property
    def nbytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.parts.values())


def joined(weights: Sequence[QuantWeight]) -> QuantWeight:
    """Weights of one layout and one k as one, their rows one after the other. They become views of its planes, so that
    nothing is kept twice."""
    import torch

    first = weights[0]
    parts = {name: torch.cat([w.parts[name] for w in weights]) for name in first.parts}
    row = 0
    for w in weights:
        w.parts.update({name: part[row : row + w.n] for name, part in parts.items()})
        row += w.n
    return QuantWeight(first.layout, 1, row, first.k, parts, first.constants)


@dataclass(frozen=True, eq=False)
class FloatWeight:
    """Float weights [experts, n, k] as f32, f16 or bf16, contiguous."""

    experts: int
    n: int
    k: int
    data: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.data.numel() * self.data.element_size()


def table_words(layout: Layout) -> tuple[int, int, int, int]:
    """The 16 signed bytes of a table as four int32, zeros without one."""
    if layout.table is None:
        return 0, 0, 0, 0
    a, b, c, d = np.array(layout.table, np.int8).view(np.int32).tolist()
    return a, b, c, d


def constants(layout: Layout, kp: int) -> dict[str, Any]:
    """The constexpr arguments that say what a layout is."""
    return {
        "kp": kp, "BITS": layout.bits, "G": layout.group, "S": layout.super, "KIND": layout.scale,
        "HAS_MIN": layout.has_min, "MIN_BITS": layout.min_bits, "SIGNED": layout.signed,
        "OFFSET": layout.offset, "TABLE": layout.table is not None,
    }  # fmt: skip


def kernel_views(packed: Packed) -> dict[str, np.ndarray[Any, Any]]:
    """The parts with the types that kernels read them as: pairs of scales as one integer."""
    parts = packed.arrays()
    n = len(next(iter(parts.values())))
    out: dict[str, np.ndarray[Any, Any]] = {}
    pair_types = {2: np.int32, 1: np.int16}
    for name, part in parts.items():
        whole = np.ascontiguousarray(part)
        if name.startswith("codes"):
            whole = whole.view(np.int32)
        elif whole.ndim == 3 and whole.shape[2] == 2 and whole.dtype.itemsize in pair_types:
            whole = whole.reshape(n, -1).view(pair_types[whole.dtype.itemsize])
        elif name == "rest":
            whole = whole.view(np.int8)
        out[name] = whole.reshape(n, -1)
    return out
