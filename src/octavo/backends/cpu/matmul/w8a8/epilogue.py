# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""What comes after the integer sums of a product: scales, zero points, bias, activation, residual, and the store."""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.pointwise.math import gated, silu
from octavo.jit.argument_record import record
from octavo.jit.compile import exact, inner
from octavo.jit.simd import add, f32_pointer, fma, i32_pointer, load_f32x16, maximum, mul, splat
from octavo.jit.simd.integers import sums_to_f32
from octavo.jit.simd.lanes import BF16_KIND, F16_KIND, F32_KIND, load_lanes, store_lanes

RELU, GELU, SILU = 1, 2, 3

EPILOGUE = record(
    "tokens columns",
    "begins zeros column_sums",
    "token_scales column_scales bias",
    "activation",
    "residual residual_stride residual_kind",
    "y y_stride y_kind",
)
"""y = activation((sums + begins - zeros * column_sums) * token_scales * column_scales + bias) + residual

tokens, columns     of y
begins, zeros       int32 [tokens]: what takes the offset off the weights, and zero points
column_sums         int32 [columns], sums of the weight's rows
token_scales        float32 [tokens]
column_scales,
bias                float32 [columns]
activation          0, or RELU, GELU or SILU
residual, y         [tokens, columns], and bytes from one token's to the next one's; no residual: 0
residual_kind,
y_kind              of `simd.lanes`

What belongs to columns is filled up to a multiple of 16.
"""


def epilogue() -> Any:
    """A function (e, task, sums, first token, tokens) that makes 16 columns of y of sums [tokens, 16] and stores them.

    `e` is the address of a record `EPILOGUE`; the columns begin with column 16 * task.
    """
    epilogue_at, relu, gelu, swish = EPILOGUE.at, RELU, GELU, SILU

    def finish(e, task, sums, first, count):
        e = epilogue_at(e)
        columns = min(e.columns - task * 16, 16)
        column_scale, bias = load_f32x16(e.column_scales + task * 64), load_f32x16(e.bias + task * 64)  # [16]
        activation = e.activation
        for i in range(min(count, e.tokens - first)):
            token = first + i
            begin, zero = i32_pointer(e.begins)[token], i32_pointer(e.zeros)[token]
            v = sums_to_f32(sums + i * 64, begin, zero, e.column_sums + task * 64)  # [16]
            v = add(mul(mul(v, splat(f32_pointer(e.token_scales)[token])), column_scale), bias)
            if activation == relu:
                v = maximum(splat(0.0), v)
            elif activation == gelu:
                z = mul(v, fma(mul(v, v), splat(0.0713548162726), splat(1.5957691216)))
                v = gated(v, z)
            elif activation == swish:
                v = silu(v)
            if e.residual != 0:
                v = add(v, _load(e.residual + token * e.residual_stride, task * 16, columns, e.residual_kind))
            _store(e.y + token * e.y_stride, task * 16, columns, v, e.y_kind)

    return inner(finish)


@exact
def _load(row, column, lanes, kind):
    """Up to 16 floats of a row, from a column on."""
    if kind == F32_KIND:
        return load_lanes(row + column * 4, lanes, F32_KIND)
    if kind == F16_KIND:
        return load_lanes(row + column * 2, lanes, F16_KIND)
    return load_lanes(row + column * 2, lanes, BF16_KIND)


@exact
def _store(row, column, lanes, value, kind):
    if kind == F32_KIND:
        store_lanes(row + column * 4, lanes, value, F32_KIND)
    elif kind == F16_KIND:
        store_lanes(row + column * 2, lanes, value, F16_KIND)
    else:
        store_lanes(row + column * 2, lanes, value, BF16_KIND)
