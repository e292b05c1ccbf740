"""A tensor that stays in its file until its data are asked for."""

from __future__ import annotations

from functools import partial

import numpy as np

from octavo.formats.qtensor import DeferredQTensor, QTensor
from octavo.formats.spec import U8, AnyArray, BlockFormat
from octavo.io.gguf.source import OpenFile


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

    def stored(self) -> QTensor:
        return self

    def blocks(self, part: slice) -> U8:
        size = self.format.block_bytes
        data: U8 = self._part(part.start * size, (part.stop - part.start) * size)  # type: ignore[attr-defined]
        return data.reshape(-1, size)

    def take(self, rows: AnyArray) -> U8:
        taken = [self.rows(slice(row, row + 1)) for row in map(int, rows)]
        return np.concatenate(taken) if taken else np.empty((0, self.format.row_bytes(self.shape[-1])), np.uint8)


def _read(file: OpenFile, offset: int, field: str, start: int, n: int) -> U8:
    return file.array(offset + start, n, field)
