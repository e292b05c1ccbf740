# mypy: ignore-errors
"""Activations in blocks of 128 codes and 16 bytes of scales and sums, in one of three layouts.

Algorithm: llama.cpp's `quantize_mmq_q8_1`, bit for bit.
Tile:
    program (row, block, channel and sample)    128 values -> | 16 bytes: scales, sums | 128 codes |
                                                D4: 4 scales   DS4: 4 (scale, sum)   D2S6: 2 scales, 6 sums of 16
Bound: bytes; not measured by itself.
Tried: nothing else.
Twin: `octavo.backends.gpu.matmul.mmq.quantize.mmq_reference`
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.matmul.activations import nearest


@triton.jit
def _tree_sum(x, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Sums of SIZE neighbours, [ROWS, SIZE] -> [ROWS]: of two neighbours, then of two such sums, always so."""
    width: tl.constexpr = SIZE // 2
    a, b = tl.split(tl.reshape(x, (ROWS, width, 2)))
    x = a + b
    if width > 1:
        a, b = tl.split(tl.reshape(x, (ROWS, width // 2, 2)))
        x = a + b
    if width > 2:
        a, b = tl.split(tl.reshape(x, (ROWS, width // 4, 2)))
        x = a + b
    if width > 4:
        a, b = tl.split(tl.reshape(x, (ROWS, width // 8, 2)))
        x = a + b
    if width > 8:
        a, b = tl.split(tl.reshape(x, (ROWS, width // 16, 2)))
        x = a + b
    return tl.reshape(x, (ROWS,))


@triton.jit
def quantize_mmq_kernel(x, ids, out, k, rows, channels, LAYOUT: tl.constexpr):
    """Program (row, block, channel and sample): a block of 128 values of x, a SampledRows, to `out`, an MmqBlocks.

    ids int32 [rows] names the rows of x to take, or is None.
    """
    row, block = tl.program_id(0), tl.program_id(1)
    channel, sample = tl.program_id(2) % channels, tl.program_id(2) // channels
    source = tl.load(ids + row) if ids is not None else row
    first = x.data + source.to(tl.int64) * x.row + channel.to(tl.int64) * x.channel + sample.to(tl.int64) * x.sample
    GROUP: tl.constexpr = 64 if LAYOUT == "D2S6" else 32
    N: tl.constexpr = 128 // GROUP
    inside = tl.arange(0, N)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    at = block * 128 + inside
    value = tl.load(first + at, mask=at < k, other=0.0)  # [N, GROUP]
    largest = tl.max(tl.abs(value), 1)
    inverse = tl.where(largest > 0, tl.div_rn(127.0, tl.where(largest > 0, largest, 1.0)), 0.0)
    code = nearest(value * inverse[:, None])
    place = (tl.program_id(2).to(tl.int64) * tl.num_programs(1) + block) * rows + row
    tl.store(out.codes + place * 144 + 16 + inside, code.to(tl.int8))
    scale = tl.where(largest > 0, tl.div_rn(1.0, tl.where(largest > 0, inverse, 1.0)), 0.0)
    each = tl.arange(0, N)
    if LAYOUT == "D4":
        tl.store(out.floats + place * 36 + each, scale)
    elif LAYOUT == "DS4":
        tl.store(out.halves + place * 72 + each * 2, scale.to(tl.float16))
        tl.store(out.halves + place * 72 + each * 2 + 1, _tree_sum(value, N, GROUP).to(tl.float16))
    else:
        tl.store(out.halves + place * 72 + each, scale.to(tl.float16))
        eight = tl.arange(0, 8)
        sums = _tree_sum(tl.reshape(value, (8, 16)), 8, 16)
        tl.store(out.halves + place * 72 + 2 + eight, sums.to(tl.float16), mask=eight < 6)
