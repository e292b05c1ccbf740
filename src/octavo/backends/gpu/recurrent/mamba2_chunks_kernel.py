# mypy: ignore-errors
"""The selective scan of Mamba-2 for prompts, chunk by chunk of tokens, as products of matrices.

Algorithm: Mamba-2's SSD, the chunkwise form of structured state space duality (arXiv 2405.21060).
Tile:
    launch 1   program (chunk, head)      scores [chunk, chunk] and decays, all chunks at once
    launch 2   program (head, columns)    S [keys, block_v] -> chunk -> chunk -> ..., three products a chunk
Bound: instructions of the tensor cores, three bfloat16 products for one of float32; not measured as a share.
Tried: nothing else.
Twin: `octavo.backends.reference.state_ops.selective_scan`

S is a head's matrix before a chunk, S_i after its i-th token, and d(j, i) the product of the decays of tokens j + 1 to
i, where 0 is before the first one. The scan says

    S_i = d(0, i) S + sum of d(j, i) step_j b_j x_j^T for j <= i
    y_i = S_i^T c_i + D x_i = d(0, i) S^T c_i + sum of d(j, i) step_j (c_i . b_j) x_j for j <= i + D x_i

Only S^T c_i needs the chunks before: `score_scan_kernel` takes all chunks at once, then `selective_scan_chunks_kernel`
one after the other. Decays and products are those of `gated_delta_chunks_kernel`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.pointwise.kernel import begin
from octavo.backends.gpu.recurrent.gated_delta_chunks_kernel import (
    g_cumsum,
    halves,
    load_halves,
    product,
    store_halves,
    transposed,
)
from octavo.backends.gpu.recurrent.kernel import state_of, steps_of, tokens_of


@triton.jit
def score_scan_kernel(b, c, dt, ssm_a, dt_bias, where, chunks, shape: tl.constexpr, PDL: tl.constexpr):
    """A program writes the rows of a chunk of a head: the scores d(j, i) step_j (c_i . b_j) and decays.

    The first head of a group that shares b and c writes these in halves.
    """
    begin(PDL)
    head, row = tl.program_id(2), tl.arange(0, shape.chunk)
    start, stop = tokens_of(where.decodes + tl.program_id(0), where)
    first = start + tl.program_id(1) * shape.chunk
    if first < stop:
        t, live = first + row, first + row < stop
        group, shares = head // shape.group, head % shape.group
        scores = tl.zeros([shape.chunk, shape.chunk], tl.float32)
        for j in tl.static_range(0, shape.block_k, shape.part):
            i = j + tl.arange(0, shape.part)
            inside, of_keys = live[:, None] & (i < shape.keys)[None, :], (group * shape.keys + i)[None, :]
            at = t[:, None] * (shape.key_heads * shape.keys) + of_keys
            keys = tl.load(b.data + t[:, None] * b.stride + of_keys, mask=inside, other=0.0)
            store_halves(chunks.keys, at, keys, inside & (shares == 0), shape)
            queries = tl.load(c.data + t[:, None] * c.stride + of_keys, mask=inside, other=0.0)
            store_halves(chunks.queries, at, queries, inside & (shares == 0), shape)
            scores = product(halves(queries, shape), transposed(halves(keys, shape)), scores, shape)
        g, step = steps_of(dt, ssm_a, dt_bias, t, live, head)
        parts, small = g_cumsum(g)
        last = row == shape.chunk - 1
        left = tl.sum(tl.where(last, parts, 0.0), 0) - parts + (tl.sum(tl.where(last, small, 0.0), 0) - small)
        tl.store(chunks.exp_g + t * shape.heads + head, tl.exp(parts + small), mask=live)
        tl.store(chunks.exp_g_rest + t * shape.heads + head, step * tl.exp(left), mask=live)
        decay = parts[:, None] - parts[None, :] + (small[:, None] - small[None, :])
        decay = tl.exp(tl.where(row[:, None] >= row[None, :], decay, float("-inf")))  # [i, j]
        place = (t * shape.heads + head)[:, None] * shape.chunk + row[None, :]
        store_halves(chunks.scores, place, decay * step[None, :] * scores, live[:, None], shape)


@triton.jit
def selective_scan_chunks_kernel(x, ssm_d, state, where, chunks, out, shape: tl.constexpr, PDL: tl.constexpr):
    """A program takes `block_v` columns of a head's matrix [keys, size] through the chunks of a sequence."""
    begin(PDL)
    sequence, head = where.decodes + tl.program_id(0), tl.program_id(1)
    i, column = tl.arange(0, shape.block_k), tl.program_id(2) * shape.block_v + tl.arange(0, shape.block_v)
    has_key, has_column, row = i < shape.keys, column < shape.size, tl.arange(0, shape.chunk)
    start, stop = tokens_of(sequence, where)
    if start < stop:
        of_keys, of_values = head // shape.group * shape.keys + i, head * shape.size + column
        slot, goes_on = state_of(sequence, start, where)
        place = state + (slot * shape.heads + head) * shape.keys * shape.size
        place += i[:, None] * shape.size + column[None, :]
        inside = has_key[:, None] & has_column[None, :]
        matrix, d = tl.load(place, mask=inside & goes_on, other=0.0), tl.load(ssm_d + head)
        zeros = tl.zeros([shape.chunk, shape.block_v], tl.float32)
        for first in range(start, stop, shape.chunk):
            t, live = first + row, first + row < stop
            at, these = t[:, None] * (shape.key_heads * shape.keys) + of_keys[None, :], live[:, None] & has_key[None, :]
            number, written = t * shape.heads + head, live[:, None] & has_column[None, :]
            values = tl.load(x.data + t[:, None] * x.stride + of_values[None, :], mask=written, other=0.0)
            exp_g = tl.load(chunks.exp_g + number, mask=live, other=0.0)[:, None]
            exp_g_rest = tl.load(chunks.exp_g_rest + number, mask=live, other=0.0)[:, None]
            all_of_it = tl.load(chunks.exp_g + (tl.minimum(first + shape.chunk, stop) - 1) * shape.heads + head)
            queries = load_halves(chunks.queries, at, these)
            rows = exp_g * product(queries, halves(matrix, shape), zeros, shape) + d * values
            scores = load_halves(chunks.scores, number[:, None] * shape.chunk + row[None, :], live[:, None])
            rows = product(scores, halves(values, shape), rows, shape)
            tl.store(out.data + t[:, None] * out.stride + of_values[None, :], rows, mask=written)
            keys = load_halves(chunks.keys, at, these)
            matrix = product(transposed(keys), halves(exp_g_rest * values, shape), all_of_it * matrix, shape)
        tl.store(place, matrix, mask=inside)
