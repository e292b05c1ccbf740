"""Weights as float16 or float32: for library products, and rows of an embedding."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.codes import look_up, low_and_high, scales


@triton.jit
def values_of(
    word, scale, minimum, BN: tl.constexpr, BC: tl.constexpr, HAS_MIN: tl.constexpr, OFFSET: tl.constexpr,
    SIGNED: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Words [BN, 4 BC] of four codes, scales and minima [BN, BC] -> float32 [BN, 16 BC]."""
    scale = tl.reshape(tl.broadcast_to(scale[:, :, None], (BN, BC, 4)), (BN, BC * 4))
    if HAS_MIN:
        minimum = tl.reshape(tl.broadcast_to(minimum[:, :, None], (BN, BC, 4)), (BN, BC * 4))
    parts = ()
    for i in tl.static_range(4):
        if SIGNED:
            code = (word << (24 - 8 * i)) >> (24 + SHIFT)
        else:
            code = (word >> (8 * i)) & 0xFF
        value = (code.to(tl.float32) - OFFSET) * scale
        if HAS_MIN:
            value -= minimum
        parts = parts + (value,)  # noqa: RUF005
    both = tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[3]))
    return tl.reshape(both, (BN, BC * 16))


@triton.jit
def dequantize_kernel(
    codes8, codes4, codes2, codes1, scale, minimum, small, rest, table0, table1, table2, table3,
    rows, out, n, n_rows, out_stride, k,
    kp: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr, SIGNED: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    ROWS: tl.constexpr,
    BN: tl.constexpr, BC: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [n_rows, k] = rows of W: those that `rows` names, or with ROWS False the first n_rows.

    A row number out of range stands for the nearest row: nothing outside W is read.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.minimum(at, n_rows - 1)
    if ROWS:
        row = tl.minimum(tl.maximum(tl.load(rows + row), 0), n - 1)
    row = row.to(tl.int64)[:, None]
    chunk = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    word = tl.program_id(1) * BC * 4 + tl.arange(0, BC * 4)[None, :]
    inside, word_inside = chunk < kp // 32, word < kp // 8
    low, high = low_and_high(codes8, codes4, codes2, codes1, row, word, word_inside, kp, BITS, SIGNED)
    if TABLE:
        table = (table0, table1, table2, table3)
        low, high = look_up(low, table, ASM, 1), look_up(high, table, ASM, 1)
    s_low, s_high, m_low, m_high = scales(
        scale, minimum, small, rest, row, chunk, kp, inside, G, S, KIND, HAS_MIN, MIN_BITS
    )
    code = tl.program_id(1) * BC * 16 + tl.arange(0, BC * 16)[None, :]
    place = (code // 64) * 128 + code % 64
    pointer = out + at.to(tl.int64)[:, None] * out_stride + place
    written = at[:, None] < n_rows
    SHIFT: tl.constexpr = 8 - BITS if SIGNED else 0
    value = values_of(low, s_low, m_low, BN, BC, HAS_MIN, OFFSET, SIGNED or TABLE, SHIFT)
    tl.store(pointer, value.to(out.dtype.element_ty), mask=written & (place < k))
    value = values_of(high, s_high, m_high, BN, BC, HAS_MIN, OFFSET, SIGNED or TABLE, SHIFT)
    tl.store(pointer + 64, value.to(out.dtype.element_ty), mask=written & (place + 64 < k))
