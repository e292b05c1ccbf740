# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Attention where keys are values too, and many query heads share them: as products of small matrices.

Algorithm: multi-head latent attention with absorbed projections (DeepSeek-V2, arXiv 2405.04434), online softmax.
Tile:
    queries   [D, 16 heads]: a lane a head       keys of a page made float32, 32 rows at a time, in 8 KiB of the L1
    scores    [64, 16] += k * q[d]               soft-max along rows: no sum across lanes
    sums      [value_dim, 16] += v * weights     weights are at once the rows of the second product
Bound: instructions, 30 operations for a byte of cache and 16 heads: DeepSeek V2 Lite with 8,192 tokens in the cache
    decodes 9.3 tokens/s on two cores, reading 255 MB of it a step
    (bench/results/depth-deepseek-v2-lite-q4_k_m-2026-11-24.json).
Tried: nothing else.
Twin: `octavo.backends.reference.ops.attention`

16 query heads lie side by side, so that one number of a key, converted once, multiplies all of them. Keys of types
`int8` and `int4` are multiplied as integers (`mla_int8_kernel.py`). The latter stay rotated: queries are rotated
before, results back. Parts of some pages are attended to by themselves, and then joined in order, as in `kernel.py`.
"""

from __future__ import annotations

import math
from typing import Any

from octavo.backends.cpu.attention.cache_kernel import is_rotated
from octavo.backends.cpu.attention.cache_layout import ROW_SCALES, SCALES, SUMS, Kind, fetch, head_bytes
from octavo.backends.cpu.attention.kernel import ATTENTION, behind
from octavo.backends.cpu.attention.mla_int8_kernel import (
    LANES,
    nibble_score_function,
    nibble_value_function,
    pair_query_bytes,
    pair_score_function,
    pair_value_function,
    set_pair_queries,
)
from octavo.backends.cpu.attention.rotation import rotate, rotate_part_back
from octavo.backends.cpu.pointwise.math import soft_cap
from octavo.formats.rotation import block_of
from octavo.graph.node import PAGE_SIZE
from octavo.jit.argument_record import record
from octavo.jit.compile import exact, inner, kernels
from octavo.jit.simd import (
    add,
    div,
    exp,
    f32_pointer,
    fma,
    fma_blocks,
    fma_splat_strided,
    i32_pointer,
    load_block,
    load_e4m3x16,
    load_f16x16,
    load_f32x16,
    load_s8x16,
    maximum,
    mul,
    splat,
    stack,
    store_block,
    store_f32x16,
    sub,
    zeros,
)

CODED = ("int8", "int4")
"""Types whose keys are multiplied as integers."""
STATE = 2 * 4 * LANES
"""Bytes of a task's state: of each head the largest score and the sum of weights."""


def part_floats(dim: int, value_dim: int) -> int:
    """Floats that a task leaves for `combine_kernel`: sums [summed, LANES], and the state."""
    return _summed(dim, value_dim) * LANES + STATE // 4


def part_columns(kind: Kind, dim: int, value_dim: int) -> int:
    """Values of each head that a task of `combine_kernel` takes: of rotated ones whole blocks."""
    columns = math.gcd(value_dim, 64)
    return max(columns, block_of(dim)) if is_rotated(kind) else columns


@kernels(ATTENTION, long=True)
def latent_kernel(
    kind: Kind, group: int, dim: int, value_dim: int, windowed: bool, capped: bool, reaching: bool
) -> Any:
    """One task for each token, head of keys, split and 16 of its `group` query heads; these go through pages together.

    Values are the first `value_dim` of the `dim` values of a key. Where there are splits, each is one part. Heads that
    are missing of the last 16 repeat the last one.
    """
    parts, summed = -(-group // LANES), _summed(dim, value_dim)
    query_bytes, set_queries = _query_bytes(kind, dim), _query_function(kind, dim)
    attend, join = _attend(kind, dim, value_dim, windowed, capped, reaching), _join()
    rotated = is_rotated(kind)
    part_bytes, sum_bytes = 4 * part_floats(dim, value_dim), summed * 4 * LANES

    def latent_attention(a, task):
        kv_heads, splits = a.kv_heads, a.splits
        part, rest = task % parts, task // parts
        split, kv_head, token = rest % splits, rest // splits % kv_heads, rest // splits // kv_heads
        starts, positions = i32_pointer(a.starts), i32_pointer(a.positions)
        sequence, position = token, positions[token]
        seen, hidden = position + 1, 0
        if a.sequences > 0 and token >= starts[0]:  # one of a prompt
            prompt = 0
            while starts[prompt + 1] <= token:
                prompt += 1
            sequence = starts[0] + prompt
            if reaching:
                seen = min(seen + a.reach, positions[starts[prompt + 1] - 1] + 1)
        if windowed:
            hidden = max(0, position + 1 - behind(position, a.window, a.chunked))
        begin, end = hidden // PAGE_SIZE, (seen + PAGE_SIZE - 1) // PAGE_SIZE
        found = a.partial + task * part_bytes
        if splits > 1:
            begin, end = max(begin, split * a.part), min(end, (split + 1) * a.part)
            if begin >= end:  # nothing is there, and its sums are not looked at
                f32_pointer(found + sum_bytes + 4 * LANES)[0] = 0.0
                return
        head = kv_head * group + part * LANES
        count = min(LANES, (kv_head + 1) * group - head)
        queries, table = stack(query_bytes), a.pages + sequence * a.pages_width * 4
        set_queries(queries, a.q + token * a.q_stride + head * dim * 4, count, a.scale)
        if splits > 1:
            attend(found, found + sum_bytes, queries, a, table, kv_head, hidden, seen, begin, end)
            return
        sums, state, part_sums, part_state = stack(sum_bytes), stack(STATE), stack(sum_bytes), stack(STATE)
        stop = min(end, (begin // a.part + 1) * a.part)
        attend(sums, state, queries, a, table, kv_head, hidden, seen, begin, stop)
        while stop < end:
            first, stop = stop, min(end, stop + a.part)
            attend(part_sums, part_state, queries, a, table, kv_head, hidden, seen, first, stop)
            join(sums, state, part_sums, part_state, summed)
        row = token * kv_heads * group + head
        _turn_out(a.out, row, 0, value_dim, value_dim, sums, state, count, a.sinks, head)
        if rotated:
            _turn_back(a.out, row, 0, value_dim, value_dim, count, dim)

    return latent_attention


COMBINE = record("out partial splits", "sinks kv_heads")


@kernels(COMBINE)
def combine_kernel(kind: Kind, group: int, dim: int, value_dim: int) -> Any:
    """Joins the splits of one token, head of keys and 16 of its `group` query heads, of some of their values."""
    parts, columns = -(-group // LANES), part_columns(kind, dim, value_dim)
    chunks, part_bytes = value_dim // columns, 4 * part_floats(dim, value_dim)
    sum_bytes = part_bytes - STATE
    row, column_bytes, join = 4 * LANES, columns * 4 * LANES, _join()
    rotated = is_rotated(kind)

    def latent_combine(a, task):
        chunk, part, pair = task % chunks, task // chunks % parts, task // chunks // parts
        splits, stride = a.splits, parts * part_bytes
        found = a.partial + (pair * splits * parts + part) * part_bytes
        sums, state = stack(column_bytes), stack(STATE)
        for d in range(columns):
            store_f32x16(sums + d * row, splat(0.0))
        store_f32x16(state, splat(-math.inf))
        store_f32x16(state + row, splat(0.0))
        for _split in range(splits):
            if f32_pointer(found + sum_bytes + row)[0] != 0.0:
                join(sums, state, found + chunk * column_bytes, found + sum_bytes, columns)
            found += stride
        head = pair % a.kv_heads * group + part * LANES
        count = min(LANES, group - part * LANES)
        to, first = pair * group + part * LANES, chunk * columns
        _turn_out(a.out, to, first, columns, value_dim, sums, state, count, a.sinks, head)
        if rotated:
            _turn_back(a.out, to, first, columns, value_dim, count, dim)

    return latent_combine


def _join() -> Any:
    """A function that adds what was found in a part, sums [size, LANES] and their state, to what was found before."""
    row = 4 * LANES

    def join(sums, state, sums_of_part, state_of_part, size):
        mine, its = load_f32x16(state), load_f32x16(state_of_part)
        top = maximum(mine, its)
        store_f32x16(state, top)
        mine, its = exp(sub(mine, top)), exp(sub(its, top))
        store_f32x16(state + row, fma(load_f32x16(state_of_part + row), its, mul(load_f32x16(state + row), mine)))
        for d in range(0, size * row, row):
            more = load_f32x16(sums_of_part + d)
            store_f32x16(sums + d, fma(more, its, mul(load_f32x16(sums + d), mine)))

    return inner(join)


@exact
def _transpose_queries(queries, q, dim, count, scale):
    """queries [dim, LANES] = q [count, dim] times `scale`; lanes that are missing repeat the last one."""
    for i in range(LANES):
        source, target = f32_pointer(q + min(i, count - 1) * dim * 4), f32_pointer(queries + 4 * i)
        for d in range(dim):
            target[d * LANES] = source[d] * scale


@exact
def _turn_out(out, row, start, size, width, sums, state, count, sinks, head):
    """Values `start` on of rows of `width`: sums [size, LANES] over their totals, in which sinks from `head` on are."""
    weight = load_f32x16(state + 4 * LANES)
    if sinks != 0:
        scores = stack(64)
        for i in range(LANES):
            f32_pointer(scores)[i] = f32_pointer(sinks)[head + min(i, count - 1)]
        weight = add(weight, exp(sub(load_f32x16(scores), load_f32x16(state))))
    factor = div(splat(1.0), weight)
    for d in range(size):
        store_f32x16(sums + d * 64, mul(load_f32x16(sums + d * 64), factor))
    for i in range(count):
        target, source = f32_pointer(out + ((row + i) * width + start) * 4), f32_pointer(sums + 4 * i)
        for d in range(size):
            target[d] = source[d * LANES]


@exact
def _turn_back(out, row, start, size, width, count, dim):
    """Values `start` on of `count` rows of `width`, rotated as the first of `dim`, as they were before."""
    for i in range(count):
        rotate_part_back(out + ((row + i) * width + start) * 4, start, size, dim)


def _query_bytes(kind: Kind, dim: int) -> int:
    """Bytes of a task's queries."""
    return pair_query_bytes(dim) if kind in CODED else dim * 4 * LANES


def _query_function(kind: Kind, dim: int) -> Any:
    """A function (queries, q, count, scale): q [count, dim] times `scale` as `_score_function` reads queries."""
    all_bytes, rotated, coded = dim * 4 * LANES, is_rotated(kind), kind in CODED

    def set_queries(queries, q, count, scale):
        if not coded:
            _transpose_queries(queries, q, dim, count, scale)
            return
        floats = stack(all_bytes)
        if rotated:
            queries_of_all = stack(all_bytes)  # [LANES, dim]
            for i in range(count):
                rotate(queries_of_all + i * dim * 4, q + i * dim * 4, dim)
            q = queries_of_all
        _transpose_queries(floats, q, dim, count, scale)
        set_pair_queries(queries, floats, dim)

    return inner(set_queries, kind, dim)


def _attend(kind: Kind, dim: int, value_dim: int, windowed: bool, capped: bool, reaching: bool) -> Any:
    """A function that attends to pages `first` to `stop`, of which positions `hidden` to `seen` are visible.

    It leaves sums [summed, LANES] of weighted values, and in state [2, LANES] largest scores and sums of weights.
    """
    piece, summed = head_bytes(kind, dim), _summed(dim, value_dim)
    scores_of, add_values = _score_function(kind, dim), _value_function(kind, dim, value_dim)

    def weigh(scores, low, high, cap, state):
        """Scores [low to high, LANES] to weights e^(score - maximum); returns what earlier sums are to be times."""
        before = load_f32x16(state)
        top = before
        for r in range(low, high):
            score = load_f32x16(scores + r * 64)
            if capped:
                score = soft_cap(score, cap)
                store_f32x16(scores + r * 64, score)
            top = maximum(score, top)
        factor = exp(sub(before, top))
        total = mul(load_f32x16(state + 64), factor)
        for r in range(low, high):
            weight = exp(sub(load_f32x16(scores + r * 64), top))
            store_f32x16(scores + r * 64, weight)
            total = add(total, weight)
        store_f32x16(state, top)
        store_f32x16(state + 64, total)
        return factor

    weigh = inner(weigh, capped)

    def attend(sums, state, queries, a, pages, kv_head, hidden, seen, first, stop):
        scores, table, kv_heads = stack(4096), i32_pointer(pages), a.kv_heads
        store_f32x16(state, splat(-math.inf))
        store_f32x16(state + 64, splat(0.0))
        for d in range(summed):
            store_f32x16(sums + d * 64, splat(0.0))
        for page in range(first, stop):
            keys = a.keys + (table[page] * kv_heads + kv_head) * piece
            ahead = a.keys + (table[min(page + 1, stop - 1)] * kv_heads + kv_head) * piece
            low, high = max(0, hidden - page * PAGE_SIZE), min(seen - page * PAGE_SIZE, PAGE_SIZE)
            scores_of(scores, queries, keys, ahead, high)  # [64, LANES]
            factor = weigh(scores, low, high, a.cap, state)
            add_values(sums, scores, factor, keys, low, high)  # [summed, LANES]

    return inner(attend, kind, dim, value_dim, windowed, capped, reaching)


def _summed(dim: int, value_dim: int) -> int:
    """Values that are summed: whole chunks."""
    return -(-value_dim // _chunk_of(dim)) * _chunk_of(dim)


def _score_function(kind: Kind, dim: int) -> Any:
    """A function (scores, queries, page, ahead, rows): scores [64, LANES] = a page's keys times queries.

    Queries are [dim, LANES], but for CODED types. Scores past `rows` may be left as they were. What lies at `ahead` is
    read next and fetched meanwhile.
    """
    if kind in CODED:
        return nibble_score_function(dim) if kind == "int4" else pair_score_function(dim)
    chunk, tile, widen = _chunk_of(dim), SUMS, _widen_function(kind, _chunk_of(dim))
    header, step = _header_bytes(kind), _chunk_bytes(kind, dim)
    key_bytes = chunk * PAGE_SIZE * 4

    def scores_of(scores, queries, page, ahead, rows):
        keys = stack(key_bytes)  # [chunk, 64]
        fetch(ahead, header)
        for start in range(0, dim, chunk):
            place = header + start // chunk * step
            fetch(ahead + place, step)
            widen(keys, page + place, page)
            for r in range(0, rows, tile):
                at = scores + r * 64
                acc = zeros(tile)  # [tile, LANES]
                if start > 0:
                    acc = load_block(at, 64, tile)
                for d in range(chunk):
                    acc = fma_splat_strided(acc, load_f32x16(queries + (start + d) * 64), keys + d * 256 + r * 4, 4)
                store_block(at, 64, acc)

    return inner(scores_of, kind, dim)


def _value_function(kind: Kind, dim: int, value_dim: int) -> Any:
    """A function that adds a page's values, weighted, to sums [summed, LANES] scaled by factors [LANES].

    Its arguments: sums, weights [64, LANES], factors, where the page lies, the first row and the end of rows.
    """
    if kind in CODED:
        return nibble_value_function(dim, value_dim) if kind == "int4" else pair_value_function(dim, value_dim)
    chunk, tile, widen = _chunk_of(dim), SUMS, _widen_function(kind, _chunk_of(dim))
    header, step = _header_bytes(kind), _chunk_bytes(kind, dim)
    key_bytes = chunk * PAGE_SIZE * 4

    def add_values(sums, weights, factor, page, low, high):
        keys = stack(key_bytes)  # [chunk, 64]
        for start in range(0, value_dim, chunk):
            widen(keys, page + header + start // chunk * step, page)
            for d in range(0, chunk, tile):
                at = sums + (start + d) * 64
                acc = fma_blocks(zeros(tile), load_block(at, 64, tile), factor)  # [tile, LANES]
                for r in range(low, high):
                    acc = fma_splat_strided(acc, load_f32x16(weights + r * 64), keys + d * 256 + r * 4, 256)
                store_block(at, 64, acc)

    return inner(add_values, kind, dim, value_dim)


def _chunk_of(dim: int) -> int:
    """Values of each key that are made float32 at once, a page of them."""
    return math.gcd(dim, 32)


def _header_bytes(kind: Kind) -> int:
    """Bytes of a page's scales before all its numbers."""
    return ROW_SCALES if kind == "fp8" else 0


def _chunk_bytes(kind: Kind, dim: int) -> int:
    """Bytes of the values of a page that are made float32 at once."""
    return (head_bytes(kind, dim) - _header_bytes(kind)) * _chunk_of(dim) // dim


def _widen_function(kind: Kind, chunk: int) -> Any:
    """A function (out, at, scales): out [chunk, 64] = `chunk` values of a page's keys as float32.

    `scales` are those of a type whose keys have one each.
    """
    loads = {"f16": (load_f16x16, 32), "f32": (load_f32x16, 64), "q8_0": (load_s8x16, 16), "fp8": (load_e4m3x16, 16)}
    load, width = loads[kind]
    coded, scaled, runs = kind == "q8_0", kind == "fp8", 4 * chunk
    blocks, block_bytes = chunk // 32, SCALES + 32 * PAGE_SIZE

    def widen(out, at, scales):
        if coded:
            for block in range(blocks):
                here = at + block * block_bytes
                for part in range(4):
                    scale = load_f16x16(here + 32 * part)
                    for d in range(32):
                        codes = load(here + SCALES + d * PAGE_SIZE + part * width)
                        store_f32x16(out + (block * 32 + d) * 256 + part * 64, mul(codes, scale))
        elif scaled:
            for part in range(4):
                scale = load_f32x16(scales + 64 * part)
                for d in range(chunk):
                    store_f32x16(out + d * 256 + part * 64, mul(load(at + d * PAGE_SIZE + part * width), scale))
        else:
            for i in range(runs):
                store_f32x16(out + i * 64, load(at + i * width))

    return inner(widen, kind, chunk)
