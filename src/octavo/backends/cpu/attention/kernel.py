# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Attention over the paged KV cache, page by page.

Algorithm: online softmax (Milakov and Gimelshein, arXiv 1805.02867), FlashAttention's loop (arXiv 2205.14135) on
    vectors; flash-decoding's split of a sequence's pages among tasks.
Tile:
    decode   task (token, key head, split): n queries [n, D] are the heads that share a key head
    prefill  task (8 tokens, query head): n queries are these tokens
    pages    | 64 positions | 64 | ...    scores [n, 64] -> maximum, exp -> sums [n, D] += weights * values
Bound: bytes of the cache when decoding: 16 heads on 8 of 128 at depth 16,384 take 5.3 ms on a core of a Xeon (AVX-512)
    with an f16 cache in memory, 1.9 with one in the L1 (docs/log.md, "Attention of one token waited for scales and for
    lines fetched in leaps"). Instructions for prompts, not measured by themselves.
Tried: docs/log.md: "Attention of one token waited for scales and for lines fetched in leaps"; "A KV cache in small
    memory pages costs more than reading it".
Twin: `octavo.backends.reference.ops.attention`

A page is 64 positions (`cache_layout.py` says how it is laid out). n queries share each page that is read.

A sequence's pages are divided into parts, each of which is attended to by itself; the results are joined in order. When
decoding, parts are tasks of their own (splits), which `combine_kernel` joins. Where a part begins depends on positions
alone, so decode and prefill give the same numbers, bit for bit, whatever else is in a step.
"""

from __future__ import annotations

import math
from typing import Any

from numba import float32

from octavo.backends.cpu.attention.cache_kernel import (
    is_rotated,
    query_bytes,
    query_function,
    score_function,
    value_function,
)
from octavo.backends.cpu.attention.cache_layout import Kind, head_bytes
from octavo.backends.cpu.attention.rotation import rotate_back
from octavo.backends.cpu.pointwise.math import soft_cap
from octavo.graph.node import PAGE_SIZE
from octavo.jit.argument_record import record
from octavo.jit.compile import exact, inner, kernels
from octavo.jit.simd import (
    exp,
    f32_pointer,
    i32_pointer,
    load_f32x16,
    max_lanes,
    maximum,
    mul,
    splat,
    stack,
    store_f32x16,
    sub,
    sum_lanes,
)

TILE = 8  # tokens of a tile where a sequence has many


ATTENTION = record(
    "out q q_stride heads tokens",
    "keys values kv_heads scale:f4",
    "positions starts sequences",
    "pages pages_width",
    "splits part partial",
    "window cap:f4 reach",
    "sinks chunked",
    "k_scales v_scales slopes",
)
"""out, q           float32 [tokens, heads, D]; a token of q begins q_stride bytes after the one before
heads            of queries
keys, values     the cache's pages, with kv_heads each (`cache_layout.py` says how they lie)
scale            what scores are multiplied with
positions        int32, of each token
starts           int32 [sequences + 1], the first token of each sequence; when decoding, sequence s has token s
pages            int32 [sequences, pages_width], the pages of each sequence
splits           tasks that share a sequence's pages, when decoding
part, partial    pages of a part, and memory for the sums and states of each split
window           how many positions a token sees, if the kernel is windowed
cap              what scores stay below (a soft cap), if it is capped
reach            how many positions after its own a token sees, if it is reaching
sinks            float32 [heads], scores that have no values, or 0
chunked          1 where windows are fixed chunks, and a token sees those positions of its own chunk
k_scales         float32 [kv_heads], static scales of keys as they are loaded, or 0; v_scales those of values
slopes           float32 [heads], what scores lose for each position between query and key, if it is sloped (ALiBi)
"""


@exact
def behind(position, window, chunked):
    """How many positions a token sees, up to and including its own."""
    return position % window + 1 if chunked else window


@exact
def scale_of(scales, head):
    """The static scale of a head, 1 where there are none."""
    return f32_pointer(scales)[head] if scales != 0 else float32(1.0)


@kernels(ATTENTION, long=True)
def decode_kernel(kind: Kind, group: int, dim: int, windowed: bool, capped: bool, sloped: bool = False) -> Any:
    """One task for each token, key head and split. `group` query heads share a key head of `dim` values."""
    attend, finish = _attend(kind, group, dim, windowed, capped, 0, False, sloped), finish_function(kind, group, dim, 1)
    nbytes, state_bytes = group * dim * 4, group * 16

    def attention_decode(a, task):
        kv_heads, splits = a.kv_heads, a.splits
        split, head, token = task % splits, task // splits % kv_heads, task // splits // kv_heads
        position = i32_pointer(a.positions)[token]
        begin, end = 0, position // PAGE_SIZE + 1
        if windowed:
            begin = max(0, position + 1 - behind(position, a.window, a.chunked)) // PAGE_SIZE
        first, stop = max(begin, split * a.part), min(end, (split + 1) * a.part)
        q = a.q + token * a.q_stride + head * nbytes
        pages = a.pages + token * a.pages_width * 4
        if splits == 1:
            sums, states = stack(nbytes), stack(state_bytes)
            attend(sums, states, q, dim * 4, a, pages, head, position, position, group, first, stop)
            unit = scale_of(a.v_scales, head)
            out = a.out + (token * kv_heads + head) * nbytes
            finish(out, dim * 4, sums, states, group, a.sinks, head * group, unit)
        elif first >= stop and split > 0:  # an empty part, which `combine_kernel` skips: its sum of weights is 0
            state = f32_pointer(a.partial + task * (nbytes + state_bytes) + nbytes)
            for i in range(group):
                state[4 * i + 1] = 0.0
        else:
            part = a.partial + task * (nbytes + state_bytes)
            attend(part, part + nbytes, q, dim * 4, a, pages, head, position, position, group, first, stop)

    return attention_decode


COMBINE = record("out partial splits", "sinks kv_heads v_scales")


@kernels(COMBINE)
def combine_kernel(kind: Kind, group: int, dim: int) -> Any:
    """Joins the splits of one token and key head; the fields are those of `ATTENTION`."""
    finish, join = finish_function(kind, group, dim, 1), _join(dim)
    nbytes, state_bytes = group * dim * 4, group * 16

    def attention_combine(a, task):
        splits = a.splits
        first = a.partial + task * splits * (nbytes + state_bytes)
        for split in range(1, splits):
            part = first + split * (nbytes + state_bytes)
            for i in range(group):
                join(first + i * dim * 4, first + nbytes + 16 * i, part + i * dim * 4, part + nbytes + 16 * i)
        head, out = task % a.kv_heads, a.out + task * nbytes
        finish(out, dim * 4, first, first + nbytes, group, a.sinks, head * group, scale_of(a.v_scales, head))

    return attention_combine


def _join(dim: int) -> Any:
    """A function that adds what one query found in a part, a sum [dim] and its state, to what it found before."""

    def join(sums, state_at, sums_of_part, state_of_part):
        state, other = f32_pointer(state_at), f32_pointer(state_of_part)
        if other[1] != 0.0:
            top = max(state[0], other[0])
            mine, its = math.exp(state[0] - top), math.exp(other[0] - top)
            state[0], state[1] = top, state[1] * mine + other[1] * its
            total, more = f32_pointer(sums), f32_pointer(sums_of_part)
            for d in range(dim):
                total[d] = total[d] * mine + more[d] * its

    return inner(join, dim)


@kernels(ATTENTION, long=True)
def prefill_kernel(kind: Kind, dim: int, windowed: bool, capped: bool, reaching: bool, sloped: bool) -> Any:
    """One task for each tile of `TILE` tokens and query head, however many share a key head; it joins parts itself."""
    attend = _attend(kind, TILE, dim, windowed, capped, 1, reaching, sloped)
    finish, join = finish_function(kind, TILE, dim, 0), _join(dim)
    tile, nbytes, state_bytes = TILE, TILE * dim * 4, TILE * 16

    def attention_prefill(a, task):
        heads, group = a.heads, a.heads // a.kv_heads
        starts, positions = i32_pointer(a.starts), i32_pointer(a.positions)
        head, first = task % heads, starts[0] + task // heads * tile
        stop = min(first + tile, a.tokens)
        width, q_stride = heads * dim * 4, a.q_stride
        sums, states, part_sums, part_states = stack(nbytes), stack(state_bytes), stack(nbytes), stack(state_bytes)
        for sequence in range(a.sequences):
            begin, end = max(first, starts[sequence]), min(stop, starts[sequence + 1])
            if begin < end:
                count, position = end - begin, positions[begin]
                q = a.q + begin * q_stride + head * dim * 4
                pages = a.pages + sequence * a.pages_width * 4
                last, final, kv_head = position + count - 1, 0, head // group
                if reaching:
                    final = positions[starts[sequence + 1] - 1]
                    last = min(last + a.reach, final)
                first_page, last_page = 0, last // PAGE_SIZE + 1
                if windowed:
                    first_page = max(0, position + 1 - behind(position, a.window, a.chunked)) // PAGE_SIZE
                end_page = min(last_page, (first_page // a.part + 1) * a.part)
                attend(sums, states, q, q_stride, a, pages, head, position, final, count, first_page, end_page)
                while end_page < last_page:
                    from_page, end_page = end_page, min(last_page, end_page + a.part)
                    attend(
                        part_sums, part_states, q, q_stride, a, pages, head, position, final, count,
                        from_page, end_page,
                    )
                    for i in range(count):
                        at, state_at = i * dim * 4, i * 16
                        join(sums + at, states + state_at, part_sums + at, part_states + state_at)
                unit = scale_of(a.v_scales, kv_head)
                finish(a.out + begin * width + head * dim * 4, width, sums, states, count, a.sinks, head, unit)

    return attention_prefill


def finish_function(kind: Kind, n: int, dim: int, step: int) -> Any:
    """A function that divides the first `count` of n sums [n, dim] by their totals and writes them to `out`.

    With sinks, the i-th total includes that of head + i * step. Values are multiplied with `unit`, and rotated back
    where the cache has them rotated.
    """
    rotated = is_rotated(kind)

    def finish(out, out_stride, sums, states, count, sinks, head, unit):
        for i in range(count):
            y, total = f32_pointer(out + i * out_stride), f32_pointer(sums + i * dim * 4)
            state = f32_pointer(states + 16 * i)
            weight = state[1]
            if sinks != 0:
                weight += math.exp(f32_pointer(sinks)[head + i * step] - state[0])
            factor = unit / weight
            for d in range(dim):
                y[d] = total[d] * factor
            if rotated:
                rotate_back(out + i * out_stride, dim)

    return inner(finish, rotated, n, dim, step)


def mask_function(windowed: bool, capped: bool) -> Any:
    """A function (scores, hidden, seen, scale, cap) -> what scores [64] of a query are still to be multiplied with.

    It caps them, and makes those before position `hidden` of the page and from `seen` on -inf.
    """
    page_size = PAGE_SIZE

    def mask(scores, hidden, seen, scale, cap):
        xs = f32_pointer(scores)
        if capped:
            for i in range(0, 256, 64):
                store_f32x16(scores + i, soft_cap(mul(load_f32x16(scores + i), splat(scale)), cap))
            scale = float32(1.0)
        if windowed:
            for i in range(min(hidden, page_size)):
                xs[i] = -math.inf
        for i in range(max(0, seen), page_size):
            xs[i] = -math.inf
        return scale

    return inner(mask, windowed, capped)


def _attend(kind: Kind, n: int, dim: int, windowed: bool, capped: bool, step: int, reaching: bool, sloped: bool) -> Any:
    """A function that attends to pages `first` to `stop` with `count` of n queries, the i-th at `position` + i * step.

    `head` is that of the queries (step 1: n tokens of a head), or that of the keys (step 0: n heads of a token). If it
    is reaching, a query sees that much further, up to position `final`.

    It leaves sums [n, dim] of weighted values, and in states [n, 4] of each query the largest score, the sum of
    weights, and what its earlier sums were last multiplied with.
    """
    piece, page_floats, score_bytes, each = head_bytes(kind, dim), PAGE_SIZE, n * PAGE_SIZE * 4, query_bytes(kind, dim)
    scores_of, add_values, set_query = (
        score_function(kind, n, dim),
        value_function(kind, n, dim),
        query_function(kind, dim),
    )
    all_bytes, mask = n * each, mask_function(windowed, capped)

    def weigh(scores, hidden, seen, scale, cap, state):
        """Turn scores [64] of one query into weights e^(score - maximum); see `_attend` for its state.

        Weights are 0 before position `hidden` of the page and from `seen` on.
        """
        wide = splat(mask(scores, hidden, seen, scale, cap))
        a, b = mul(load_f32x16(scores), wide), mul(load_f32x16(scores + 64), wide)  # [16] each
        c, d = mul(load_f32x16(scores + 128), wide), mul(load_f32x16(scores + 192), wide)
        top = max(state[0], max_lanes(maximum(maximum(a, b), maximum(c, d))))
        largest = top  # stays -inf while a window hides all
        if top == -math.inf:
            top = float32(0.0)
        wide = splat(top)
        a, b, c, d = exp(sub(a, wide)), exp(sub(b, wide)), exp(sub(c, wide)), exp(sub(d, wide))
        store_f32x16(scores, a)
        store_f32x16(scores + 64, b)
        store_f32x16(scores + 128, c)
        store_f32x16(scores + 192, d)
        factor = math.exp(state[0] - top)
        state[0] = largest if windowed else top
        state[1] = state[1] * factor + sum_lanes(a) + sum_lanes(b) + sum_lanes(c) + sum_lanes(d)
        state[2] = factor

    weigh = inner(weigh, windowed, capped)

    def attend(sums, states, q, q_stride, a, pages, head, position, final, count, first, stop):
        kv_heads, scale = a.kv_heads, a.scale
        kv_head = head // (a.heads // kv_heads) if step else head
        window, cap = (a.window if windowed else 0), (a.cap if capped else float32(0.0))
        scores, queries = stack(score_bytes), stack(all_bytes)
        state, total, table = f32_pointer(states), f32_pointer(sums), i32_pointer(pages)
        unit = scale_of(a.k_scales, kv_head)
        for i in range(n * dim):
            total[i] = 0.0
        for i in range(n):
            state[4 * i], state[4 * i + 1], state[4 * i + 2] = -math.inf, 0.0, 1.0
            # Queries past `count` repeat the last one, so that every address is one that may be read.
            set_query(queries + i * each, q + min(i, count - 1) * q_stride, unit)
        last = position + (count - 1) * step
        if reaching:
            last = min(last + a.reach, final)
        last_page = last // page_floats  # pages after `stop`, too, are fetched ahead: likely the next task's
        for page in range(first, stop):
            keys = a.keys + (table[page] * kv_heads + kv_head) * piece
            values = a.values + (table[page] * kv_heads + kv_head) * piece
            next_keys = a.keys + (table[min(page + 1, last_page)] * kv_heads + kv_head) * piece
            rows = min(last + 1 - page * page_floats, page_floats)
            scores_of(scores, queries, keys, values, rows)  # [n, PAGE_SIZE]
            for i in range(n):
                here = position + min(i, count - 1) * step
                seen, state_of_query = here + 1 - page * page_floats, f32_pointer(states + 16 * i)
                hidden = seen - (behind(here, window, a.chunked) if windowed else 0)
                if sloped:
                    slope = float32(f32_pointer(a.slopes)[head if step else head * n + i] / scale)
                    xs, place = f32_pointer(scores + i * 256), here - page * page_floats
                    for j in range(page_floats):
                        xs[j] -= slope * float32(abs(j - place))
                if reaching:
                    seen = min(seen + a.reach, final + 1 - page * page_floats)
                weigh(scores + i * 256, hidden, min(seen, page_floats), scale, cap, state_of_query)
            add_values(sums, scores, states + 8, values, next_keys, rows)  # [n, dim]

    return inner(attend, kind, n, dim, windowed, capped, step, reaching, sloped)
