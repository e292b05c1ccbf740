# mypy: ignore-errors
"""The end of a tile with split-K: each program leaves its partial sums, and the last to finish adds up all.

Sums are added in the order of the programs, whoever is last, so results are the same from run to run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def is_last(counter, SPLIT_K: tl.constexpr):
    """Whether SPLIT_K - 1 programs were here before this one. It then sees what all stored, and clears the counter."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLIT_K - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def sum_of(partial, step, mask, SPLIT_K: tl.constexpr, total):
    """`total`, zeros, + the partial sums at SPLIT_K places, `step` apart."""
    for split in tl.static_range(SPLIT_K):
        if mask is None:
            total += tl.load(partial + split * step, cache_modifier=".cg")
        else:
            total += tl.load(partial + split * step, mask=mask, other=0.0, cache_modifier=".cg")
    return total
