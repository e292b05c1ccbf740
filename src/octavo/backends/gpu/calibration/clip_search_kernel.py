# mypy: ignore-errors
"""Which part of its range each group of a row is clipped to before it is rounded, by the error that is left.

Algorithm: a grid search for the clipping ratio by weighted squared error, as AWQ (arXiv 2306.00978) and others do it.
Tile:
    program   GROUPS groups of GROUP values in registers, read once
    for each of `tried` shares s:   clip to s * [min, max] -> round -> sum of weight * error^2 -> the least so far
Bound: instructions, `tried` roundings of each value; not measured by itself.
Tried: nothing else.
Twin: `tests.calibrate.naive.clip_search`
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.calibration.gptq_columns_kernel import ROUND, as_stored


@triton.jit
def _inverse(d):
    """1 / d, 0 where that is not finite."""
    found = tl.div_rn(1.0, tl.where(d == 0, 1.0, d))
    return tl.where((d == 0) | (tl.abs(found) == float("inf")), 0.0, found)


@triton.jit
def _rounded(x, KIND: tl.constexpr, SCALE: tl.constexpr, TOP: tl.constexpr, GROUP: tl.constexpr):
    """What values [groups, GROUP] are worth as codes from 0 to TOP, by the encoder called KIND."""
    if KIND == "symmetric":
        OFFSET: tl.constexpr = (TOP + 1) // 2
        at, size = tl.arange(0, GROUP)[None, :], tl.abs(x)
        first = tl.min(tl.where(size == tl.max(size, axis=1)[:, None], at, GROUP), axis=1)
        d = tl.div_rn(tl.sum(tl.where(at == first[:, None], x, 0.0), axis=1), -1.0 * OFFSET)[:, None]
        code = (x * _inverse(d) + (OFFSET + 0.5)).to(tl.int32).to(tl.float32)
        found = (tl.minimum(tl.maximum(code, 0.0), TOP) - OFFSET) * as_stored(d, SCALE)
    elif KIND == "zero_point":
        low = tl.minimum(tl.min(x, axis=1), 0.0)[:, None]
        d = tl.div_rn(tl.maximum(tl.max(x, axis=1), 0.0)[:, None] - low, 1.0 * TOP).to(tl.float16).to(tl.float32)
        zero = tl.minimum(-low * _inverse(d), TOP) + ROUND - ROUND
        code = tl.minimum(x * _inverse(d), TOP) + ROUND - ROUND + zero
        found = (tl.minimum(tl.maximum(code, 0.0), TOP) - zero) * as_stored(d, SCALE)
    else:
        low = tl.min(x, axis=1)[:, None]
        d = tl.div_rn(tl.max(x, axis=1)[:, None] - low, 1.0 * TOP)
        code = ((x - low) * _inverse(d) + 0.5).to(tl.int32).to(tl.float32)
        found = tl.minimum(tl.maximum(code, 0.0), TOP) * as_stored(d, SCALE) - as_stored(-low, SCALE)
    return found


@triton.jit
def clip_search_kernel(
    x, weights, shrinks, chosen, count, in_row, tried,
    KIND: tl.constexpr, SCALE: tl.constexpr, TOP: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
):
    """Program p finds for GROUPS of `count` groups which of `tried` parts of their range leaves the least error.

    x        float32 [count, GROUP], groups of rows
    weights  float32 [in_row, GROUP], of a row's squared errors
    shrinks  float32 [tried], the parts
    chosen   float32 [count], the first of the best
    """
    groups = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    real, at = (groups < count)[:, None], tl.arange(0, GROUP)[None, :]
    given = tl.load(x + groups.to(tl.int64)[:, None] * GROUP + at, mask=real, other=0.0)  # [GROUPS, GROUP]
    weight = tl.load(weights + (groups % in_row)[:, None] * GROUP + at, mask=real, other=0.0)
    low, high = tl.minimum(tl.min(given, axis=1), 0.0)[:, None], tl.maximum(tl.max(given, axis=1), 0.0)[:, None]
    best = tl.full((GROUPS,), float("inf"), tl.float32)
    found = tl.full((GROUPS,), 1.0, tl.float32)
    for i in range(tried):
        part = tl.load(shrinks + i)
        clipped = tl.minimum(tl.maximum(given, low * part), high * part)
        off = _rounded(clipped, KIND, SCALE, TOP, GROUP) - given
        error = tl.sum(weight * (off * off), axis=1)
        found = tl.where(error < best, part, found)
        best = tl.minimum(error, best)
    tl.store(chosen + groups, found, mask=groups < count)
