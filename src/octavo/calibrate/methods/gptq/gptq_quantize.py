"""`gptq`: rows of floats to packed blocks of any format, so that what a product gives changes least.

An encoder makes each weight's own error small. Here errors of a row may be large where they cancel: what counts is
tr(E H E^T), the squared change of the product's outputs over the calibration text, with H the mean of x x^T over its
inputs x. This is GPTQ (Frantar et al., arXiv 2210.17323) with scales from the importance-weighted encoders, for every
row of the format table that gives each value a level of its own; scales and codes are then gone through again by
coordinate descent (as QuantEase does with codes, arXiv 2309.01885).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.cores import threads_of
from octavo.calibrate import arrays
from octavo.calibrate.arrays import VALUES, each_plane, is_tensor, on_host
from octavo.calibrate.hessian import Factor, Order, corrected, factorize, weighed
from octavo.calibrate.methods.gptq.grid import grid_of
from octavo.calibrate.methods.gptq.sweep import ROWS, sweep
from octavo.calibrate.row_batches import made_in_parts
from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats import BlockFormat, Planes, QTensor, decode, dequantize, pack, quantize_reference, unpack
from octavo.formats.encoders import as_f16
from octavo.formats.group import row_named
from octavo.formats.spec import F32, U8
from octavo.quantizers.encoding.encoder import ENCODABLE, encode, rows_of
from octavo.quantizers.matrix_tiles import spans

ROUNDS = 3
"""Times that scales and codes are gone through again."""
DAMP = 0.01
"""The share of the mean diagonal that is added to the diagonal."""
SLAB, TILES = 1 << 20, 4
"""Values of rows that are made at a time, at least, and tiles of rows for each thread."""
LEAST_GAIN = 1e-5
"""The least share of its error that GPTQ must take off a row to be kept."""


@dataclass(frozen=True, eq=False)
class GptqRows:
    """Rows in a format, and what they lose.

    planes   of the rows [N, K]
    before   float32 [N]: e^T H e of each row as the encoder alone leaves it
    after    float32 [N]: of what is in `planes`; nowhere above `before`
    bound    what nearest levels can't exceed with these scales while no value is beyond the last level, damping
             included (Babai's bound of the lattice of H): the sum over all rows, before anything is refitted
    kept     rows that GPTQ made better; the others are the encoder's
    damping  that was added to the diagonal, over its mean
    """

    planes: Planes
    format: BlockFormat
    before: F32
    after: F32
    bound: float
    kept: int
    damping: float

    @cached_property
    def packed(self) -> U8:
        """uint8 [N, bytes of a row]."""
        return pack(self.planes, self.format)


def gptq(
    weight: Any,
    hessian: Any,
    row: str | BlockFormat,
    *,
    importance: npt.ArrayLike | None = None,
    cross: Any = None,
    order: Order = "act",
    damp: float = DAMP,
    rounds: int = ROUNDS,
    factor: Factor | None = None,
    threads: int | None = None,
) -> GptqRows:
    """Rows [N, K] in the format `row`, errors making up for each other under `hessian` [K, K].

    hessian     the mean (or sum) of x x^T over the inputs x of the product; symmetric, positive semidefinite
    row         a format of the table, or a row of groups by its name, as "Q4_K" or "GROUP4_128_Z_F16"
    importance  float32 [K], of the encoder that chooses scales; default: the diagonal of `hessian`
    cross       [K, K], the mean of x~ x^T with x~ the inputs that the quantized model has and x those of the original:
                then `hessian` is of x~, and what W x gives is approximated (Qronos, arXiv 2505.11695)
    order       columns with the largest diagonal first, or as they lie; groups stay where they are either way
    damp        added to the diagonal, over its mean; ten times as much while the factorization fails, up to 1
    rounds      times that scales and codes are gone through again after GPTQ's sweep; 0: GPTQ alone
    factor      what `factorize` makes of `hessian`, `order` and `damp`, for weights that share them

    Where `hessian` is a tensor of torch the work is done on its device, by kernels in Triton; `cross` and `factor` are
    then there as well, and `weight` may be. The codes are the same but for values that lie halfway
    between two levels, which sums in another order tip, and what follows in their rows.

    Columns whose diagonal is 0 met no activation, and cost nothing. Bytes do not depend on `threads`. Raises
    QuantFormatError for a format whose codes are not each a value's own level (IQ1 to IQ3, floats), UsageError
    for shapes and numbers that do not fit, NonFiniteError for NaN or Inf.
    """
    fmt = row_named(row) if isinstance(row, str) else row
    if grid_of(fmt) is None:
        raise QuantFormatError(
            f"GPTQ does not apply to {fmt.name} (allowed: formats with one level or table entry per value)"
        )
    if order not in ("act", "natural") or rounds < 0 or not damp >= 0:
        raise UsageError(
            f"order {order!r}, rounds {rounds}, damp {damp} (allowed: act or natural, 0 or more, 0 or more)"
        )
    rows = weight if is_tensor(weight) else arrays.like(rows_of(weight, fmt), hessian)
    n, k = _finite(rows, "weight").shape
    h = _square(hessian, "hessian", k)
    factor = factorize(h, order, damp) if factor is None else factor
    target = rows if cross is None else corrected(rows, h, _square(cross, "cross", k), factor.added)
    weights = np.asarray(on_host(h.diagonal()) if importance is None else importance, np.float32)
    made = _RowQuantizer(fmt, factor, weights, None if target is rows else h, rounds, threads)
    parts = spans(n, max(1, VALUES // k)) if is_tensor(rows) else row_parts(n, k, threads)
    found = made_in_parts(parts or [slice(0, 0)], lambda part: made.rows(rows[part], target[part]))
    return found[0] if len(found) == 1 else _joined(found)


def row_parts(n: int, k: int, threads: int | None) -> list[slice]:
    """Rows [N, K] that are made at a time on the CPU: a dozen arrays of their size are there beside them."""
    return spans(n, ROWS * max(TILES * threads_of(threads), SLAB // (ROWS * max(k, 1))))


@dataclass(frozen=True, eq=False)
class _RowQuantizer:
    """Makes rows of a weight, some at a time: what becomes of one does not depend on others.

    hessian  what errors are found by where the rows that are aimed at are others than the weight's
    """

    fmt: BlockFormat
    factor: Factor
    importance: F32
    hessian: Any
    rounds: int
    threads: int | None

    def rows(self, rows: Any, target: Any) -> GptqRows:
        """Rows [N, K] of the weight, to come near to `target`."""
        fmt, damping = self.fmt, self.factor.damping
        plain = encoded(rows, fmt, self.importance, self.threads)
        if not len(rows):
            none = np.zeros(0, np.float32)
            return GptqRows(each_plane(on_host, plain), fmt, none, none, 0.0, 0, damping)
        start = plain if self.hessian is None else encoded(target, fmt, self.importance, self.threads)
        if is_tensor(target):
            from octavo.calibrate.methods.gptq.torch_sweep import sweep_on_device

            found = sweep_on_device(target, start, fmt, self.factor, self.rounds)
        else:
            found = sweep(target, start, fmt, self.factor, self.rounds, threads_of(self.threads))
        before, xp = found.before, arrays.of(rows)
        if self.hessian is not None:  # e^T H e of what the encoder made, against the weights that are aimed at
            before = arrays.single(weighed(target - values_of_planes(plain, fmt), self.hessian))
        better = found.after < before * (1 - LEAST_GAIN)
        planes = each_plane(lambda yes, no: xp.where(better[:, None], yes, no), found.planes, plain)
        after = on_host(xp.where(better, found.after, before))
        return GptqRows(
            each_plane(on_host, planes), fmt, on_host(before), after, found.bound, int(better.sum()), damping
        )


def _joined(parts: list[GptqRows]) -> GptqRows:
    """Rows one after the other."""
    planes = each_plane(lambda *each: np.concatenate(each), *(part.planes for part in parts))
    before, after = (np.concatenate([getattr(part, name) for part in parts]) for name in ("before", "after"))
    bound, kept = sum(part.bound for part in parts), sum(part.kept for part in parts)
    return GptqRows(planes, parts[0].format, before, after, bound, kept, parts[0].damping)


def _square(matrix: Any, name: str, k: int) -> Any:
    values = matrix if is_tensor(matrix) else np.asarray(matrix)
    if not is_tensor(values) and values.dtype != np.float32:
        values = np.asarray(values, np.float64)
    if values.shape != (k, k):
        raise UsageError(f"{name} of shape {tuple(values.shape)} for rows of {k} values (allowed: ({k}, {k}))")
    diagonal = on_host(_finite(values, name).diagonal())
    if name == "hessian" and (diagonal < 0).any():
        at = int((diagonal < 0).argmax())
        raise UsageError(f"hessian is {diagonal[at]:g} at column {at} of its diagonal (allowed: 0 or more)")
    return values


def _finite(values: Any, name: str) -> Any:
    isfinite = arrays.of(values).isfinite
    if 0 not in values.shape and not (bool(isfinite(values.min())) and bool(isfinite(values.max()))):
        host = on_host(values)
        row, column = (int(i) for i in np.unravel_index(np.isfinite(host).argmin(), host.shape))
        raise NonFiniteError(f"{name}: {host[row, column]} at row {row}, column {column}")
    return values


def encoded(rows: Any, fmt: BlockFormat, weights: F32, threads: int | None) -> Planes:
    """What the format's own encoder makes of rows, errors weighted, where they lie."""
    if fmt.name not in ENCODABLE and fmt.gguf is None and is_tensor(rows):
        from octavo.calibrate import torch_rows

        if torch_rows.encoder_of(fmt) is not None:
            return torch_rows.searched(rows, fmt, arrays.like(np.ascontiguousarray(weights), rows), SHRINKS.tolist())
    host = on_host(rows)
    if fmt.name in ENCODABLE:
        found = unpack(QTensor(fmt, host.shape, encode(host, fmt, importance=weights, threads=threads)))
    else:
        found = _searched(host, fmt, weights)
    return each_plane(lambda x: arrays.like(x, rows), found)


def values_of_planes(planes: Planes, fmt: BlockFormat) -> Any:
    """float32 values [N, K] of planes, where they lie."""
    if not is_tensor(planes.q):
        return decode(planes, fmt)
    from octavo.calibrate.torch_rows import decoded

    return decoded(planes, fmt)


SHRINKS = np.linspace(1.0, 0.55, 16, dtype=np.float32)
"""Parts of a group's range that its levels may span."""
AT_A_TIME = 1 << 17
"""Values of rows for which they are tried together: temporaries stay in caches."""


def _searched(rows: F32, fmt: BlockFormat, weights: F32) -> Planes:
    """Rows by the format's plain encoder, each group clipped to the part of its range that leaves the least error."""
    clipped, step = np.empty_like(rows), max(1, AT_A_TIME // max(rows.shape[1], 1))
    for part in spans(len(rows), step):
        _clip(rows[part], fmt, weights, clipped[part])
    return unpack(quantize_reference(clipped, fmt))


def _clip(rows: F32, fmt: BlockFormat, weights: F32, clipped: F32) -> None:
    """Fill `clipped` with rows [N, K], each group within the part of its range that leaves the least error."""
    groups = rows.reshape(len(rows), rows.shape[1] // fmt.group, fmt.group)
    low, high = groups.min(axis=2, keepdims=True, initial=0), groups.max(axis=2, keepdims=True, initial=0)
    weighing = weights.reshape(1, -1, fmt.group)
    best, chosen = np.full(groups.shape[:2], np.inf, np.float32), np.ones(groups.shape[:2], np.float32)
    within = clipped.reshape(groups.shape)

    def clip(shrink: F32 | np.float32) -> None:  # np.clip takes three times as long with bounds that are arrays
        np.minimum(np.maximum(groups, low * shrink, out=within), high * shrink, out=within)

    for shrink in SHRINKS:
        clip(shrink)
        error = stored_values(clipped, fmt).reshape(groups.shape)
        error -= groups
        np.square(error, out=error)
        error *= weighing
        found = error.sum(axis=2)
        chosen[found < best] = shrink
        best = np.minimum(found, best)
    clip(chosen[..., None])


def stored_values(values: F32, fmt: BlockFormat) -> F32:
    """What values [..., K] become in a format by its plain encoder: `quantize_reference` and `dequantize` in one.

    They are packed only where codes and scales in between are not those that are stored.
    """
    kind = fmt.fields[0].kind
    if fmt.encode is None or fmt.has_min or fmt.super != fmt.group or kind not in ("f16", "f32", "ue4m3"):
        return dequantize(quantize_reference(values, fmt))
    with np.errstate(all="ignore"):
        planes = fmt.encode(fmt, values)
        return decode(planes if kind != "f16" or planes.d is None else replace(planes, d=as_f16(planes.d)), fmt)
