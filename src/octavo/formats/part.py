"""Parts of stored tensors: some of their rows, or blocks of some of their columns, read as far as they are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats.per_channel import channel_format
from octavo.formats.qtensor import DeferredQTensor, QTensor
from octavo.formats.rows import SCHEMES
from octavo.formats.spec import U8, AnyArray, BlockFormat

Span = tuple[int, int]
"""Where a part of an axis begins and ends."""
Cut = tuple[Span, ...]
"""Parts of an axis, in the order in which they follow each other in what is made of them."""

_MULTIPLES = {scheme.format: scheme.multiple for scheme in SCHEMES.values()}


def size_of(cut: Cut) -> int:
    """Values of an axis that a cut takes."""
    return sum(stop - start for start, stop in cut)


def places(parts: Sequence[Cut], inner: int = 1) -> Iterator[tuple[int, slice, slice]]:
    """Where pieces of parts, laid end to end, lie in the whole axis: number of the part, in the whole, in the part.

    inner  values of a place
    """
    for number, cut in enumerate(parts):
        at = 0
        for start, stop in cut:
            width = (stop - start) * inner
            yield number, slice(start * inner, stop * inner), slice(at, at + width)
            at += width


def column_multiple(fmt: BlockFormat) -> int:
    """What columns of a format's rows can be cut at: multiples of a block, or of what a row with one scale holds."""
    return _MULTIPLES[fmt.name] if fmt.per_row else fmt.block


class TensorPart(DeferredQTensor):
    """Some rows of a tensor [N, K] or [E, N, K], of these some columns, of some experts; None takes all of an axis.

    Raises QuantFormatError for columns that are not whole blocks.
    """

    def __init__(
        self, source: QTensor, rows: Cut | None = None, columns: Cut | None = None, experts: Cut | None = None
    ) -> None:
        *outer, n, k = source.shape
        spans = {"_source": source, "_columns": columns, "_rows": rows or ((0, n),), "_experts": experts}
        for field, value in spans.items():
            object.__setattr__(self, field, value)
        fmt = source.format if columns is None else _cut_format(source, columns)
        if outer:
            object.__setattr__(self, "_experts", experts or ((0, outer[0]),))
            outer = [size_of(self._experts)]  # type: ignore[attr-defined]
        width = k if columns is None else size_of(columns)
        shape = (*outer, size_of(rows) if rows else n, width)
        super().__init__(fmt, shape, self._whole, source.name)

    @property
    def cut(self) -> tuple[Cut | None, ...]:
        """Rows, columns and experts of the source that it takes."""
        return self._rows, self._columns, self._experts  # type: ignore[attr-defined]

    def _whole(self) -> QTensor:
        data = self.rows(slice(0, prod(self.shape[:-1])))
        return QTensor(self.format, self.shape, data.reshape(*self.shape[:-1], -1), self.name)

    @cached_property
    def _runs(self) -> list[Span]:
        """Rows of the source, counted through all its axes but the last, that lie side by side."""
        rows: Cut = self._rows  # type: ignore[attr-defined]
        experts: Cut | None = self._experts  # type: ignore[attr-defined]
        n = self._source.shape[-2]  # type: ignore[attr-defined]
        firsts = [0] if experts is None else [n * e for start, stop in experts for e in range(start, stop)]
        return [(first + start, first + stop) for first in firsts for start, stop in rows]

    def stored(self) -> QTensor:
        source: QTensor = self._source  # type: ignore[attr-defined]
        return self if (found := source.in_parts()) is source else TensorPart(found, *self.cut)

    def blocks(self, part: slice) -> U8:
        return self.data.reshape(-1, self.format.block_bytes)[part]

    def rows(self, part: slice) -> U8:
        found = [self._read(start, stop) for start, stop in _within(self._runs, part.start, part.stop)]
        return np.concatenate(found) if len(found) != 1 else found[0]

    def take(self, rows: AnyArray) -> U8:
        found = [self.rows(slice(row, row + 1)) for row in map(int, rows)]
        return np.concatenate(found) if found else np.empty((0, self.format.row_bytes(self.shape[-1])), np.uint8)

    def _read(self, start: int, stop: int) -> U8:
        source: QTensor = self._source  # type: ignore[attr-defined]
        columns: Cut | None = self._columns  # type: ignore[attr-defined]
        if columns is None:
            return source.rows(slice(start, stop))
        if source.format.per_row:
            return _cut_rows(source.format, source.rows(slice(start, stop)), columns)
        return source.columns(slice(start, stop), columns)


class Stack(DeferredQTensor):
    """Matrices [N, K] of one format, stacked to [E, N, K], of which parts are read without the rest."""

    def __init__(self, matrices: Sequence[QTensor], name: str) -> None:
        first = matrices[0]
        object.__setattr__(self, "_matrices", tuple(matrices))
        super().__init__(first.format, (len(matrices), *first.shape), self._whole, name)

    def _whole(self) -> QTensor:
        data = self.rows(slice(0, self.shape[0] * self.shape[1]))
        return QTensor(self.format, self.shape, data.reshape(*self.shape[:2], -1), self.name)

    def stored(self) -> QTensor:
        return self

    def blocks(self, part: slice) -> U8:
        return self.data.reshape(-1, self.format.block_bytes)[part]

    def rows(self, part: slice) -> U8:
        return np.concatenate([matrix.rows(rows) for matrix, rows in self._of(part)])

    def columns(self, rows: slice, spans: Sequence[Span]) -> U8:
        return np.concatenate([matrix.columns(here, spans) for matrix, here in self._of(rows)])

    def _of(self, rows: slice) -> Iterator[tuple[QTensor, slice]]:
        """The matrices that rows, counted through all of them, are of, and which of theirs."""
        n, matrices = self.shape[1], self._matrices  # type: ignore[attr-defined]
        for i in range(rows.start // n, -(-rows.stop // n)):
            yield matrices[i], slice(max(rows.start - i * n, 0), min(rows.stop - i * n, n))


def _cut_format(source: QTensor, columns: Cut) -> BlockFormat:
    """The format of a part's rows. Raises QuantFormatError for columns that are not whole blocks."""
    fmt = source.format
    multiple = column_multiple(fmt)
    if any(place % multiple for span in columns for place in span):
        raise QuantFormatError(
            f"tensor {source.name!r}: columns {columns} of {fmt.name} (allowed: multiples of {multiple})"
        )
    return channel_format(fmt.name, size_of(columns)) if fmt.per_row else fmt


def _within(runs: Sequence[Span], start: int, stop: int) -> Iterator[Span]:
    """The parts of runs, laid end to end, that lie between two places."""
    at = 0
    for first, last in runs:
        low, high = max(start, at), min(stop, at + last - first)
        if low < high:
            yield first + low - at, first + high - at
        at += last - first


def _cut_rows(fmt: BlockFormat, rows: U8, columns: Cut) -> U8:
    """The columns of rows whose block is the row: a scale for all of it stays, of other fields the part is taken."""
    k, at, found = fmt.block, 0, list[U8]()
    for field in fmt.fields:
        values = rows[:, at : at + field.nbytes]
        at += field.nbytes
        if field.count > 1 or k == 1:
            spans = [(a * field.count // k, b * field.count // k) for a, b in columns]
            size = field.dtype.itemsize
            found += [values[:, a * size : b * size] for a, b in spans]
        else:
            found.append(values)
    return np.concatenate(found, axis=1)
