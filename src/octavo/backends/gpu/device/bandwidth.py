# mypy: ignore-errors
"""What the device can do at best: reading memory."""

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
