# mypy: ignore-errors
"""RWKV-7's time mixing behind its projections.

Algorithm: the generalized delta rule of RWKV-7 (arXiv 2503.14456) token by token, and a norm.
Tile:
    program (sequence, head)     S [size, size] in registers; for each token: S = decay S - (u rate)(S^T u)^T + k v^T
Bound: bytes, of reading and writing the state, for one token; latency for prompts. Not measured: it has not run on a
    card.
Tried: nothing else.
Twin: `octavo.backends.reference.state_ops.wkv7`

A head's whole matrix is in one program, since the norm of what it gives is of all columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.pointwise.kernel import begin
from octavo.backends.gpu.recurrent.kernel import state_of, tokens_of

SLOWEST = tl.constexpr(-0.6065306597126334)
"""-exp(-1/2): the logarithm of the least that a row of a matrix is multiplied with at a token."""
W0, A0, K_K, K_A, R_K, WEIGHT, BIAS, V0 = (tl.constexpr(i) for i in range(8))
"""Where each vector is among `vectors`."""


@triton.jit
def vector_of(vectors, number: tl.constexpr, at, inside, shape: tl.constexpr):
    """A head's part [block] of one of the vectors."""
    return tl.load(vectors + number * shape.heads * shape.size + at, mask=inside, other=0.0)


@triton.jit
def row_of(x, t, at, inside):
    """A head's part [block] of a token's row."""
    return tl.load(x.data + t * x.stride + at, mask=inside, other=0.0)


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def wkv7_kernel(
    r, w, k, v, a, first, gate, vectors, state, where, out, eps, shape: tl.constexpr, PDL: tl.constexpr
):
    """A program takes a head's matrix [keys, values] through the tokens of a sequence; first and gate may be None."""
    begin(PDL)
    sequence, head, i = tl.program_id(0), tl.program_id(1), tl.arange(0, shape.block)
    inside, at = i < shape.size, head * shape.size + i
    start, stop = tokens_of(sequence, where)
    if start < stop:
        slot, goes_on = state_of(sequence, start, where)
        place = state + (slot * shape.heads + head) * shape.size * shape.size + i[:, None] * shape.size + i[None, :]
        both = inside[:, None] & inside[None, :]
        matrix = tl.load(place, mask=both & goes_on, other=0.0)  # [block, block]
        w0, a0 = vector_of(vectors, W0, at, inside, shape), vector_of(vectors, A0, at, inside, shape)
        k_k, k_a = vector_of(vectors, K_K, at, inside, shape), vector_of(vectors, K_A, at, inside, shape)
        r_k = vector_of(vectors, R_K, at, inside, shape)
        weight, bias = vector_of(vectors, WEIGHT, at, inside, shape), vector_of(vectors, BIAS, at, inside, shape)
        for t in range(start, stop):
            key, value = row_of(k, t, at, inside), row_of(v, t, at, inside)
            query, rate = row_of(r, t, at, inside), sigmoid(row_of(a, t, at, inside) + a0)
            decay = tl.exp(sigmoid(row_of(w, t, at, inside) + w0) * SLOWEST)
            if first is not None:
                share = sigmoid(row_of(gate, t, at, inside) + vector_of(vectors, V0, at, inside, shape))
                value += (row_of(first, t, at, inside) - value) * share
            unit = key * k_k
            unit = unit / tl.maximum(tl.sqrt_rn(tl.sum(unit * unit)), 1e-12)
            key = key * (1 + (rate - 1) * k_a)
            known = tl.sum(matrix * unit[:, None], 0)  # [block]
            matrix = matrix * decay[:, None] - (unit * rate)[:, None] * known[None, :] + key[:, None] * value[None, :]
            y = tl.sum(matrix * query[:, None], 0)
            if shape.normed:
                y = tl.where(inside, y - tl.sum(y) / shape.size, 0.0)
                y = y / tl.sqrt_rn(tl.sum(y * y) / shape.size + eps) * weight + bias
            y += tl.sum(query * key * r_k) * value
            tl.store(out.data + t * out.stride + at, y, mask=inside)
        tl.store(place, matrix, mask=both)
