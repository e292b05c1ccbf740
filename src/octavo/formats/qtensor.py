"""QTensor: a tensor as it is stored, a format, a shape and packed bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat


@dataclass(frozen=True, eq=False)
class QTensor:
    """A tensor in a stored format.

    shape  NumPy order, the last axis contiguous in memory: a matrix is [N, K] (N outputs, K inputs), experts [E, N, K]
    data   uint8 [*shape[:-1], bytes of a row]

    Raises QuantFormatError where a row is not whole blocks or the bytes do not fit the shape.
    """

    format: BlockFormat
    shape: tuple[int, ...]
    data: U8
    name: str = ""

    def __post_init__(self) -> None:
        label = f"tensor {self.name!r}" if self.name else "tensor"
        if not self.shape:
            raise QuantFormatError(f"{label}: a tensor has at least one dimension")
        if self.shape[-1] % self.format.block:
            raise QuantFormatError(
                f"{label}: a row of {self.shape[-1]} values is not a multiple of {self.format.name} blocks"
                f" (allowed: multiples of {self.format.block})"
            )
        expected = (*self.shape[:-1], self.format.row_bytes(self.shape[-1]))
        if self.data.dtype != np.uint8 or self.data.shape != expected:
            raise QuantFormatError(
                f"{label}: packed data is {self.data.dtype} {self.data.shape}, but {self.format.name}"
                f" of shape {self.shape} needs uint8 {expected}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the packed data."""
        return self.data.nbytes

    @property
    def size(self) -> int:
        """Values in the tensor."""
        return int(np.prod(self.shape, dtype=np.int64))

    def stored(self) -> QTensor:
        """This tensor where taking one part after another is cheap: what is made when asked for is made now."""
        return self

    def in_parts(self) -> QTensor:
        """This tensor where taking a small part of it is cheap."""
        return self.stored()

    def blocks(self, part: slice) -> U8:
        """Blocks `part.start` to `part.stop`, counted through the whole tensor: uint8 [blocks, bytes of a block]."""
        return self.data.reshape(-1, self.format.block_bytes)[part]

    def rows(self, part: slice) -> U8:
        """Rows `part.start` to `part.stop`, counted through all axes but the last: uint8 [rows, bytes of a row]."""
        blocks = self.shape[-1] // self.format.block
        return self.blocks(slice(part.start * blocks, part.stop * blocks)).reshape(part.stop - part.start, -1)

    def fill(self, out: memoryview, part: slice) -> None:
        """Fill `out` with the packed bytes of rows, counted as `rows` does."""
        np.frombuffer(out, np.uint8)[:] = self.rows(part).reshape(-1)

    def columns(self, rows: slice, spans: Sequence[tuple[int, int]]) -> U8:
        """Of rows, as `rows` counts them, the blocks of some columns, which are whole blocks: uint8 [rows, bytes]."""
        found, (block, size) = self.rows(rows), (self.format.block, self.format.block_bytes)
        return np.concatenate([found[:, a // block * size : b // block * size] for a, b in spans], axis=1)

    def take(self, rows: AnyArray) -> U8:
        """The rows of a matrix with these numbers: uint8 [len(rows), bytes of a row]."""
        taken: U8 = self.data[rows]
        return taken

    def __repr__(self) -> str:
        return f"QTensor({self.format.name}, {list(self.shape)}{', ' + self.name if self.name else ''})"


class DeferredQTensor(QTensor):
    """A tensor that holds no bytes: `data` reads them whenever it is asked for, so who needs them twice keeps them.

    parts  gives a tensor like it, parts of which are read without the rest
    """

    def __init__(
        self, format: BlockFormat, shape: tuple[int, ...], load: Callable[[], QTensor], name: str = "",
        parts: Callable[[], QTensor] | None = None,
    ) -> None:
        for field, value in (("format", format), ("shape", shape), ("name", name), ("_load", load), ("_parts", parts)):
            object.__setattr__(self, field, value)

    def in_parts(self) -> QTensor:
        """The tensor as some of it is read best: without the rest if that can be, or as `stored`."""
        parts: Callable[[], QTensor] | None = self._parts  # type: ignore[attr-defined]
        return self.stored() if parts is None else parts()

    def stored(self) -> QTensor:
        return QTensor(self.format, self.shape, self.data, self.name)

    def __reduce__(self) -> tuple[type[QTensor], tuple[BlockFormat, tuple[int, ...], U8, str]]:
        return QTensor, (self.format, self.shape, self.data, self.name)

    @property
    def data(self) -> U8:
        loaded: QTensor = self._load()  # type: ignore[attr-defined]
        return QTensor(self.format, self.shape, loaded.data, self.name).data  # checked to be what was promised

    @property
    def nbytes(self) -> int:
        return prod(self.shape[:-1]) * self.format.row_bytes(self.shape[-1])


class TimesQTensor(DeferredQTensor):
    """A matrix [N, K] each of whose rows is multiplied by one of `factors`, float32 [N], which `data` does not have."""

    factors: F32

    def __init__(self, rows: QTensor, factors: F32) -> None:
        super().__init__(rows.format, rows.shape, lambda: rows, rows.name, rows.in_parts)
        object.__setattr__(self, "factors", factors)


class PlacedQTensor(DeferredQTensor):
    """Float32 values that lie on a device: `placed` is a tensor of torch of this shape, which `data` copies."""

    placed: Any

    def __init__(self, format: BlockFormat, placed: Any, name: str = "") -> None:
        shape = tuple(placed.shape)

        def load() -> QTensor:
            return QTensor(format, shape, placed.cpu().numpy().view(np.uint8), name)

        super().__init__(format, shape, load, name)
        object.__setattr__(self, "placed", placed)
