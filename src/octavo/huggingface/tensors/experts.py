"""Experts that a checkpoint stacks: each expert's rows, gate and up apart, as GGUF has them [E, N, K]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.formats import BlockFormat, Planes, QTensor, group_format, unpack
from octavo.formats.float8 import float8_format
from octavo.formats.group import group_of
from octavo.formats.rows import fold
from octavo.formats.spec import AnyArray
from octavo.huggingface.layouts.module import packed
from octavo.io.gguf import LazyTensor
from octavo.models.shared.architecture import Columns

Shape = tuple[int, ...]
Part = tuple[BlockFormat, Shape, Callable[[], QTensor]]
"""A tensor's format and shape, and how to load it."""


def stacked(parts: list[LazyTensor]) -> QTensor:
    """Experts [N, K] each as one tensor [E, N, K]."""
    first = parts[0]
    fmt, shape = first.format, (len(parts), *first.shape)
    data = np.empty((*shape[:-1], fmt.row_bytes(shape[-1])), dtype=np.uint8)
    for i, part in enumerate(parts):
        data[i] = part.load().data
    return QTensor(fmt, shape, data)


def in_groups(rows: LazyTensor) -> LazyTensor | None:
    """An expert's rows with a scale each as rows of groups of the same values, which products with experts take.

    Weights of two levels of scales become 8-bit codes. None where no group of 32 or more divides a row.
    """
    n, k = rows.shape
    group = group_of(k, least=32)
    if group is None:
        return None
    fmt = _groups_of(rows.format, group)

    def load() -> QTensor:
        planes = unpack(rows.load())
        return packed(fmt, n, k, lambda part: _in_groups(planes, part, rows.format, fmt))

    return LazyTensor(rows.name, fmt, rows.shape, load)


def _groups_of(fmt: BlockFormat, group: int) -> BlockFormat:
    """The format of groups that holds what rows of `fmt` do."""
    if fmt.number is not None:
        return float8_format(group if group == 128 else 32)
    return group_format(4 if fmt.bits == 4 and not fmt.folds else 8, group, "F32")


def _in_groups(planes: Planes, part: slice, was: BlockFormat, fmt: BlockFormat) -> Planes:
    """Some rows' planes: each group with its row's scale."""
    assert planes.d is not None
    codes, k = planes.q[part], planes.q.shape[1]
    if was.folds:
        assert planes.sc is not None
        values = was.code(codes).reshape(len(codes), k // was.group, was.group)
        fold(values, planes.sc[part])
        codes = (values.reshape(codes.shape) + np.float32(fmt.offset)).astype(np.uint8)
    return Planes(codes, d=np.repeat(planes.d[part], k // fmt.group, axis=1))


def columns_of(columns: Columns, shape: Shape, rows: Shape) -> Columns:
    """How experts of a shape lie; `rows` is the shape that they have as rows."""
    return columns if columns != "either" else "" if shape == rows else "halves"


def half(both: LazyTensor, which: int, columns: Columns) -> Part | None:
    """The gate's part (0) or the up projection's (1); None if it has no two halves.

    The halves are of rows [2 N, K] or [E, 2 N, K]; with `columns`, of columns [E, K, 2 N], or of a bias [E, 2 N].
    Quantized experts have rows in any case.
    """
    by_rows = not columns or not both.format.is_float
    axis = -2 if by_rows else -1
    if not 2 <= len(both.shape) <= 3 or both.shape[axis] % 2:
        return None
    n = both.shape[axis] // 2
    taken = slice(which, None, 2) if columns == "alternate" else slice(which * n, (which + 1) * n)
    if by_rows:
        shape: Shape = (*both.shape[:-2], n, both.shape[-1])
        return both.format, shape, lambda: picked(both.load(), lambda values: values[..., taken, :])
    if len(both.shape) == 2:
        return both.format, (both.shape[0], n), lambda: picked(both.load(), lambda values: values[..., taken])
    shape = both.shape[0], n, both.shape[1]
    return both.format, shape, lambda: picked(both.load(), lambda values: values[..., taken].swapaxes(1, 2))


def apart(tensor: LazyTensor, want: Shape, *, columns: bool) -> tuple[Shape, Callable[[], QTensor]] | None:
    """Experts in one matrix of floats, one after the other, as `want`, [E, N, K]; None where it has no such rows.

    The matrix is [E N, K], with `columns` [E K, N].
    """
    rows, width = (want[2], want[1]) if columns else want[1:]
    if tensor.shape != (want[0] * rows, width) or not tensor.format.is_float:
        return None
    stack = (want[0], rows, width)
    if columns:
        return want, lambda: picked(tensor.load(), lambda values: values.reshape(stack).swapaxes(1, 2))
    return want, lambda: picked(tensor.load(), lambda values: values.reshape(stack))


def transposed(tensor: LazyTensor) -> tuple[Shape, Callable[[], QTensor]]:
    """[E, K, N] of floats as [E, N, K]: its shape, and how to load it."""
    experts, k, n = tensor.shape
    return (experts, n, k), lambda: picked(tensor.load(), lambda values: values.swapaxes(1, 2))


def picked(tensor: QTensor, pick: Callable[[AnyArray], AnyArray]) -> QTensor:
    """Some of a tensor's values, in their stored format: of floats any, of blocks whole rows."""
    fmt = tensor.format
    raw = tensor.data.view(f"u{fmt.row_bytes(1)}") if fmt.is_float else tensor.data
    picked = np.ascontiguousarray(pick(raw))
    shape = picked.shape if fmt.is_float else (*picked.shape[:-1], tensor.shape[-1])
    return QTensor(fmt, shape, picked.view(np.uint8))
