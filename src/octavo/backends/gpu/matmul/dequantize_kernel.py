# mypy: ignore-errors
"""Weights as float16 or float32: for library products, and rows of an embedding.

Algorithm: dequantize, then the vendor's GEMM, as llama.cpp does for large batches.
Tile:
    program (rows, part)   codes [block_n, 32 CHUNKS] -> floats: low codes [.., 64] | high codes [.., 64] | ...
Bound: bytes: float16 is written at 83 to 90% of the speed of memory on an H200 (docs/log.md, "What many tokens of a
    product wait for").
Tried: docs/log.md: "What many tokens of a product wait for".
Twin: `octavo.formats.codec.dequantize`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.weights.decode import codes_of, scales_of, values_of


@triton.jit
def dequantize_kernel(
    w, rows, out, n, n_rows, k, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr
):
    """out [n_rows, k] = rows of W [n, kp]: those that `rows` names, or the first n_rows. A program has CHUNKS of 32.

    A row number out of range stands for the nearest row: nothing outside W is read.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(at, n_rows - 1)
    if rows is not None:
        row = tl.minimum(tl.maximum(tl.load(rows + row), 0), n - 1)
    row = row.to(tl.int64)[:, None]
    chunk = tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)[None, :]
    word = tl.program_id(1) * CHUNKS * 4 + tl.arange(0, CHUNKS * 4)[None, :]
    inside, word_inside = chunk < w.layout.kp // 32, word < w.layout.kp // 8
    low, high = codes_of(w, row, word, word_inside, ASM)  # [BLOCK_N, 4 CHUNKS]
    s_low, s_high, m_low, m_high = scales_of(w, row, chunk, inside)  # [BLOCK_N, CHUNKS]
    if w.factors is not None:
        factor = tl.load(w.factors + row)  # [BLOCK_N, 1]
        s_low, s_high, m_low, m_high = s_low * factor, s_high * factor, m_low * factor, m_high * factor
    code = tl.program_id(1) * CHUNKS * 16 + tl.arange(0, CHUNKS * 16)[None, :]
    place = (code // 64) * 128 + code % 64
    pointer = out.data + at.to(tl.int64)[:, None] * out.stride + place
    written = at[:, None] < n_rows
    value = values_of(low, s_low, m_low, w.layout)  # [BLOCK_N, 16 CHUNKS]
    tl.store(pointer, value.to(out.data.dtype.element_ty), mask=written & (place < k))
    value = values_of(high, s_high, m_high, w.layout)  # [BLOCK_N, 16 CHUNKS]
    tl.store(pointer + 64, value.to(out.data.dtype.element_ty), mask=written & (place + 64 < k))
