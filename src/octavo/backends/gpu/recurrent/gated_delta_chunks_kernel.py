# mypy: ignore-errors
"""The gated delta rule for prompts, in chunks of tokens, by matrix products.

Algorithm: the chunkwise gated delta rule (Gated DeltaNet, arXiv 2412.06464; fla's `chunk_gated_delta_rule`), with the
    UT transform.
Tile:
    launch 1   program (sequence, chunk, head)      (I + A)^-1 diag(b) and scores, [chunk, chunk], all chunks at once
    launch 2   program (sequence, head, columns)    S [keys, block_v] -> chunk -> chunk -> ..., five products for each
Bound: instructions of the tensor cores, three bfloat16 products for each one of float32; not measured as a share.
Tried: nothing else.
Twin: `octavo.backends.reference.state_ops.gated_delta_rule`

Token by token, each one waits for the state that the one before leaves. Here only chunks wait for each other, and
tensor cores do the work.

S is a head's matrix [keys, values] before a chunk, S_i after its i-th token, b_i that token's beta, and d(j, i) the
product of the decays of tokens j + 1 to i, where 0 is before the first one. With u_i for what token i adds to S along
k_i, the rule says

    u_i = b_i (v_i - d(0, i) S^T k_i - sum of d(j, i) (k_i . k_j) u_j for j < i)
    S_i = d(0, i) S + sum of d(j, i) k_j u_j^T for j <= i
    y_i = S_i^T q_i

So u is (I + A)^-1 diag(b) (V - d K S), where A has b_i d(j, i) (k_i . k_j) below its diagonal; (I + A)^-1 diag(b) is
called the UT transform, `ut`. The running sum of g, the logarithms of decays, is `g_cumsum`. Only S depends on the
chunks before: `solve_delta_kernel` makes the rest for all chunks at once, then `gated_delta_chunks_kernel` takes one
chunk after the other.

A d(j, i) is the exponential of a difference of two sums of logarithms. Each logarithm is a multiple of 1/128, whose
sums are exact, and a rest, whose sums are small. So d(j, i) is right to a few units in the last place even where a
token before j has erased the state, which makes both sums huge.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.pointwise.kernel import begin
from octavo.backends.gpu.recurrent.kernel import gates_of, key_head_of, state_of, tokens_of

MIN_G = tl.constexpr(-1024.0)
"""The least logarithm of a decay: its exponential is 0, and a chunk's sum of such multiples of 1/128 is still exact."""


@triton.jit
def rounded(x, shape: tl.constexpr):
    """x as bfloat16."""
    if shape.interpreted:  # Triton's interpreter cuts bits off instead of rounding
        x = ((x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000).to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def halves(x, shape: tl.constexpr):
    """x as a sum of two bfloat16, accurate to 17 bits."""
    upper = rounded(x, shape)
    return upper, rounded(x - upper.to(tl.float32), shape)


@triton.jit
def product(a, b, total, shape: tl.constexpr):
    """total + a @ b of matrices in `halves`, without the product of their lower ones."""
    if shape.interpreted:  # Triton's interpreter has no dot of bfloat16
        a, b = (a[0].to(tl.float32), a[1].to(tl.float32)), (b[0].to(tl.float32), b[1].to(tl.float32))
    return tl.dot(a[0], b[0], tl.dot(a[0], b[1], tl.dot(a[1], b[0], total)))


@triton.jit
def transposed(a):
    return tl.trans(a[0]), tl.trans(a[1])


@triton.jit
def store_halves(pair, at, x, mask, shape: tl.constexpr):
    upper, lower = halves(x, shape)
    tl.store(pair.upper + at, upper, mask=mask)
    tl.store(pair.lower + at, lower, mask=mask)


@triton.jit
def load_halves(pair, at, mask):
    return tl.load(pair.upper + at, mask=mask, other=0.0), tl.load(pair.lower + at, mask=mask, other=0.0)


@triton.jit
def g_cumsum(g):
    """Sums of logarithms of decays up to each token: of their multiples of 1/128, which are exact, and of the rests."""
    g = tl.maximum(g, MIN_G, propagate_nan=tl.PropagateNan.ALL)
    parts = tl.floor(g * 128) / 128
    return tl.cumsum(parts, 0), tl.cumsum(g - parts, 0)


@triton.jit
def inverse(system, shape: tl.constexpr):
    """(I + system)^-1 of a matrix with zeros on and above its diagonal.

    Blocks of 16 rows on the diagonal are inverted row by row (forward substitution), all blocks at once; what is below
    them follows by products. A power series of the whole system would do as well, but has huge terms where keys are
    alike.
    """
    n: tl.constexpr = shape.chunk // 16
    block, r, row = tl.arange(0, n), tl.arange(0, 16), tl.arange(0, shape.chunk)
    same = (block[:, None] == block[None, :])[:, None, :, None]
    upper = tl.sum(tl.where(same, tl.reshape(tl.trans(system), (n, 16, n, 16)), 0.0), 2)  # [block, column, row]
    found = tl.zeros([n, 16, 16], tl.float32) + (r[:, None] == r[None, :])[None].to(tl.float32)
    for at in range(1, 16):
        of_row = tl.sum(tl.where((r == at)[None, None, :], upper, 0.0), 2)  # [block, column]
        new = tl.sum(of_row[:, :, None] * found, 1)  # [block, column]
        found -= tl.where((r == at)[None, :, None], new[:, None, :], 0.0)
    whole = tl.reshape(tl.where(same, found[:, :, None, :], 0.0), (shape.chunk, shape.chunk))
    if n > 1:  # whole is D^-1, so that (D + L)^-1 = (I + N)^-1 D^-1 with N = D^-1 L, and the n-th power of N is 0
        zeros, blocks = tl.zeros([shape.chunk, shape.chunk], tl.float32), halves(whole, shape)
        below = halves(tl.where(row[:, None] // 16 > row[None, :] // 16, system, 0.0), shape)
        below = product(blocks, below, zeros, shape)
        if n > 2:
            parts = halves(below, shape)
            square = product(parts, parts, zeros, shape)
            below = below - square + product(parts, halves(square, shape), zeros, shape)
        whole -= product(halves(below, shape), blocks, zeros, shape)
    return whole


@triton.jit
def solve_delta_kernel(
    q, k, alpha, beta, ssm_a, dt_bias, where, chunks, shape: tl.constexpr, PDL: tl.constexpr
):
    """A program writes what a head's chunk needs besides S: (I + A)^-1 diag(b), the scores d(j, i) (q_i . k_j), decays.

    The first of the heads that share a key head writes q and k in halves, too. Program (prompt, chunk, head).

    q, k           float32 [T, key_heads * keys]
    alpha, beta    float32 [T, heads], ssm_a and dt_bias [heads]: what decays and betas are made from, see `gates_of`
    where          a Sequences: its first `decodes` sequences have one token each and are left to another kernel
    chunks         a ChunkScores, which is written
    """
    begin(PDL)
    head, row = tl.program_id(2), tl.arange(0, shape.chunk)
    start, stop = tokens_of(where.decodes + tl.program_id(0), where)
    first = start + tl.program_id(1) * shape.chunk
    if first < stop:
        t, live = first + row, first + row < stop
        key_head, shares = key_head_of(head, shape)
        scores, system = (
            tl.zeros([shape.chunk, shape.chunk], tl.float32),
            tl.zeros([shape.chunk, shape.chunk], tl.float32),
        )
        for j in tl.static_range(0, shape.block_k, shape.part):
            i = j + tl.arange(0, shape.part)
            inside = live[:, None] & (i < shape.keys)[None, :]
            at = t[:, None] * (shape.key_heads * shape.keys) + (key_head * shape.keys + i)[None, :]
            keys = tl.load(
                k.data + t[:, None] * k.stride + (key_head * shape.keys + i)[None, :], mask=inside, other=0.0
            )
            store_halves(chunks.keys, at, keys, inside & (shares == 0), shape)
            keys = halves(keys, shape)
            system = product(keys, transposed(keys), system, shape)
            queries = tl.load(
                q.data + t[:, None] * q.stride + (key_head * shape.keys + i)[None, :], mask=inside, other=0.0
            )
            store_halves(chunks.queries, at, queries, inside & (shares == 0), shape)
            scores = product(halves(queries, shape), transposed(keys), scores, shape)
        g, b_beta = gates_of(alpha, beta, ssm_a, dt_bias, t, live, head)
        parts, small = g_cumsum(g)
        last = row == shape.chunk - 1
        left = tl.sum(tl.where(last, parts, 0.0), 0) - parts + (tl.sum(tl.where(last, small, 0.0), 0) - small)
        tl.store(chunks.exp_g + t * shape.heads + head, tl.exp(parts + small), mask=live)
        tl.store(chunks.exp_g_rest + t * shape.heads + head, tl.exp(left), mask=live)
        decay = parts[:, None] - parts[None, :] + (small[:, None] - small[None, :])
        decay = tl.exp(tl.where(row[:, None] >= row[None, :], decay, float("-inf")))  # [i, j]
        place = (t * shape.heads + head)[:, None] * shape.chunk + row[None, :]
        store_halves(chunks.scores, place, decay * scores, live[:, None], shape)
        system = tl.where(row[:, None] > row[None, :], b_beta[:, None] * decay * system, 0.0)
        store_halves(chunks.ut, place, inverse(system, shape) * b_beta[None, :], live[:, None], shape)


@triton.jit
def gated_delta_chunks_kernel(v, state, where, chunks, out, shape: tl.constexpr, PDL: tl.constexpr):
    """A program takes `block_v` columns of a head's matrix [keys, size] through the chunks of a sequence.

    Program (prompt, head, columns). v and out are float32 [T, heads * size], state float32 [slots, heads, keys, size],
    which is read unless the sequence begins here, and written; chunks is what `solve_delta_kernel` wrote.
    """
    begin(PDL)
    sequence, head = where.decodes + tl.program_id(0), tl.program_id(1)
    i, column = tl.arange(0, shape.block_k), tl.program_id(2) * shape.block_v + tl.arange(0, shape.block_v)
    has_key, has_column, row = i < shape.keys, column < shape.size, tl.arange(0, shape.chunk)
    start, stop = tokens_of(sequence, where)
    if start < stop:
        key_head, _ = key_head_of(head, shape)
        of_keys, of_values = key_head * shape.keys + i, head * shape.size + column
        slot, goes_on = state_of(sequence, start, where)
        place = state + (slot * shape.heads + head) * shape.keys * shape.size
        place += i[:, None] * shape.size + column[None, :]
        inside = has_key[:, None] & has_column[None, :]
        matrix = tl.load(place, mask=inside & goes_on, other=0.0)  # [block_k, block_v]
        zeros = tl.zeros([shape.chunk, shape.block_v], tl.float32)
        for first in range(start, stop, shape.chunk):
            t, live = first + row, first + row < stop
            at, these = t[:, None] * (shape.key_heads * shape.keys) + of_keys[None, :], live[:, None] & has_key[None, :]
            number, whole = t * shape.heads + head, halves(matrix, shape)
            square, written = number[:, None] * shape.chunk + row[None, :], live[:, None] & has_column[None, :]
            values = tl.load(v.data + t[:, None] * v.stride + of_values[None, :], mask=written, other=0.0)
            exp_g = tl.load(chunks.exp_g + number, mask=live, other=0.0)[:, None]
            exp_g_rest = tl.load(chunks.exp_g_rest + number, mask=live, other=0.0)[:, None]
            all_of_it = tl.load(chunks.exp_g + (tl.minimum(first + shape.chunk, stop) - 1) * shape.heads + head)
            keys = load_halves(chunks.keys, at, these)
            values -= exp_g * product(keys, whole, zeros, shape)
            ut = load_halves(chunks.ut, square, live[:, None])
            changes = product(ut, halves(values, shape), zeros, shape)  # [chunk, block_v]
            queries = load_halves(chunks.queries, at, these)
            rows = exp_g * product(queries, whole, zeros, shape)
            scores = load_halves(chunks.scores, square, live[:, None])
            rows = product(scores, halves(changes, shape), rows, shape)
            tl.store(out.data + t[:, None] * out.stride + of_values[None, :], rows, mask=written)
            matrix = product(transposed(keys), halves(exp_g_rest * changes, shape), all_of_it * matrix, shape)
        tl.store(place, matrix, mask=inside)
