"""Encoding in the formats with a grid, and in ternary ones: what `encode` does for those that store no plain codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats import BlockFormat, Planes, pack
from octavo.formats.codebook import SIGNED, gather, parity, spread
from octavo.formats.codec import chunks
from octavo.formats.spec import F32, U8, AnyArray
from octavo.quantizers.encoding.kernels.recipe import LEAST_IMPORTANCE

SPREAD = {False: 0.25, True: 2.0}
"""What is added to a value's square, in mean squares of its super-block, without importance weights and with them."""

F16_MAX = 65504.0

CHUNK = 1 << 18  # values encoded at a time

STEPS = 20
RANGES = {(8, False): (0.95, 7.4), (4, False): (7.0, 21.0), (8, True): (0.8, 3.6)}
"""Where a group's largest value may lie in units of its scale, by width of points and whether they share marks."""


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
    from octavo.jit.prepare import end_progress
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
