"""Rows through encoders' kernels, on several threads: which kernel encodes a format, and how wide it searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats import BlockFormat, Planes, pack
from octavo.formats.codebook import SIGNED, gather, parity, spread
from octavo.formats.codec import chunks
from octavo.formats.spec import F32, U8, AnyArray
from octavo.jit.prepare import end_progress, prepare
from octavo.quantizers.encoding.kernels.recipe import LEAST_IMPORTANCE, Recipe
from octavo.quantizers.encoding.packing import block_layout

SPREAD = {False: 0.25, True: 2.0}
"""What is added to a value's square, in mean squares of its super-block, without importance weights and with them."""

Search = Literal["affine", "one_affine", "symmetric", "one_scale", "exponent"]
F16_MAX = 65504.0
CHUNK = 1 << 18  # values encoded at a time
STEPS = 20
RANGES = {(8, False): (0.95, 7.4), (4, False): (7.0, 21.0), (8, True): (0.8, 3.6)}
"""Where a group's largest value may lie in units of its scale, by width of points and whether they share marks."""
SHARE = 1 << 14
"""Values of a task, about: some 0.1 ms of work."""
LANES = 16


@dataclass(frozen=True)
class Width:
    """How wide a search is: see `Recipe`. `below` is where the first guesses begin, by the number of levels."""

    steps: int
    below: float
    above: float
    trials: int
    refits: int
    reach: int


WIDTHS: dict[Search, Width] = {
    "affine": Width(18, 0.15, 1.0, trials=2, refits=2, reach=2),
    "one_affine": Width(32, 0.15, 1.0, trials=1, refits=2, reach=0),
    "symmetric": Width(18, 0.25, 1.0, trials=6, refits=2, reach=2),
    "one_scale": Width(28, 0.17, 1.0, trials=1, refits=2, reach=0),
    "exponent": Width(1, 0.0, 0.0, trials=3, refits=0, reach=0),
}


def extremes_rule(fmt: BlockFormat) -> Literal["peak", "range", "largest"] | None:
    """How the reference takes scales from a block's extremes, for one-level integer codes; else None."""
    if fmt.table or fmt.super != fmt.group:
        return None
    if fmt.has_min:
        return "range"
    return "largest" if fmt.bits == 8 else "peak"


def search_of(fmt: BlockFormat) -> Search:
    """The search that a block format's scales want."""
    one_level = fmt.super == fmt.group
    if fmt.has_min:
        return "one_affine" if one_level else "affine"
    if not one_level:
        return "symmetric"
    return "one_scale" if block_layout(fmt).scale_at >= 0 else "exponent"


def make_recipe(fmt: BlockFormat, *, weighted: bool) -> Recipe:
    """What the kernel of `search_of` is made for."""
    search, layout = search_of(fmt), block_layout(fmt)
    width = WIDTHS[search]
    low, high = _levels(fmt)
    span = (high - low) / ((1 << fmt.bits) - 1)  # levels from one code to the next
    first = -span * (0.5 + width.below * (high - low if fmt.has_min else -low) / span)
    step = (span * width.above - first) / max(1, width.steps - 1)
    two_levels = (1 << fmt.scale_bits) - 1 if fmt.has_min else 1 << max(0, fmt.scale_bits - 1)
    spread = None if search == "exponent" else SPREAD[weighted]
    return Recipe(low, high, fmt.table, fmt.group, fmt.super // fmt.group, two_levels if fmt.scale_bits else 0,
                  fmt.has_min, weighted, spread, width.steps, first, step, width.trials, width.refits, width.reach,
                  layout)


def _levels(fmt: BlockFormat) -> tuple[int, int]:
    """The lowest and the highest level of a code."""
    if fmt.table:
        return min(fmt.table), max(fmt.table)
    return -fmt.offset, (1 << fmt.bits) - 1 - fmt.offset


def search_kernel(fmt: BlockFormat, *, weighted: bool) -> Any:
    """The compiled kernel that searches for a format's scales."""
    from octavo.quantizers.encoding.kernels import affine, symmetric

    kernels = {
        "affine": affine.affine_kernel,
        "one_affine": affine.one_affine_kernel,
        "symmetric": symmetric.symmetric_kernel,
        "one_scale": symmetric.one_scale_kernel,
        "exponent": symmetric.exponent_kernel,
    }
    return kernels[search_of(fmt)](make_recipe(fmt, weighted=weighted))


def is_searched_in_points(fmt: BlockFormat) -> bool:
    """Whether a format has a grid or three levels."""
    return fmt.codebook is not None or (fmt.bits == 2 and fmt.offset == 1)


def encode_blocks(rows: F32, fmt: BlockFormat, importance: F32 | None, threads: int) -> U8:
    """Finite rows [rows, K] as packed blocks, uint8 [rows, bytes of a row]; `importance` is above 0 everywhere.

    Raises QuantFormatError for a value beyond the range of the format.
    """
    blocks = rows.reshape(-1, fmt.block)
    out = np.empty((len(blocks), fmt.block_bytes), np.uint8)
    of_row = None if importance is None else importance.reshape(-1, fmt.block)
    encode = ternary if fmt.codebook is None else on_grid
    for part in chunks(len(blocks), fmt.block, CHUNK):
        x, here = blocks[part], None
        if of_row is not None:
            here = of_row[np.arange(part.start, part.stop) % len(of_row)]
            x = _clipped(x, here, fmt.group)
        _require_range(x, fmt)
        planes = encode(fmt, x, _weights(x, here), threads)
        out[part] = pack(planes, fmt).reshape(-1, fmt.block_bytes)
    return out.reshape(len(rows), -1)


def _require_range(x: F32, fmt: BlockFormat) -> None:
    largest = float(np.abs(x).max(initial=0))
    values = 1.0 if fmt.table is None else max(fmt.table) * fmt.step * (2 * (1 << fmt.scale_bits) - 1)
    if largest > F16_MAX * values:
        raise QuantFormatError(f"the value {largest:g} is beyond the range of {fmt.name}, whose scales are f16")


def _clipped(x: F32, importance: F32, group: int) -> F32:
    """Values of the least importance clipped to the range of the others, so that they cost these nothing.

    Those are the others of the group where they are half of it or more, else those of the super-block; where it has
    none nothing is clipped.
    """
    active = importance > np.float32(LEAST_IMPORTANCE)
    if active.all():
        return x
    most = np.finfo(np.float32).max
    low, high = np.where(active, x, most), np.where(active, x, -most)
    by_group = (len(x), -1, group)
    few = active.reshape(by_group).sum(axis=-1) < group / 2
    low, high = low.reshape(by_group).min(axis=-1), high.reshape(by_group).max(axis=-1)
    wide_low, wide_high = low.min(axis=-1, keepdims=True), high.max(axis=-1, keepdims=True)
    low, high = np.where(few, wide_low, low), np.where(few, wide_high, high)
    none = wide_high < wide_low
    low, high = np.where(none, -most, low), np.where(none, most, high)
    clipped = np.clip(x.reshape(by_group), low[..., None], high[..., None]).reshape(x.shape)
    return np.where(active, x, clipped).astype(np.float32)


def _weights(x: F32, importance: F32 | None) -> F32:
    """Weights of errors, sqrt(x^2 + spread * mean x^2) times the importance; of x in units of its largest value."""
    scaled = x * _up(x)
    squares = np.square(scaled)
    weights: F32 = np.sqrt(squares + SPREAD[importance is not None] * squares.mean(axis=-1, keepdims=True))
    if importance is not None:
        weights *= importance
    return weights


def _up(x: F32) -> F32:
    """A power of two for each block that brings its largest value near 1."""
    peak = np.abs(x).max(axis=-1, keepdims=True)
    up: F32 = np.ldexp(np.float32(1), -np.clip(np.frexp(peak)[1], -120, 120)).astype(np.float32)
    return up


def ternary(fmt: BlockFormat, x: F32, w: F32, threads: int) -> Planes:
    """Of all numbers of largest values that could be one step, the one that leaves the least error."""
    size = np.abs(x)
    order = np.argsort(-size, axis=-1)
    weights = np.take_along_axis(w, order, axis=-1).astype(np.float64)
    sums = np.cumsum(weights * np.take_along_axis(size, order, axis=-1), axis=-1)
    totals = np.maximum(np.cumsum(weights, axis=-1), np.finfo(np.float32).tiny)
    count = (sums * sums / totals).argmax(axis=-1)[:, None]
    step = np.take_along_axis(sums / totals, count, axis=-1)
    d = np.minimum(step, F16_MAX).astype(np.float16).astype(np.float32)
    above = size > d / 2
    q = np.where(above, np.sign(x), 0).astype(np.int8) + np.int8(fmt.offset)
    return Planes(q.view(np.uint8).reshape(-1), d=d.reshape(-1))


def on_grid(fmt: BlockFormat, x: F32, w: F32, threads: int) -> Planes:
    """The points and scales that `kernels.points` finds."""
    from octavo.jit.program import KernelCall, run_call
    from octavo.quantizers.encoding.kernels.points import PointSearch, points_kernel

    grid, table = fmt.codebook, np.array(fmt.table, np.float32) * np.float32(fmt.step)
    assert grid is not None
    size = 1 << grid.bits
    sets = (table[:size], table[size:]) if grid.shared else (table[:size],)
    points = np.stack([np.ascontiguousarray(values[grid.entries].T) for values in sets])  # [sets, width, points]
    shared = 0 if not grid.shared else SIGNED if fmt.group < 32 else fmt.group
    search = PointSearch(
        grid.width, len(grid.keys), fmt.group, 2 * (1 << fmt.scale_bits) - 1, shared,
        *RANGES[grid.width, grid.shared], STEPS,
    )
    up = _up(x)
    y, marks = _without_signs(fmt, x * up, w)
    supers, share = len(x), max(1, len(x) // (4 * threads))
    tasks = -(-supers // share)
    made: dict[str, Any] = {
        "index": np.empty((supers, fmt.block // grid.width), np.uint32), "marks": marks,
        "sc": np.empty((supers, fmt.block // fmt.group), np.int8), "d": np.empty(supers, np.float32),
    }
    call = KernelCall(
        points_kernel(search), tasks, x=y, weights=np.ascontiguousarray(w), up=up, supers=supers, share=share,
        points=points, squares=np.square(points), scratch=np.empty(tasks * search.scratch_bytes, np.uint8), **made,
    )
    run_call(call, threads)
    end_progress()
    return Planes(grid.codes(made["index"], marks).reshape(-1), d=made["d"], sc=made["sc"].reshape(-1))


def _without_signs(fmt: BlockFormat, x: F32, w: F32) -> tuple[F32, AnyArray]:
    """Values as points have them, and marks uint8 [supers, 32]: signs, or what a search is still to find.

    Where the number of signs must be even, the value of eight that it costs least gets the wrong one.
    """
    grid = fmt.codebook
    assert grid is not None
    if grid.shared:
        return np.ascontiguousarray(x), np.zeros((len(x), fmt.block // SIGNED), np.uint8)
    marks = gather(x < 0)
    if grid.even:
        cost = (w * np.abs(x)).reshape(len(x), -1, SIGNED)
        marks ^= parity(marks) << cost.argmin(axis=-1).astype(np.uint8)
    return np.where(spread(marks), -x, x), marks


def encode_rows(rows: F32, fmt: BlockFormat, importance: F32 | None, threads: int) -> U8:
    """Finite rows [rows, K] as packed blocks; `importance` is above 0 everywhere."""
    if fmt.is_float:
        return _numbers(rows, fmt, threads)
    if is_searched_in_points(fmt):
        return encode_blocks(rows, fmt, importance, threads)
    rule = extremes_rule(fmt)
    if rule == "largest" or (rule is not None and importance is None):
        return _by_extremes(rows, fmt, threads)
    return _by_search(rows, fmt, importance, threads)


def _run(kernel: Any, tasks: int, threads: int, **arguments: int | AnyArray) -> None:
    from octavo.jit.program import KernelCall, run_call

    run_call(KernelCall(kernel, tasks, **arguments), threads)
    end_progress()


def largest(rows: F32, threads: int) -> float:
    """The largest magnitude of any values; NaN or Inf if one of them is."""
    prepare()
    from octavo.quantizers.encoding.kernels.numbers import largest_kernel

    flat = rows.reshape(-1)
    vectors, share = flat.size // LANES, SHARE // LANES
    tasks = -(-vectors // share)
    found = np.zeros(tasks + 1, np.float32)
    _run(largest_kernel(), tasks, threads, x=flat, out=found, vectors=vectors, share=share)
    found[tasks] = np.abs(flat[vectors * LANES :]).max(initial=0)
    return float(found.max())


def _numbers(rows: F32, fmt: BlockFormat, threads: int) -> U8:
    """Numbers rounded to nearest, ties to even."""
    kind = fmt.fields[0].kind
    if kind == "f32":
        return rows.view(np.uint8).copy()
    from octavo.quantizers.encoding.kernels.numbers import narrow_kernel

    flat = rows.reshape(-1)
    vectors, share = -(-flat.size // LANES), SHARE // LANES
    if flat.size % LANES:
        flat = np.concatenate([flat, np.zeros(-flat.size % LANES, np.float32)])
    out = np.empty(len(flat), np.uint16)
    _run(narrow_kernel(kind), -(-vectors // share), threads, x=flat, out=out, vectors=vectors, share=share)
    return out[: rows.size].view(np.uint8).reshape(len(rows), -1)


def _by_extremes(rows: F32, fmt: BlockFormat, threads: int) -> U8:
    """Scales from each block's extremes, bit for bit as the format's reference."""
    from octavo.quantizers.encoding.kernels.extremes import extremes_kernel
    out = np.empty((len(rows), fmt.row_bytes(rows.shape[1])), np.uint8)
    blocks, share = rows.size // fmt.block, SHARE // fmt.block
    rule = extremes_rule(fmt)
    assert rule is not None
    kernel = extremes_kernel(rule, fmt.bits, block_layout(fmt))
    _run(kernel, -(-blocks // share), threads, x=rows, out=out, blocks=blocks, share=share)
    return out


def _by_search(rows: F32, fmt: BlockFormat, importance: F32 | None, threads: int) -> U8:
    """Scales searched for, 16 groups at a time."""
    values: AnyArray = rows.reshape(-1)
    supers, per_tile = values.size // fmt.super, LANES * fmt.group // fmt.super
    if supers < per_tile:
        values = np.concatenate([values, np.zeros((per_tile - supers) * fmt.super, np.float32)])
        supers = per_tile
    out = np.empty(supers * fmt.block_bytes, np.uint8)
    tiles = -(-supers // per_tile)
    share = max(1, SHARE // (LANES * fmt.group))
    kernel = search_kernel(fmt, weighted=importance is not None)
    _run(
        kernel, -(-tiles // share), threads,
        x=values, importance=0 if importance is None else importance, columns=rows.shape[1], out=out, supers=supers,
        tiles=share,
    )
    return out[: rows.size // fmt.block * fmt.block_bytes].reshape(len(rows), -1)
