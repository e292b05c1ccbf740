# mypy: ignore-errors
"""RWKV-6's time mixing behind its projections: a matrix for each head of a sequence, and a norm of what it gives."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.pointwise.kernel import begin
from octavo.backends.gpu.recurrent.kernel import state_of, tokens_of
from octavo.backends.gpu.recurrent.rwkv7_kernel import row_of, vector_of

W0, U, WEIGHT, BIAS = (tl.constexpr(i) for i in range(4))
"""Where each vector is among `vectors`."""


@triton.jit
def wkv6_kernel(r, w, k, v, vectors, state, where, out, eps, shape: tl.constexpr, PDL: tl.constexpr):
    """A program takes a head's matrix [keys, values] through the tokens of a sequence."""
    begin(PDL)
    sequence, head, i = tl.program_id(0), tl.program_id(1), tl.arange(0, shape.block)
    inside, at = i < shape.size, head * shape.size + i
    start, stop = tokens_of(sequence, where)
    if start < stop:
        slot, goes_on = state_of(sequence, start, where)
        place = state + (slot * shape.heads + head) * shape.size * shape.size + i[:, None] * shape.size + i[None, :]
        both = inside[:, None] & inside[None, :]
        matrix = tl.load(place, mask=both & goes_on, other=0.0)  # [block, block]
        w0, u = vector_of(vectors, W0, at, inside, shape), vector_of(vectors, U, at, inside, shape)
        weight, bias = vector_of(vectors, WEIGHT, at, inside, shape), vector_of(vectors, BIAS, at, inside, shape)
        for t in range(start, stop):
            key, value, query = row_of(k, t, at, inside), row_of(v, t, at, inside), row_of(r, t, at, inside)
            decay = tl.exp(-tl.exp(row_of(w, t, at, inside) + w0))
            y = tl.sum(matrix * query[:, None], 0) + tl.sum(query * key * u) * value  # [block]
            matrix = matrix * decay[:, None] + key[:, None] * value[None, :]
            y = tl.where(inside, y - tl.sum(y) / shape.size, 0.0)
            y = y / tl.sqrt_rn(tl.sum(y * y) / shape.size + eps) * weight + bias
            tl.store(out.data + t * out.stride + at, y, mask=inside)
        tl.store(place, matrix, mask=both)
