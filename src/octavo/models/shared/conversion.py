"""Tensors of checkpoints as GGUF has them, where their values lie otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from octavo.errors import ModelError
from octavo.formats import Planes, QTensor, by_name, dequantize, pack, quantize_reference, unpack
from octavo.formats.codec import chunks
from octavo.formats.group import with_wide_scales
from octavo.formats.spec import F32, AnyArray
from octavo.io.gguf import LazyTensor
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.lora import Factored
from octavo.models.shared.weights import Expected

CHUNK_VALUES = 1 << 20
"""Values whose scales are multiplied at a time."""


def columns_as_rows(tensor: LazyTensor) -> LazyTensor:
    """A matrix of floats [K, N] as [N, K]. Raises ModelError for one that is quantized.

    That of an adapter stays: its rows are outputs however the checkpoint has them.
    """
    if isinstance(tensor, Factored):
        return tensor
    fmt, (k, n) = tensor.format, tensor.shape
    if not fmt.is_float:
        raise ModelError(f"is {fmt.name}", field=f"tensor {tensor.name}", allowed="floats, as its outputs are columns")

    def load() -> QTensor:
        values = tensor.load().data.view(f"u{fmt.row_bytes(1)}").reshape(k, n).T
        return QTensor(fmt, (n, k), np.ascontiguousarray(values).view(np.uint8), tensor.name)

    return LazyTensor(tensor.name, fmt, (n, k), load)


def rows_moved(tensor: LazyTensor, move: Callable[[AnyArray], AnyArray], count: int | None = None) -> LazyTensor:
    """A matrix [N, K] or a bias [N] with its rows where `move` puts them, which is given rows of bytes, [N, B].

    count  rows that there are then, if not all
    """
    if isinstance(tensor, Factored):
        return tensor.with_rows(lambda b: rows_moved(b, move, count))
    shape = (count or tensor.shape[0], *tensor.shape[1:])

    def load() -> QTensor:
        found = tensor.load()
        rows = np.ascontiguousarray(move(found.data.reshape(tensor.shape[0], -1)))
        return QTensor(found.format, shape, rows.reshape(*shape[:-1], -1), tensor.name)

    return LazyTensor(tensor.name, tensor.format, shape, load)


def columns_moved(tensor: LazyTensor, heads: AnyArray) -> LazyTensor:
    """A matrix with these of its heads, as many columns each, in this order.

    Raises ModelError for blocks that are longer than a head, unless they are whole rows with one scale, or with groups
    that are not.
    """
    if isinstance(tensor, Factored):
        return tensor.with_columns(lambda a: columns_moved(a, heads))
    fmt, (n, k) = tensor.format, tensor.shape
    size, blocks = k // len(heads), fmt.block
    if fmt.per_row:
        blocks = 1 if fmt.group == k else fmt.group
    if size % blocks:
        problem = f"is {fmt.name}, whose blocks are longer than the {size} values of a head"
        raise ModelError(problem, field=f"tensor {tensor.name}", allowed=f"blocks that divide {size}")

    def moved(rows: AnyArray) -> AnyArray:
        return np.ascontiguousarray(rows.reshape(n, len(heads), -1)[:, heads]).reshape(rows.shape)

    def load() -> QTensor:
        stored = tensor.load()
        if not fmt.per_row:
            return QTensor(fmt, (n, k), moved(stored.data), stored.name)
        planes = unpack(stored)
        sc = None if planes.sc is None else moved(planes.sc)
        return QTensor(fmt, (n, k), pack(Planes(moved(planes.q), d=planes.d, sc=sc), fmt), stored.name)

    return LazyTensor(tensor.name, fmt, (n, k), load)


def order_moved(order: LazyTensor, columns: AnyArray) -> LazyTensor:
    """An order of columns [K] where a matrix' columns, and what these are multiplied with, move as `columns` says."""
    place = np.argsort(columns)

    def load() -> QTensor:
        values = place[dequantize(order.load()).astype(np.intp)[columns]].astype("<f4")
        return QTensor(order.format, order.shape, values.view(np.uint8), order.name)

    return LazyTensor(order.name, order.format, order.shape, load)


def split_qkv(name: str, tensor: LazyTensor, hp: Hyperparams, *, interleave: bool = False) -> LazyTensor:
    """q, k or v, or a bias of one, of a matrix that has the rows of q, then of k, then of v; others as they are.

    interleave  rows of q and k go from rope on halves of a head to rope on neighbours
    Raises ModelError for a matrix of another number of rows.
    """
    kind = name.rpartition(".")[0].rpartition(".attn_")[2]
    counts = {"q": hp.n_head, "k": hp.n_head_kv, "v": hp.n_head_kv}
    if kind not in counts:
        return tensor
    sizes = [heads * hp.head_dim for heads in counts.values()]
    if tensor.shape[0] != sum(sizes):
        problem = f"shape {list(tensor.shape)} contradicts the configuration"
        raise ModelError(problem, field=f"tensor {tensor.name}", allowed=f"{sum(sizes)} rows of q, k and v")
    which = "qkv".index(kind)
    start = sum(sizes[:which])

    def taken(rows: AnyArray) -> AnyArray:
        found = rows[start : start + sizes[which]]
        return neighbouring(found, counts[kind]) if interleave and kind != "v" else found

    return rows_moved(tensor, taken, sizes[which])


def of_unit_length(tensor: LazyTensor, axis: int) -> LazyTensor:
    """A matrix of floats over the root of the sum of its squares along an axis, rounded to the type that it has.

    Raises ModelError for one that is quantized.
    """
    fmt = tensor.format
    if not fmt.is_float:
        raise ModelError(f"is {fmt.name}", field=f"tensor {tensor.name}", allowed="floats, as it is normalized")

    def load() -> QTensor:
        values = dequantize(tensor.load())
        lengths = np.sqrt(np.sum(np.square(values, dtype=np.float64), axis=axis, keepdims=True))
        return quantize_reference((values / np.maximum(lengths, 1e-12)).astype(np.float32), fmt, tensor.name)

    return LazyTensor(tensor.name, fmt, tensor.shape, load)


def multiplied(tensor: LazyTensor, by: float | F32) -> LazyTensor:
    """A tensor times a number, or each row times its own: floats rounded to the type that they have, or else scales.

    Raises ModelError for rows whose scales are not floating-point numbers.
    """
    fmt, factor = tensor.format, np.asarray(by, np.float32)
    if np.all(factor == 1):
        return tensor
    if isinstance(tensor, Factored):
        return tensor.with_rows(lambda b: multiplied(of_values(b), by))
    if not fmt.is_float:
        return _with_scales_times(tensor, np.broadcast_to(factor, tensor.shape[:1]))
    factor = factor if factor.ndim == 0 else factor[:, None]
    return LazyTensor(
        tensor.name, fmt, tensor.shape,
        lambda: quantize_reference(dequantize(tensor.load()) * factor, fmt, tensor.name),
    )


def _with_scales_times(tensor: LazyTensor, factor: F32) -> LazyTensor:
    """Rows [N, K] with their scales, in float32, times a number for each row."""
    wide, (n, k) = with_wide_scales(tensor.format), tensor.shape
    if wide is None:
        allowed = "floats, or rows with floating scales, as it is to be multiplied"
        raise ModelError(f"is {tensor.format.name}", field=f"tensor {tensor.name}", allowed=allowed)

    def load() -> QTensor:
        stored = tensor.load()
        out = np.empty((n, wide.row_bytes(k)), np.uint8)
        for part in chunks(n, k, CHUNK_VALUES):
            planes = unpack(QTensor(tensor.format, (len(factor[part]), k), stored.rows(part)))
            by, least = factor[part, None], planes.dmin
            assert planes.d is not None
            out[part] = pack(replace(planes, d=planes.d * by, dmin=None if least is None else least * by), wide)
        return QTensor(wide, tensor.shape, out, tensor.name)

    return LazyTensor(tensor.name, wide, tensor.shape, load)


def neighbouring(rows: AnyArray, heads: int) -> AnyArray:
    """Rows of q or k [N, B] from rope on halves of a head to rope on neighbours."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def in_order(tensor: LazyTensor, order: AnyArray) -> LazyTensor:
    """A tensor with these of its rows, or of a vector's values, in this order."""
    return rows_moved(tensor, lambda rows: rows[order], len(order))


def of_values(
    tensor: LazyTensor, change: Callable[[F32], F32] = lambda values: values, shape: tuple[int, ...] | None = None
) -> LazyTensor:
    """What a function makes of a tensor's values, in F32, in this shape."""
    plain, found = by_name("F32"), tensor.shape if shape is None else shape
    return LazyTensor(
        tensor.name, plain, found,
        lambda: quantize_reference(change(dequantize(tensor.load())).reshape(found), plain, tensor.name),
    )


def f32_tensor(values: F32, name: str = "") -> QTensor:
    """Values as a tensor of F32, whatever they are."""
    return QTensor(by_name("F32"), values.shape, np.ascontiguousarray(values, "<f4").view(np.uint8), name)


def without_middle(tensor: LazyTensor) -> LazyTensor:
    """The weight of a convolution, [C, 1, K] in a checkpoint, as [C, K] in F32."""
    return of_values(tensor, shape=(tensor.shape[0], tensor.shape[-1]))


def of_scan(name: str, tensor: LazyTensor) -> LazyTensor:
    """A tensor of a layer with a state as GGUF has it: rates, and convolutions [C, K]; others as they are."""
    if name.endswith(".ssm_a"):
        return of_values(tensor, lambda values: -np.exp(values))
    is_convolution = name.endswith(".ssm_conv1d.weight") and len(tensor.shape) == 3
    return without_middle(tensor) if is_convolution else tensor


def in_shape(
    tensor: LazyTensor, shape: tuple[int, ...], change: Callable[[F32], F32] = lambda values: values
) -> LazyTensor:
    """What a function makes of a tensor's values, in F32, in a shape that has other axes of 1; the tensor itself where
    other axes differ too."""
    return of_values(tensor, change, shape) if Expected(shape, ones=True).fits(tensor.shape) else tensor


def in_rows(tensor: LazyTensor, rows: int) -> LazyTensor:
    """A vector as rows, in F32; the tensor itself where it does not come out even."""
    if len(tensor.shape) != 1 or tensor.shape[0] % rows:
        return tensor
    return of_values(tensor, shape=(rows, tensor.shape[0] // rows))


def flat(tensor: LazyTensor) -> LazyTensor:
    """A tensor as a vector, in F32."""
    return of_values(tensor, shape=(math.prod(tensor.shape),))
