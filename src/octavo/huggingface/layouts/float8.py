"""Weights of e4m3 numbers, with a scale for the tensor, for each row, or for blocks of rows and columns."""

from __future__ import annotations

import numpy as np

from octavo.formats import Planes, channel_format
from octavo.formats.float8 import float8_format
from octavo.formats.scalars import e8m0_half_to_f32
from octavo.formats.spec import F32
from octavo.huggingface.layouts.module import HALVES, Module, Part
from octavo.huggingface.layouts.shares import rows_of_each
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import StoredTensor

SIDE = 128
"""Rows and columns of a block."""


def weight(module: Module, end: str, group: int | None, *, square: bool, token_codes: bool) -> LazyTensor:
    """The weight of `weight` F8_E4M3 [N, K] times the scales called `end`.

    group        values of a row that share a scale, None for all
    square       as many rows share it, too
    token_codes  activations are quantized to e4m3; else they stay as they are
    """
    codes = module.take("weight", ("F8_E4M3",), (None, None))
    n, k = codes.shape
    scale = _scale(module, end, n, k, group, square)
    if group is None and token_codes:
        fmt = channel_format("FP8", k)
    else:
        fmt = float8_format(SIDE if k % SIDE == 0 and (group or k) % SIDE == 0 else 32)
        if k % fmt.block or (group or k) % fmt.block:
            raise module.error("weight", f"has rows of {k} values", f"multiples of {fmt.block}")

    def load() -> Part:
        values = _values(module, end, scale, n)
        raw, d = codes.array(), _spread(values, n, k // fmt.block, group and group // fmt.block, square)
        return lambda part: Planes(raw[part], d=d[part])

    return module.weight(fmt, n, k, load)


def microscaled(module: Module, end: str) -> LazyTensor:
    """The weight of `weight` F8_E4M3 [N, K] times powers of two for each 32 values, called `end`: U8 or
    F8_E8M0 [N, K / 32]."""
    codes = module.take("weight", ("F8_E4M3",), (None, None))
    n, k = codes.shape
    fmt = float8_format(32)
    if k % fmt.block:
        raise module.error("weight", f"has rows of {k} values", f"multiples of {fmt.block}")
    scales = module.take(end, ("U8", "F8_E8M0"), (n, k // fmt.block))

    def load() -> Part:
        raw, d = codes.array(), powers_of_two(module, end, scales)
        return lambda part: Planes(raw[part], d=d[part])

    return module.weight(fmt, n, k, load)


def powers_of_two(module: Module, end: str, scales: StoredTensor) -> F32:
    """Scales of exponents less 127, of bytes of which 255 is NaN."""
    bits = scales.array()
    if (bits == 0xFF).any():
        raise module.error(end, "has scales of 255, which are NaN")
    half = e8m0_half_to_f32(bits)
    return half + half


def _scale(module: Module, end: str, n: int, k: int, group: int | None, square: bool) -> StoredTensor:
    tensor = module.take(end, (*HALVES, "F8_E8M0"))
    shapes: list[tuple[int, ...]] = [(n, 1), (n,), (1,), (), (1, 1)]
    if each := rows_of_each(module.name, module.config, n):
        shapes.append((len(each),))
    if group is not None:
        shapes = [(-(-n // SIDE) if square else n, -(-k // group))]
    if tensor.shape not in shapes:
        allowed = " or ".join(str(list(s)) for s in shapes)
        raise module.error(end, f"is {tensor.dtype} {list(tensor.shape)}", f"floats {allowed}")
    return tensor


def _values(module: Module, end: str, scale: StoredTensor, n: int) -> F32:
    """Scales as they are stored, those of a module's matrices for each of its rows."""
    values = powers_of_two(module, end, scale) if scale.dtype == "F8_E8M0" else scale.floats()
    of_each = values.ndim == 1 and 1 < values.size < n
    return np.repeat(values, rows_of_each(module.name, module.config, n)) if of_each else values


def _spread(values: F32, n: int, blocks: int, times: int | None, square: bool) -> F32:
    """Scales float32 [n, blocks]."""
    if times is None:
        column = np.full(n, values.reshape(()), np.float32) if values.size == 1 else values.reshape(n)
        return np.repeat(column[:, None], blocks, axis=1)
    if square:
        values = np.repeat(values, SIDE, axis=0)[:n]
    return np.ascontiguousarray(np.repeat(values, times, axis=1)[:, :blocks])
