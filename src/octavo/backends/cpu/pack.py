"""From planes to the kernels' layouts, some rows at a time on all threads: no second copy of a model in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.backends.cpu import host
from octavo.backends.cpu.interleave import gather_codes, interleave_codes
from octavo.backends.cpu.kernels.float_mul_mat import Kind
from octavo.backends.cpu.layout import ROWS, SCALE_BYTES, STEP, Layout, ScaleKind
from octavo.backends.cpu.probe import CodeMap, code_map, unpack_scales
from octavo.errors import QuantFormatError
from octavo.formats import QTensor, dequantize, unpack
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat, Planes

log = logging.getLogger("octavo")

CHUNK_VALUES = 1 << 18  # values unpacked at a time by each thread


@dataclass(frozen=True, eq=False)
class QuantWeight:
    """Quantized weights [experts, n, k] in a Layout; `data` is uint8 [experts, tiles, bytes of a tile]."""

    layout: Layout
    n: int
    k: int
    data: U8
    table: U8 | None


@dataclass(frozen=True, eq=False)
class FloatWeight:
    """Float weights [experts, n, k]; `data` is [experts, tiles, k, 16]."""

    kind: Kind
    n: int
    k: int
    data: AnyArray


def pack(tensor: QTensor, threads: int) -> QuantWeight | FloatWeight:
    """A matrix [n, k], or experts [E, n, k], in the layout of its kernels. Raises QuantFormatError for odd rows."""
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
    n, k = tensor.shape[-2:]
    rows = tensor.data.reshape(experts, n, -1)
    if tensor.format.is_float or k % STEP:
        return _pack_float(tensor, rows, n, k, threads)
    layout, table = _layout(tensor)
    data = _aligned((experts, -(-n // ROWS), layout.tile_bytes(k)), np.dtype(np.uint8))
    lookup = np.array(tensor.format.table, np.int16) if tensor.format.table else np.zeros(0, np.int16)
    decode_table = bool(tensor.format.table) and layout.table is None

    codes = None if decode_table else code_map(tensor.format)
    finite: list[bool] = []

    def work(part: tuple[int, slice]) -> None:
        expert, span = part
        raw = rows[expert, span]
        out = data[expert, span.start // ROWS : -(-span.stop // ROWS)]
        if codes is not None:
            planes = unpack_scales(tensor.format, _whole_tiles(raw), codes.code_fields)
            finite.append(_fill_scales(out, layout, planes))
            _gather(out, layout, codes, tensor.format, raw)
            return
        planes = _unpack_rows(tensor.format, raw, k)
        finite.append(_fill_scales(out, layout, planes))
        q = (lookup[planes.q] + 128).astype(np.uint8) if decode_table else planes.q
        _interleave(out, layout, q)

    _run(work, _parts(experts, n, k), threads)
    _warn_unless(all(finite), tensor)
    return QuantWeight(layout, n, k, data, table)


def _whole_tiles(rows: U8) -> U8:
    """Rows padded to a multiple of 16 with zeros."""
    missing = -len(rows) % ROWS
    return np.concatenate([rows, np.zeros((missing, rows.shape[1]), np.uint8)]) if missing else rows


def _unpack_rows(fmt: BlockFormat, rows: U8, k: int) -> Planes:
    """The planes of some rows, padded to whole tiles."""
    rows = _whole_tiles(rows)
    return unpack(QTensor(fmt, (len(rows), k), rows))


def _parts(experts: int, n: int, k: int) -> Iterator[tuple[int, slice]]:
    size = max(ROWS, CHUNK_VALUES // k // ROWS * ROWS)
    return ((e, slice(i, min(i + size, n))) for e in range(experts) for i in range(0, n, size))


def _run(work: Any, parts: Iterator[Any], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, parts):
            pass


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
    """An uninitialised array whose memory begins at a page."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def _layout(tensor: QTensor) -> tuple[Layout, U8 | None]:
    """The layout for a tensor; scales as small as they can be without loss, judged by all of them."""
    fmt = tensor.format
    two_level = fmt.super != fmt.group
    if two_level and (fmt.group not in (16, 32) or fmt.super % STEP):
        raise QuantFormatError(f"{fmt.name}: no CPU layout for groups of {fmt.group} in {fmt.super}")
    kinds = {f.name: f.dtype for f in fmt.fields}
    scale: ScaleKind = "f16" if kinds.get("d") == np.dtype("<f2") else _smallest_kind(tensor)
    keeps_table = fmt.table is not None and host.has_byte_shuffle()
    table = (np.array(fmt.table, np.int16) + 128).astype(np.uint8) if keeps_table else None
    layout = Layout(
        bits=8 if fmt.table and not keeps_table else fmt.bits,
        group=fmt.group,
        super=max(fmt.super, STEP),
        scale=scale,
        two_level=two_level,
        signed_scales=two_level and not fmt.has_min,
        minima=scale if fmt.has_min else None,
        offset=128 if fmt.table else fmt.offset,
        table=tuple(fmt.table) if keeps_table and fmt.table else None,
    )
    return layout, table


def _smallest_kind(tensor: QTensor) -> ScaleKind:
    """The smallest kind that holds every scale of a tensor exactly."""
    exponent = half = True
    codes = code_map(tensor.format)
    code_fields: frozenset[str] = codes.code_fields if codes else frozenset()
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    step = max(1, CHUNK_VALUES // tensor.shape[-1])
    for i in range(0, len(rows), step):
        part = rows[i : i + step]
        d = unpack_scales(tensor.format, part, code_fields).d
        assert d is not None
        exponent = exponent and bool((np.ldexp(np.float32(1), _exponents(d).astype(np.int32) - 127) == d).all())
        with np.errstate(over="ignore"):
            half = half and bool((d.astype(np.float16).astype(np.float32) == d).all())
    return "exponent" if exponent else "f16" if half else "f32"


def _exponents(d: F32) -> U8:
    """The exponent byte of floats that are powers of two."""
    return ((d.view(np.uint32) >> 23) & 0xFF).astype(np.uint8)


def _warn_unless(finite: bool, tensor: QTensor) -> None:
    if not finite:
        log.warning("tensor %s holds NaN or Inf", tensor.name)


def _fill_scales(out: U8, layout: Layout, planes: Planes) -> bool:
    """Write the scales and minima of some rows; out: uint8 [tiles, bytes of a tile]. False if one is NaN or Inf."""
    tiles, blocks = len(out), layout.super // STEP
    view = out.reshape(tiles, -1, layout.super_bytes)
    supers = view.shape[1]
    at = 0
    for values, kind in ((planes.d, layout.scale), (planes.dmin, layout.minima)):
        if values is not None and kind is not None:
            nbytes = SCALE_BYTES[kind] * ROWS * layout.sets
            sets = values.reshape(tiles, ROWS, supers, layout.sets).transpose(0, 2, 3, 1)
            view[:, :, at : at + nbytes] = _as_bytes(sets, kind).reshape(tiles, supers, nbytes)
            at += nbytes
    finite = all(p is None or bool(np.isfinite(p).all()) for p in (planes.d, planes.dmin))
    if not layout.two_level:
        return finite
    in_blocks = view[:, :, at:].reshape(tiles, supers, blocks, layout.block_bytes)
    at = 0
    for small in (planes.sc, planes.m):
        if small is not None:
            nbytes = ROWS * layout.groups
            groups = small.view(np.uint8).reshape(tiles, ROWS, supers, blocks, layout.groups)
            in_blocks[..., at : at + nbytes] = groups.transpose(0, 2, 3, 4, 1).reshape(tiles, supers, blocks, nbytes)
            at += nbytes
    return finite


def _places(out: U8, layout: Layout) -> tuple[int, ...]:
    """Arguments of the interleaving kernels from `tile_bytes` on, but for the number of tiles."""
    codes_at = layout.head_bytes + layout.block_bytes - layout.code_bytes
    tile_bytes = out.shape[1]
    supers = tile_bytes // layout.super_bytes
    return tile_bytes, supers, layout.super // STEP, layout.super_bytes, codes_at, layout.block_bytes, len(out)


def _interleave(out: U8, layout: Layout, q: U8) -> None:
    q = np.ascontiguousarray(q)
    interleave_codes(layout.bits)(q.ctypes.data, out.ctypes.data, *_places(out, layout))


def _gather(out: U8, layout: Layout, codes: CodeMap, fmt: BlockFormat, rows: U8) -> None:
    if len(rows) % ROWS:
        supers = out[-1].reshape(-1, layout.super_bytes)
        blocks = supers[:, layout.head_bytes :].reshape(len(supers), -1, layout.block_bytes)
        blocks[..., layout.block_bytes - layout.code_bytes :] = 0
    rows = np.ascontiguousarray(rows)
    words, n_pieces = codes.pieces.shape
    gather_codes(layout.bits, n_pieces)(
        rows.ctypes.data, rows.shape[1], len(rows), fmt.block_bytes, words, codes.pieces.reshape(-1),
        np.uint32(codes.base), out.ctypes.data, *_places(out, layout),
    )  # fmt: skip


def _as_bytes(values: AnyArray, kind: ScaleKind) -> U8:
    if kind == "exponent":
        return _exponents(np.ascontiguousarray(values))
    dtype = np.float16 if kind == "f16" else np.float32
    return np.ascontiguousarray(values.astype(dtype)).view(np.uint8)


def _pack_float(tensor: QTensor, rows: U8, n: int, k: int, threads: int) -> FloatWeight:
    kind: Kind = "f32"
    if tensor.format.is_float and tensor.format.bits == 16:
        kind = "f16" if tensor.format.fields[0].dtype == np.dtype("<f2") else "bf16"
    dtype = np.dtype("<f4") if kind == "f32" else np.dtype("<u2")
    experts, tiles = len(rows), -(-n // ROWS)
    data = _aligned((experts, tiles, k, ROWS), dtype)
    finite: list[bool] = []

    def work(part: tuple[int, slice]) -> None:
        expert, span = part
        raw = rows[expert, span]
        if kind == "f32":
            values: AnyArray = dequantize(QTensor(tensor.format, (len(raw), k), raw))
        else:
            values = np.ascontiguousarray(raw).view(dtype)
        finite.append(_is_finite(values, kind))
        padded = np.zeros((-(-len(values) // ROWS) * ROWS, k), dtype)
        padded[: len(values)] = values
        first = span.start // ROWS
        data[expert, first : first + len(padded) // ROWS] = padded.reshape(-1, ROWS, k).transpose(0, 2, 1)

    _run(work, _parts(experts, n, k), threads)
    _warn_unless(all(finite), tensor)
    return FloatWeight(kind, n, k, data)


def _is_finite(values: AnyArray, kind: Kind) -> bool:
    if kind == "f32":
        return bool(np.isfinite(values).all())
    exponent = 0x7C00 if kind == "f16" else 0x7F80
    return bool(((values & exponent) != exponent).all())
