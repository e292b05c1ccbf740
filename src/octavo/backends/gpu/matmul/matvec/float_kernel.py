# mypy: ignore-errors
"""Products of a token with weights that are floats.

Algorithm: GEMV, a few rows a program, with the next part of K loaded while one is multiplied.
Tile:
    W   rows 0 to block_n - 1    | block_k | block_k: loading | ...
    x                            | block_k |
    acc [block_n, block_k], summed over its columns at the end
Bound: bytes: bf16 matrices of Llama 3 8B on an H200 are read at 72% (6144 x 4096) to 90% (28672 x 4096) of the read
    limit of 4,567 GB/s, by the times in docs/log.md, "One token's floats by the library are slower".
Tried: docs/log.md: "One token's floats by the library are slower".
Twin: `octavo.backends.reference.ops.mul_mat`, `octavo.backends.reference.ops.mul_mat_id`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def float_matvec_kernel(w, x, experts, terms, y, n, k, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr):
    """y f32 [T, N] = x [T, k] W^T + terms; with `experts` row i of y is W[ids[i]] of token i // sharing."""
    at, pair = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.program_id(1)
    row = tl.minimum(at, n - 1).to(tl.int64)
    token = pair
    if PDL:
        gdc_launch_dependents()
    if experts is not None:
        if PDL:
            gdc_wait()
        row += tl.load(experts.ids + pair).to(tl.int64) * n
        token = pair // experts.sharing
    place = tl.arange(0, BLOCK_K)
    rows = w + row[:, None] * k + place[None, :]
    ahead = tl.load(rows, mask=place[None, :] < k, other=0.0)  # [BLOCK_N, BLOCK_K]
    if PDL and experts is None:
        gdc_wait()
    source = x.data + token.to(tl.int64) * x.stride + place
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for first in range(0, k, BLOCK_K):
        weight = ahead
        ahead = tl.load(rows + first + BLOCK_K, mask=place[None, :] < k - first - BLOCK_K, other=0.0)
        value = tl.load(source + first, mask=place < k - first, other=0.0).to(tl.float32)  # [BLOCK_K]
        acc += weight.to(tl.float32) * value[None, :]
    out = tl.sum(acc, 1)  # [BLOCK_N]
    for i in tl.static_range(len(terms)):
        out += tl.load(terms[i].data + pair * terms[i].stride + at, mask=at < n, other=0.0)  # [BLOCK_N]
    tl.store(y.data + pair.to(tl.int64) * y.stride + at, out, mask=at < n)
