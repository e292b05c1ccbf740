# mypy: ignore-errors
"""What the device can do at best: reading memory.

Algorithm: a sum of everything, in blocks that a program loads at once, as STREAM measures memory.
Tile:
    program p    | BLOCK int32 | BLOCK | ... BLOCKS of them |  -> one sum
Bound: bytes, by definition: 4,567 GB/s on an H200 (bench/results/gpu-attention-2026-11-24.json), 3,138 on an H100
    (bench/results/gpu-ops-2026-11-21.json). Shares of the read limit elsewhere are of this.
Tried: nothing else.
Twin: `numpy.sum`
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def read_kernel(x, out, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Sums BLOCKS blocks of BLOCK int32; a sum a program, so that every byte is read."""
    at = tl.program_id(0).to(tl.int64) * (BLOCK * BLOCKS) + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for i in tl.static_range(BLOCKS):
        total += tl.load(x + at + i * BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(total))
