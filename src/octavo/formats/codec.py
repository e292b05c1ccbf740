"""From packed bytes to planes to numbers, and back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats.array_like import contiguous
from octavo.formats.qtensor import QTensor
from octavo.formats.rows import fold
from octavo.formats.spec import F32, U8, BlockFormat, Planes

_CHUNK = 1 << 16  # values decoded at a time: temporaries stay in the cache, whatever the tensor's size


def _unpack(fmt: BlockFormat, blocks: U8) -> Planes:
    """Planes of packed blocks, uint8 [..., blocks, block_bytes]."""
    fields, offset = {}, 0
    for f in fmt.fields:
        fields[f.name] = contiguous(blocks[..., offset : offset + f.nbytes]).view(f.dtype)
        offset += f.nbytes
    return fmt.unpack(fields)


def unpack(t: QTensor) -> Planes:
    """The planes of a tensor [..., K]."""
    return _unpack(t.format, t.data.reshape(*t.shape[:-1], t.shape[-1] // t.format.block, t.format.block_bytes))


def decode(p: Planes, fmt: BlockFormat) -> F32:
    """float32 values [..., K] of planes: d * sc * code(q) - dmin * m, in that order of operations."""
    code = np.ascontiguousarray(fmt.code(p.q))
    if p.d is None:
        return code
    groups = code.reshape(*code.shape[:-1], code.shape[-1] // fmt.group, fmt.group)  # [..., K / G, G]
    with np.errstate(invalid="ignore", over="ignore"):  # Inf and NaN scales give what float arithmetic gives
        if fmt.folds:
            assert p.sc is not None
            fold(groups, p.sc)
            groups *= np.repeat(p.d, fmt.super // fmt.group, axis=-1)[..., None]
            return code
        if fmt.has_zero:
            assert p.m is not None
            groups -= p.m[..., None].astype(np.float32)
        groups *= _per_group(p.d, p.sc, fmt)[..., None]
        if p.dmin is not None:
            groups -= _per_group(p.dmin, p.m, fmt)[..., None]
    return code


def _per_group(d: F32, sc: npt.NDArray[np.integer] | None, fmt: BlockFormat) -> F32:
    """The floating factor of each group [..., K / G] from one or two levels."""
    if sc is None:
        return d
    return np.repeat(d, fmt.super // fmt.group, axis=-1) * sc.astype(np.float32)


def chunks(blocks: int, block: int, values: int = _CHUNK) -> Iterator[slice]:
    """Slices over `blocks` blocks of `block` values, so that each holds about `values`, and one block at least."""
    step = max(1, values // block)
    return (slice(i, min(i + step, blocks)) for i in range(0, blocks, step))


def dequantize(t: QTensor) -> F32:
    """float32 values of shape t.shape: d * sc * code(q) - dmin * m, in that order of operations.

    Beside the result it needs memory for 64 Ki values only.
    """
    fmt, stored = t.format, t.stored()
    out = np.empty((t.size // fmt.block, fmt.block), dtype=np.float32)
    for part in chunks(len(out), fmt.block):
        out[part] = decode(_unpack(fmt, stored.blocks(part)), fmt).reshape(-1, fmt.block)
    return out.reshape(t.shape)


def dequantize_rows(t: QTensor, rows: npt.ArrayLike) -> F32:
    """float32 rows of a matrix [N, K]: [*rows.shape, K]. Only the rows that are asked for are read.

    Raises UsageError where `rows` are not integers in 0..N-1.
    """
    if len(t.shape) != 2:
        raise UsageError(f"rows of {t!r}: it is not a matrix (allowed: two dimensions)")
    n, k = t.shape
    index = np.asarray(rows)
    if index.dtype.kind not in "iu" and index.size:
        raise UsageError(f"rows of {t!r}: {index.dtype} is not an integer type")
    bad = index[(index < 0) | (index >= n)]
    if bad.size:
        raise UsageError(f"rows of {t!r}: there is no row {bad[0]} (allowed: 0 to {n - 1})")
    taken = t.take(index.reshape(-1).astype(np.intp))
    return dequantize(QTensor(t.format, (len(taken), k), taken, t.name)).reshape(*index.shape, k)


def pack(p: Planes, fmt: BlockFormat) -> U8:
    """Planes [..., K] as packed rows, uint8 [..., bytes of a row]: the inverse of `unpack`.

    Raises QuantFormatError where a scale is beyond the type that the format stores it in, and for a format that
    nothing writes.
    """
    if fmt.pack is None:
        raise QuantFormatError(f"{fmt.name} is read-only: it has no packer")
    fields = fmt.pack(p)
    parts = []
    for f in fmt.fields:
        values = np.ascontiguousarray(fields[f.name], dtype=f.dtype)  # [..., blocks, count]
        parts.append(values.view(np.uint8))
    blocks = np.concatenate(parts, axis=-1)  # [..., blocks, bytes]
    return blocks.reshape(*blocks.shape[:-2], blocks.shape[-2] * blocks.shape[-1])


def quantize_reference(x: npt.ArrayLike, fmt: BlockFormat, name: str = "") -> QTensor:
    """Values [..., K] in a format, by its row's plain encoder: round to nearest, no search for better scales.

    Raises NonFiniteError at the first NaN or Inf, and QuantFormatError where K is not whole blocks, a value is beyond
    the format's range, or the format has no encoder.
    """
    values = np.asarray(x, dtype=np.float32, order="C")
    label = f"tensor {name!r}" if name else "values"
    if fmt.encode is None:
        raise QuantFormatError(f"{label}: no encoder for {fmt.name}")
    if values.ndim == 0 or values.shape[-1] % fmt.block:
        raise QuantFormatError(f"{label}: shape {values.shape} has no whole {fmt.name} blocks of {fmt.block}")
    require_finite(values, label)
    blocks = values.reshape(-1, fmt.block)
    out = np.empty((len(blocks), fmt.block_bytes), dtype=np.uint8)
    for part in chunks(len(blocks), fmt.block):
        try:
            with np.errstate(all="ignore"):
                planes = fmt.encode(fmt, blocks[part].reshape(-1))
            out[part] = pack(planes, fmt).reshape(-1, fmt.block_bytes)
        except QuantFormatError as error:
            raise QuantFormatError(f"{label}: {error}") from None
    shape = values.shape
    return QTensor(fmt, shape, out.reshape(*shape[:-1], fmt.row_bytes(shape[-1])), name)


def require_finite(x: npt.NDArray[np.floating], label: str) -> None:
    """Raises NonFiniteError that names the position of the first NaN or Inf of a contiguous array."""
    values = x.reshape(-1)
    for start in range(0, values.size, _CHUNK):
        finite = np.isfinite(values[start : start + _CHUNK])
        if not finite.all():
            at = start + int(finite.argmin())
            position = [int(i) for i in np.unravel_index(at, x.shape)]
            raise NonFiniteError(f"{label}: {values[at]} at {position}")
