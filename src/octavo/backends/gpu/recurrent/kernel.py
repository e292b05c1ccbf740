# mypy: ignore-errors
"""Layers with a state, token by token: causal convolutions, the gated delta rule, and selective scans.

Algorithm: the recurrent form of the gated delta rule (arXiv 2412.06464; fla's `fused_recurrent_gated_delta_rule`), of
    Mamba-2 (arXiv 2405.21060) and of Mamba's selective scan (arXiv 2312.00752); causal conv1d.
Tile:
    program (sequence, head, columns)     S [keys, block_v] in registers; for each token: S = decay S + k u^T, y = S^T q
Bound: bytes, of reading and writing the state, for one token; latency for prompts, which `gated_delta_chunks_kernel`
    and `mamba2_chunks_kernel` take in chunks. Not measured as a share.
Tried: nothing else.
Twin: `octavo.backends.reference.state_ops.causal_conv`, `octavo.backends.reference.state_ops.gated_delta_rule`,
    `octavo.backends.reference.state_ops.selective_scan`, `octavo.backends.reference.state_ops.channel_scan`

Columns of a head's matrix do not depend on each other. A program goes through the tokens of a sequence in order, so
results are the same however a sequence is divided among steps; so they are of convolutions, whose tokens need no order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.pointwise.kernel import begin


@triton.jit
def tokens_of(sequence, where):
    """The first token of a sequence and the one after its last, int64; the first sequences own a token each."""
    own = sequence - where.decodes
    start = tl.load(where.starts + own, mask=own >= 0, other=0)
    stop = tl.load(where.starts + own + 1, mask=own >= 0, other=0)
    start, stop = tl.where(own >= 0, start, sequence), tl.where(own >= 0, stop, sequence + 1)
    return start.to(tl.int64), stop.to(tl.int64)


@triton.jit
def state_of(sequence, start, where):
    """The slot of a sequence, int64, and whether it goes on with what is there."""
    return tl.load(where.slots + sequence).to(tl.int64), tl.load(where.positions + start) > 0


@triton.jit
def key_head_of(head, shape: tl.constexpr):
    """The head of q and k of a head of values, and this one's number among the heads that share it."""
    if shape.tiled:
        return head % shape.key_heads, head // shape.key_heads
    return head // shape.group, head % shape.group


@triton.jit
def soft_plus(x):
    return tl.maximum(x, 0.0) + tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def gates_of(alpha, beta, ssm_a, dt_bias, t, live, head):
    """The logarithm of a head's decay at tokens t, `g`, and their beta; 0 where there is none."""
    raw = tl.load(alpha.data + t * alpha.stride + head, mask=live, other=0.0) + tl.load(dt_bias + head)
    b_beta = beta_of(beta, t, live, head)
    return tl.where(live, tl.load(ssm_a + head) * soft_plus(raw), 0.0), tl.where(live, b_beta, 0.0)


@triton.jit
def row_g_of(alpha, ssm_a, dt_bias, t, has_key, head, i, shape: tl.constexpr):
    """The logarithms of decays of rows i of a head's matrix at a token."""
    at = head * shape.keys + i
    raw = tl.load(alpha.data + t * alpha.stride + at, mask=has_key, other=0.0)
    return tl.load(ssm_a + head) * soft_plus(raw + tl.load(dt_bias + at, mask=has_key, other=0.0))


@triton.jit
def beta_of(beta, t, live, head):
    """The beta of tokens t for a head, of what was projected for it; anything where there is none."""
    return 1 / (1 + tl.exp(-tl.load(beta.data + t * beta.stride + head, mask=live, other=0.0)))


@triton.jit
def steps_of(dt, ssm_a, dt_bias, t, live, head):
    """The logarithm of a head's decay at tokens t of a selective scan, and their steps; 0 where there is none."""
    step = soft_plus(tl.load(dt.data + t * dt.stride + head, mask=live, other=0.0) + tl.load(dt_bias + head))
    return tl.where(live, tl.load(ssm_a + head) * step, 0.0), tl.where(live, step, 0.0)


@triton.jit
def causal_conv_kernel(x, taps, bias, state, where, out, channels, shape: tl.constexpr, PDL: tl.constexpr):
    """A program sums `block` channels' last K values times taps [K, F, channels] for some tokens of a sequence.

    K is the width and F the filters; bias [F, channels] may be None.

    state [slots, K - 1, channels] has the values before them, and then the last ones. Only a sequence's first program
    reads it, and writes it afterwards, so that each of several programs has to have K - 1 tokens at least.
    """
    begin(PDL)
    sequence, at = tl.program_id(0), tl.program_id(1) * shape.block + tl.arange(0, shape.block)
    inside = at < channels
    start, stop = tokens_of(sequence, where)
    first = start + tl.program_id(2) * shape.tokens
    if first < stop:
        slot, goes_on = state_of(sequence, start, where)
        row, rows = state + slot * (shape.width - 1) * channels + at, x.data + at
        t = first + tl.arange(0, shape.tokens)[:, None]
        live = inside[None, :] & (t < stop)
        for made in tl.static_range(shape.filters):
            total = tl.zeros([shape.tokens, shape.block], tl.float32)
            for j in tl.static_range(shape.width):
                source = t - (shape.width - 1) + j
                value = tl.load(rows[None, :] + source * x.stride, mask=live & (source >= start), other=0.0)
                kept = live & goes_on & (source < start)
                value += tl.load(row[None, :] + (source - start + shape.width - 1) * channels, mask=kept, other=0.0)
                tap = tl.load(taps + (j * shape.filters + made) * channels + at, mask=inside, other=0.0)
                total += value * tap[None, :]
            if bias is not None:
                total += tl.load(bias + made * channels + at, mask=inside, other=0.0)[None, :]
            if shape.silu:
                total = total / (1 + tl.exp(-total))
            tl.store(out.data + t * out.stride + made * channels + at[None, :], total, mask=live)
        if first == start:
            tl.debug_barrier()  # other threads have read what is written now
            for i in tl.static_range(shape.width - 1):
                last = stop - (shape.width - 1) + i
                rest = tl.load(rows + last * x.stride, mask=inside & (last >= start), other=0.0)  # [block]
                older = inside & goes_on & (last < start)
                rest += tl.load(row + (last - start + shape.width - 1) * channels, mask=older, other=0.0)
                tl.store(row + i * channels, rest, mask=inside)


@triton.jit
def gated_delta_rule_kernel(
    q, k, v, alpha, beta, ssm_a, dt_bias, state, where, out, shape: tl.constexpr, PDL: tl.constexpr
):
    """A program takes `block_v` columns of a head's matrix [keys, size] through the tokens of a sequence."""
    begin(PDL)
    sequence, head = tl.program_id(0), tl.program_id(1)
    i, column = tl.arange(0, shape.block_k), tl.program_id(2) * shape.block_v + tl.arange(0, shape.block_v)
    has_key, has_column = i < shape.keys, column < shape.size
    start, stop = tokens_of(sequence, where)
    if start < stop:
        of_keys = key_head_of(head, shape)[0] * shape.keys + i
        of_values = head * shape.size + column
        slot, goes_on = state_of(sequence, start, where)
        place = (
            state + (slot * shape.heads + head) * shape.keys * shape.size + i[:, None] * shape.size + column[None, :]
        )
        inside = has_key[:, None] & has_column[None, :]
        matrix = tl.load(place, mask=inside & goes_on, other=0.0)  # [block_k, block_v]
        for t in range(start, stop):
            if shape.by_row:
                g = row_g_of(alpha, ssm_a, dt_bias, t, has_key, head, i, shape)[:, None]  # [block_k, 1]
                b_beta = beta_of(beta, t, True, head)
            else:
                g, b_beta = gates_of(alpha, beta, ssm_a, dt_bias, t, True, head)
            key = tl.load(k.data + t * k.stride + of_keys, mask=has_key, other=0.0)[:, None]  # [block_k, 1]
            query = tl.load(q.data + t * q.stride + of_keys, mask=has_key, other=0.0)[:, None]
            value = tl.load(v.data + t * v.stride + of_values, mask=has_column, other=0.0)  # [block_v]
            matrix = matrix * tl.exp(g)
            matrix += key * (b_beta * (value - tl.sum(matrix * key, 0)))[None, :]
            tl.store(out.data + t * out.stride + of_values, tl.sum(matrix * query, 0), mask=has_column)
        tl.store(place, matrix, mask=inside)


@triton.jit
def selective_scan_kernel(
    x, b, c, dt, ssm_a, dt_bias, ssm_d, state, where, out, shape: tl.constexpr, PDL: tl.constexpr
):
    """A program takes `block_v` columns of a head's matrix [keys, size] through the tokens of a sequence."""
    begin(PDL)
    sequence, head = tl.program_id(0), tl.program_id(1)
    i, column = tl.arange(0, shape.block_k), tl.program_id(2) * shape.block_v + tl.arange(0, shape.block_v)
    has_key, has_column = i < shape.keys, column < shape.size
    start, stop = tokens_of(sequence, where)
    if start < stop:
        of_keys, of_values = head // shape.group * shape.keys + i, head * shape.size + column
        slot, goes_on = state_of(sequence, start, where)
        place = state + (slot * shape.heads + head) * shape.keys * shape.size
        place += i[:, None] * shape.size + column[None, :]
        inside = has_key[:, None] & has_column[None, :]
        matrix, d = tl.load(place, mask=inside & goes_on, other=0.0), tl.load(ssm_d + head)
        for t in range(start, stop):
            g, step = steps_of(dt, ssm_a, dt_bias, t, True, head)
            before = tl.load(b.data + t * b.stride + of_keys, mask=has_key, other=0.0)[:, None]  # [block_k, 1]
            after = tl.load(c.data + t * c.stride + of_keys, mask=has_key, other=0.0)[:, None]
            value = tl.load(x.data + t * x.stride + of_values, mask=has_column, other=0.0)  # [block_v]
            matrix = matrix * tl.exp(g) + before * (step * value)[None, :]
            row = tl.sum(matrix * after, 0) + d * value
            tl.store(out.data + t * out.stride + of_values, row, mask=has_column)
        tl.store(place, matrix, mask=inside)


@triton.jit
def channel_scan_kernel(
    x, b, c, dt, ssm_a, ssm_d, state, where, out, shape: tl.constexpr, PDL: tl.constexpr
):
    """A program takes the numbers of each of `block` channels through a sequence, in registers [block_k, block]."""
    begin(PDL)
    sequence, i = tl.program_id(0), tl.arange(0, shape.block_k)
    column = tl.program_id(1) * shape.block + tl.arange(0, shape.block)
    has_key, has_column = i < shape.keys, column < shape.channels
    start, stop = tokens_of(sequence, where)
    if start < stop:
        slot, goes_on = state_of(sequence, start, where)
        inside, at = has_key[:, None] & has_column[None, :], i[:, None] * shape.channels + column[None, :]
        place = state + slot * shape.keys * shape.channels + at
        matrix = tl.load(place, mask=inside & goes_on, other=0.0)  # [block_k, block]
        rate = tl.load(ssm_a + at, mask=inside, other=0.0)
        d = tl.load(ssm_d + column, mask=has_column, other=0.0)
        for t in range(start, stop):
            step = soft_plus(tl.load(dt.data + t * dt.stride + column, mask=has_column, other=0.0))  # [block]
            value = tl.load(x.data + t * x.stride + column, mask=has_column, other=0.0)
            before = tl.load(b.data + t * b.stride + i, mask=has_key, other=0.0)[:, None]  # [block_k, 1]
            after = tl.load(c.data + t * c.stride + i, mask=has_key, other=0.0)[:, None]
            matrix = matrix * tl.exp(rate * step[None, :]) + before * (step * value)[None, :]
            row = tl.sum(matrix * after, 0) + d * value
            tl.store(out.data + t * out.stride + column, row, mask=has_column)
        tl.store(place, matrix, mask=inside)
