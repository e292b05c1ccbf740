"""A tensor that stays in its file until its data are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from octavo.formats.qtensor import DeferredQTensor, QTensor
from octavo.formats.spec import U8, AnyArray, BlockFormat
from octavo.io.gguf.source import OpenFile

LONG_ROW, READ_AT_ONCE = 16 << 10, 8 << 20
"""Bytes of a row from which on its parts are read by themselves, and of shorter rows that are read together."""


class FileQTensor(DeferredQTensor):
    """A tensor of a file: `data`, or parts of it, are read whenever they are asked for.

    That raises GGUFError where the file was truncated in the meantime; `field` names the tensor there.
    """

    def __init__(
        self, format: BlockFormat, shape: tuple[int, ...], name: str, file: OpenFile, offset: int, field: str
    ) -> None:
        def whole() -> QTensor:
            row = format.row_bytes(shape[-1])
            data = file.array(offset, int(np.prod(shape[:-1], dtype=np.int64)) * row, field)
            return QTensor(format, shape, data.reshape(*shape[:-1], row), name)

        super().__init__(format, shape, whole, name)
        object.__setattr__(self, "_part", partial(_read, file, offset, field))
        object.__setattr__(self, "_strided", partial(_read_strided, file, offset, field))
        object.__setattr__(self, "_fill", lambda out, start: file.fill(out, offset + start, field))

    def stored(self) -> QTensor:
        return self

    def blocks(self, part: slice) -> U8:
        size = self.format.block_bytes
        data: U8 = self._part(part.start * size, (part.stop - part.start) * size)  # type: ignore[attr-defined]
        return data.reshape(-1, size)

    def fill(self, out: memoryview, part: slice) -> None:
        self._fill(out, part.start * self.format.row_bytes(self.shape[-1]))  # type: ignore[attr-defined]

    def columns(self, rows: slice, spans: Sequence[tuple[int, int]]) -> U8:
        row, block, size = self.format.row_bytes(self.shape[-1]), self.format.block, self.format.block_bytes
        at = [(a // block * size, b // block * size) for a, b in spans]
        data: U8 = self._strided(rows, row, at)  # type: ignore[attr-defined]
        return data

    def take(self, rows: AnyArray) -> U8:
        taken = [self.rows(slice(row, row + 1)) for row in map(int, rows)]
        return np.concatenate(taken) if taken else np.empty((0, self.format.row_bytes(self.shape[-1])), np.uint8)


def _read(file: OpenFile, offset: int, field: str, start: int, n: int) -> U8:
    return file.array(offset + start, n, field)


def _read_strided(
    file: OpenFile, offset: int, field: str, rows: slice, row_bytes: int, spans: Sequence[tuple[int, int]]
) -> U8:
    """Of each row the bytes of some spans; nothing between them is read, unless rows are short."""
    data = np.empty((rows.stop - rows.start, sum(b - a for a, b in spans)), np.uint8)
    if row_bytes < LONG_ROW:
        step = READ_AT_ONCE // row_bytes
        for start in range(rows.start, rows.stop, step):
            stop = min(start + step, rows.stop)
            whole = _read(file, offset, field, start * row_bytes, (stop - start) * row_bytes).reshape(-1, row_bytes)
            np.concatenate([whole[:, a:b] for a, b in spans], 1, out=data[start - rows.start : stop - rows.start])
        return data
    for i, row in enumerate(range(rows.start, rows.stop)):
        into, at = data[i].data, 0
        for a, b in spans:
            file.fill(into[at : at + b - a], offset + row * row_bytes + a, field)
            at += b - a
    return data
