"""Products with few tokens of weights that are floats."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def float_matvec_kernel(w, x, experts, terms, y, n, k, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr):
    """y f32 [T, N] = x f32 [T, k] W^T + terms; with `experts` row i of y is W[ids[i]] of token i // sharing."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at, pair = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.program_id(1)
    row = tl.minimum(at, n - 1).to(tl.int64)
    token = pair
    if experts is not None:
        row += tl.load(experts.ids + pair).to(tl.int64) * n
        token = pair // experts.sharing
    source = x.data + token.to(tl.int64) * x.stride
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for first in range(0, k, BLOCK_K):
        place = first + tl.arange(0, BLOCK_K)
        inside = place < k
        weight = tl.load(w + row[:, None] * k + place[None, :], mask=inside[None, :], other=0.0)  # [BLOCK_N, BLOCK_K]
        acc += weight.to(tl.float32) * tl.load(source + place, mask=inside, other=0.0)[None, :]  # [BLOCK_N, BLOCK_K]
    out = tl.sum(acc, 1)  # [BLOCK_N]
    for i in tl.static_range(len(terms)):
        out += tl.load(terms[i].data + pair * terms[i].stride + at, mask=at < n, other=0.0)  # [BLOCK_N]
    tl.store(y.data + pair.to(tl.int64) * y.stride + at, out, mask=at < n)
