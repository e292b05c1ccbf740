# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Look-ups of rows of quantized weights: embeddings.

Algorithm: dequantization of one lane of a tile of 16 rows.
Tile:
    task t   tile of 16 rows    | 16 x 32 codes unpacked | -> lane row % 16 -> 32 floats, block after block
Bound: latency, of a page of memory for each row; not measured by itself.
Tried: nothing else.
Twin: `octavo.backends.reference.ops.get_rows`, `octavo.formats.codec.dequantize`
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.kernel import LOADS, small_scales
from octavo.backends.cpu.weights.layout import ROWS, SCALE_BYTES, STEP, TiledLayout
from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.simd import (
    f32_pointer,
    i32_pointer,
    load_codes,
    load_u8x16,
    look_up,
    mul,
    splat,
    stack,
    store_codes,
    store_f32x16,
    sub,
    u8_pointer,
)

GET_ROWS = record("y y_stride", "weights k table scales", "rows")
"""float32 y, a row of k values a task; the weights with the table of their codes or their scales, or 0; int32 rows."""


@kernels(GET_ROWS)
def get_rows_kernel(layout: TiledLayout) -> Any:
    """Task t decodes row rows[t] to y."""
    bits, groups, sets = layout.bits, layout.groups, layout.sets
    two_level, has_min, has_zero = layout.two_level, layout.minima is not None, layout.minima == "zero"
    has_table = layout.table is not None
    offset, step, stepped = float(layout.offset), layout.step, layout.step != 1.0
    super_values, super_bytes, blocks = layout.super, layout.super_bytes, layout.super // STEP
    load_d, load_min = LOADS[layout.scale], LOADS[layout.minima or "f16"]
    scaled = small_scales(layout)
    d_bytes = SCALE_BYTES[layout.scale] * ROWS
    min_bytes = SCALE_BYTES[layout.minima] * ROWS if layout.minima else 0
    head_bytes, block_bytes = layout.head_bytes, layout.block_bytes
    codes_at, half = block_bytes - layout.code_bytes, STEP // groups

    def get_rows(a, task):
        k, row = a.k, i32_pointer(a.rows)[task]
        y = a.y + task * a.y_stride
        w = a.weights + row // 16 * (k // super_values * super_bytes)
        lane = row % 16
        codes_here, scale_here, bias_here = stack(512), stack(64), stack(64)
        for s in range(k // super_values):
            d = mul(load_d(w), splat(step)) if stepped else load_d(w)  # [16]
            dmin = load_min(w + d_bytes * sets) if has_min else d
            block = w + head_bytes
            for b in range(blocks):
                codes = load_codes(block + codes_at, bits)  # [16, 32]
                if has_table:
                    codes = look_up(codes, a.table)
                store_codes(codes_here, codes)
                for group in range(groups):
                    if two_level:
                        scale = scaled(block + 16 * group, d)
                    else:
                        scale = load_d(w + d_bytes * group)
                        scale = mul(scale, splat(step)) if stepped else scale
                    bias = mul(scale, splat(-offset))
                    if has_min:
                        if two_level:
                            bias = sub(bias, mul(load_u8x16(block + 16 * (groups + group)), dmin))
                        else:
                            minimum = load_min(w + d_bytes * sets + min_bytes * group)
                            bias = sub(bias, mul(minimum, scale) if has_zero else minimum)
                    store_f32x16(scale_here, scale)
                    store_f32x16(bias_here, bias)
                    factor, term = f32_pointer(scale_here)[lane], f32_pointer(bias_here)[lane]
                    values = f32_pointer(y + ((s * blocks + b) * 32 + group * half) * 4)
                    for i in range(half):
                        at = group * half + i
                        code = u8_pointer(codes_here)[at // 4 * 64 + lane * 4 + at % 4]
                        values[i] = factor * code + term
                block += block_bytes
            w += super_bytes

    return get_rows
