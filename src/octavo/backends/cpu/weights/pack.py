"""From planes to the kernels' layouts, some rows at a time on all threads: no second copy of a model in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.backends.cpu.device.large_pages import Room
from octavo.backends.cpu.matmul.float_kernel import WIDTH, Kind
from octavo.backends.cpu.weights.layout import ROWS, SCALE_BYTES, STEP, MinimumKind, ScaleKind, TiledLayout
from octavo.backends.cpu.weights.pack_kernel import pack_kernel
from octavo.backends.cpu.weights.probe import UNPACKED, CodeMap, code_map, unpack_scales
from octavo.backends.cpu.weights.scale_map import ScaleMap, scale_map
from octavo.errors import QuantFormatError
from octavo.formats import QTensor, dequantize, unpack
from octavo.formats.codec import chunks
from octavo.formats.scalars import E4M3_NUMBER
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat, Planes
from octavo.jit import host_cpu
from octavo.jit.compile import Kernel
from octavo.jit.program import KernelCall, address

CHUNK_VALUES = 1 << 19  # values packed at a time: few enough that what is unpacked beside them stays in the cache
MAPPED_VALUES = 1 << 21  # the same where nothing is unpacked: Python takes as long for a few as for many


@dataclass(frozen=True, eq=False)
class TiledWeight:
    """Quantized weights [experts, n, k] in a TiledLayout; `data` is uint8 [experts, tiles, bytes of a tile]."""

    layout: TiledLayout
    n: int
    k: int
    data: U8
    table: U8 | None

    @property
    def table_address(self) -> int:
        """Where the bytes of a non-linear code lie; 0 without a table."""
        return 0 if self.table is None else address(self.table)


@dataclass(frozen=True, eq=False)
class TiledFloatWeight:
    """Float weights [experts, n, k]; `data` is [experts, tiles, k, 16], with e4m3 `scale` [tiles, groups, 16].

    group  values of a row that share a scale, or 0 for all
    """

    kind: Kind
    n: int
    k: int
    data: AnyArray
    scale: F32 | None = None
    group: int = 0

    @property
    def scale_address(self) -> int:
        """Where the scales of rows lie; 0 without."""
        return 0 if self.scale is None else address(self.scale)


def pack(tensor: QTensor, threads: int, room: Room) -> TiledWeight | TiledFloatWeight:
    """A matrix [n, k], or experts [E, n, k], in the layout of its kernels. Raises QuantFormatError for odd groups."""
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
    n, k = tensor.shape[-2:]
    tensor = tensor.stored()
    if tensor.format.number is not None or k % STEP:
        return _pack_float(tensor, experts, n, k, threads, room)
    layout, table = _layout(tensor)
    shape = experts, -(-n // ROWS), layout.tile_bytes(k)
    region, tile, packing = room.region(math.prod(shape)), shape[-1], packing_of(tensor.format, layout)
    finite: list[bool] = []

    def work(part: tuple[int, slice]) -> None:
        expert, span = part
        first = expert * shape[1]
        with region.part((first + span.start // ROWS) * tile, (first + -(-span.stop // ROWS)) * tile) as out:
            rows = _rows(tensor, expert, span)
            finite.append(_pack_rows(tensor.format, layout, packing, rows, out.reshape(-1, tile)))

    most = MAPPED_VALUES if packing.scales else CHUNK_VALUES
    _run(work, _parts(experts, n, k, min(most, max(CHUNK_VALUES, n * k // (2 * threads)))), threads)
    if not all(finite):
        room.tell_not_finite(tensor.name)
    return TiledWeight(layout, n, k, region.array().reshape(shape), table)


@dataclass(frozen=True, eq=False)
class Packing:
    """How rows of a format become tiles of a layout.

    codes         where the codes lie, or None where they are unpacked first
    scales        where the scales lie that the kernel reads from the rows itself, or None
    decode_table  codes are turned to the table's values before
    """

    codes: CodeMap | None
    scales: ScaleMap | None
    decode_table: bool
    kernel: Kernel


def packing_of(fmt: BlockFormat, layout: TiledLayout) -> Packing:
    """How rows of a format are packed."""
    decode_table = bool(fmt.table) and layout.table is None
    codes = None if decode_table else code_map(fmt)
    in_blocks = codes is not None and fmt.block == layout.super and layout.scale == "f16" and not fmt.has_zero
    scales = scale_map(fmt) if in_blocks else None
    found = codes or UNPACKED
    kernel = pack_kernel(layout, found.pieces.shape[1], found.runs, scales is not None)
    return Packing(codes, scales, decode_table, kernel)


def _pack_rows(fmt: BlockFormat, layout: TiledLayout, packing: Packing, rows: U8, out: U8) -> bool:
    """Pack some rows to tiles `out`, uint8 [tiles, bytes of a tile]; False if a scale is NaN or Inf."""
    rows = np.ascontiguousarray(rows)
    k = rows.shape[1] // fmt.block_bytes * fmt.block
    codes, scales, planes = packing.codes, packing.scales, None
    if codes is not None:
        source, block_in = rows, fmt.block_bytes * max(1, STEP // fmt.block)
        if scales is None:
            planes = unpack_scales(fmt, rows, codes.code_fields)
    else:  # the codes have to be unpacked first; then four of them are four bytes
        planes = unpack(QTensor(fmt, (len(rows), k), rows))
        source, block_in, codes = np.ascontiguousarray(planes.q), STEP, UNPACKED
        if packing.decode_table:
            source = (np.array(fmt.table, np.int16)[source] + 128).astype(np.uint8)
    if scales is not None:
        small = _mapped_scales(scales, rows, fmt.block_bytes)
    else:
        assert planes is not None
        small = _unpacked_scales(planes, layout, len(rows))
    odd = np.zeros(1, np.uint8)
    call = KernelCall(
        packing.kernel, len(out), (rows,),
        tiles=out, rows=len(rows), k=k, source=source, row_bytes=source.shape[1], block_bytes=block_in,
        block_words=len(codes.pieces), pieces=codes.pieces, base=codes.base, **small, odd=odd,
    )
    call.run()
    return not odd[0]


def _mapped_scales(scales: ScaleMap, rows: U8, block_bytes: int) -> dict[str, int | AnyArray]:
    """The kernel's arguments for scales that it reads from the rows itself."""
    found: dict[str, int | AnyArray] = {}
    for name, (at, flip) in (("d", scales.d), ("minima", scales.minimum)):
        found |= _scale_place(name, address(rows) + at, rows.shape[1], block_bytes, flip)
    for i, name in enumerate(("small", "small_minima")):
        found |= {name: scales.small[i] if i < len(scales.small) else 0, f"{name}_row_bytes": 0}
    return found


def _unpacked_scales(planes: Planes, layout: TiledLayout, n: int) -> dict[str, int | AnyArray]:
    """The kernel's arguments for the scales of n rows in arrays of their own."""
    found: dict[str, int | AnyArray] = {}
    minima: AnyArray | None = planes.m if layout.minima == "zero" else planes.dmin
    floats: tuple[tuple[str, AnyArray | None, MinimumKind | None], ...]
    floats = ("d", planes.d, layout.scale), ("minima", minima, layout.minima)
    for name, plane, kind in floats:
        array = NONE if plane is None or kind is None else _as_bytes(plane, kind)
        found |= _scale_place(name, array, array.nbytes // n, SCALE_BYTES[kind or layout.scale], 0)
    for name, part in (("small", planes.sc), ("small_minima", planes.m)):
        array = part if part is not None and layout.two_level else NONE
        array = np.ascontiguousarray(array).view(np.uint8)
        found |= {name: array, f"{name}_row_bytes": array.nbytes // n}
    return found


def _scale_place(name: str, at: int | AnyArray, row_bytes: int, nbytes: int, flip: int) -> dict[str, int | AnyArray]:
    """Where floating scales lie: bytes a row, bytes from one to the next, and what flips their sign."""
    return {name: at, f"{name}_row_bytes": row_bytes, f"{name}_bytes": nbytes, f"{name}_flip": flip}


NONE = np.zeros(1, np.uint8)
BITS = (2, 3, 4, 5, 6, 8)
TABLE = 16  # values of a table that a byte shuffle looks up; larger ones are looked up here, and stored as 8 bits


def _parts(experts: int, n: int, k: int, values: int = CHUNK_VALUES) -> Iterator[tuple[int, slice]]:
    size = max(ROWS, values // k // ROWS * ROWS)
    return ((e, slice(i, min(i + size, n))) for e in range(experts) for i in range(0, n, size))


def _rows(tensor: QTensor, expert: int, span: slice) -> U8:
    """Packed rows of an expert, uint8 [rows, bytes of a row]."""
    first = expert * tensor.shape[-2]
    return tensor.rows(slice(first + span.start, first + span.stop))


def _run(work: Any, parts: Iterator[Any], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, parts):
            pass


def _layout(tensor: QTensor) -> tuple[TiledLayout, U8 | None]:
    """The layout for a tensor; scales as small as they can be without loss, judged by all of them."""
    fmt = tensor.format
    layout = smallest_layout(fmt)
    if layout.scale != "f16":
        layout = _with_scales(fmt, _smallest_kind(tensor))
    return layout, _table_of(layout)


def forecast_layout(fmt: BlockFormat) -> tuple[TiledLayout, U8 | None]:
    """The layout and the table that tensors of a format have where their scales are as small as they can be."""
    layout = smallest_layout(fmt)
    return layout, _table_of(layout)


def _table_of(layout: TiledLayout) -> U8 | None:
    if layout.table is None:
        return None
    return np.resize(np.array(layout.table, np.int16) + layout.offset, 16).astype(np.uint8)


def smallest_layout(fmt: BlockFormat) -> TiledLayout:
    """The layout for tensors of a format, with scales as small as some of them have. Raises QuantFormatError."""
    kinds = {f.name: f.dtype for f in fmt.fields}
    return _with_scales(fmt, "f16" if fmt.codebook or kinds.get("d") == np.dtype("<f2") else "exponent")


def _with_scales(fmt: BlockFormat, scale: ScaleKind) -> TiledLayout:
    two_level = fmt.super != fmt.group
    if two_level and (fmt.group not in (16, 32) or fmt.super % STEP):
        raise QuantFormatError(f"{fmt.name}: no CPU layout for groups of {fmt.group} in {fmt.super}")
    if fmt.bits not in BITS:
        raise QuantFormatError(f"{fmt.name}: no CPU layout for codes of {fmt.bits} bits")
    keeps_table = fmt.table is not None and len(fmt.table) <= TABLE and host_cpu.has_byte_shuffle()
    return TiledLayout(
        bits=8 if fmt.table and not keeps_table else fmt.bits,
        group=fmt.group,
        super=max(fmt.super, STEP),
        scale=scale,
        two_level=two_level,
        signed_scales=two_level and not fmt.has_min,
        minima="zero" if fmt.has_zero else scale if fmt.has_min else None,
        offset=_table_offset(fmt.table) if fmt.table and keeps_table else 128 if fmt.table else fmt.offset,
        table=fmt.table if keeps_table else None,
        step=fmt.step,
    )


def _table_offset(table: tuple[int, ...]) -> int:
    """What is added to the values of a table: 128, or as little as they need where small codes are of use."""
    least = 1 << (-min(table) - 1).bit_length()
    return least if host_cpu.products_of_16_bits(max(table) + least) else 128


def _smallest_kind(tensor: QTensor) -> ScaleKind:
    """The smallest kind that holds every scale of a tensor exactly."""
    exponent = half = True
    codes = code_map(tensor.format)
    code_fields: frozenset[str] = codes.code_fields if codes else frozenset()
    k = tensor.shape[-1]
    for part in chunks(tensor.size // k, k, CHUNK_VALUES):
        planes = unpack_scales(tensor.format, tensor.rows(part), code_fields)
        scales = [s for s in (planes.d, planes.dmin) if s is not None]
        exponent = exponent and planes.dmin is None and all(map(_is_exponent, scales))
        half = half and all(map(_is_half, scales))
    return "exponent" if exponent else "f16" if half else "f32"


def _is_exponent(d: F32) -> bool:
    with np.errstate(over="ignore"):  # of NaN and Inf
        return bool((np.ldexp(np.float32(1), _exponents(d).astype(np.int32) - 127) == d).all())


def _is_half(d: F32) -> bool:
    with np.errstate(over="ignore"):
        return bool((d.astype(np.float16).astype(np.float32) == d).all())


def _exponents(d: F32) -> U8:
    """The exponent byte of floats that are powers of two."""
    return ((d.view(np.uint32) >> 23) & 0xFF).astype(np.uint8)


def _as_bytes(values: AnyArray, kind: MinimumKind) -> U8:
    if kind == "zero":
        return np.ascontiguousarray(values)
    if kind == "exponent":
        return _exponents(np.ascontiguousarray(values))
    dtype = np.float16 if kind == "f16" else np.float32
    return np.ascontiguousarray(values.astype(dtype)).view(np.uint8)


def float_kind(tensor: QTensor) -> Kind:
    """The numbers that a tensor is packed to which has no layout of integers."""
    if tensor.format.is_float and tensor.format.bits == 16:
        return "f16" if tensor.format.fields[0].dtype == np.dtype("<f2") else "bf16"
    return "e4m3" if tensor.format.number is E4M3_NUMBER and len(tensor.shape) == 2 else "f32"


def _pack_float(tensor: QTensor, experts: int, n: int, k: int, threads: int, room: Room) -> TiledFloatWeight:
    kind = float_kind(tensor)
    dtype = np.dtype(f"<u{WIDTH[kind]}") if kind != "f32" else np.dtype("<f4")
    tiles = -(-n // ROWS)
    shape = experts, tiles, k, ROWS
    region, tile = room.region(math.prod(shape) * dtype.itemsize), k * ROWS * dtype.itemsize
    groups = k // tensor.format.group if kind == "e4m3" else 1
    scale = np.zeros((tiles, groups, ROWS), np.float32) if kind == "e4m3" else None
    finite: list[bool] = []

    def work(part: tuple[int, slice]) -> None:
        expert, span = part
        raw = _rows(tensor, expert, span)
        if scale is not None:
            planes = unpack(QTensor(tensor.format, (len(raw), k), raw))
            assert planes.d is not None
            values: AnyArray = planes.q
            nan = ((planes.q & 0x7F) == 0x7F).reshape(len(raw), groups, -1).any(axis=2)
            d = np.zeros((-(-len(raw) // ROWS) * ROWS, groups), np.float32)
            d[: len(raw)] = np.where(nan, np.float32(np.nan), planes.d * np.float32(256))
            scale[span.start // ROWS :][: len(d) // ROWS] = d.reshape(-1, ROWS, groups).transpose(0, 2, 1)
        elif kind == "f32":
            values = dequantize(QTensor(tensor.format, (len(raw), k), raw))
        else:
            values = np.ascontiguousarray(raw).view(dtype)
        finite.append(_is_finite(values, kind) if scale is None else _is_finite(d, "f32"))
        padded = np.zeros((-(-len(values) // ROWS) * ROWS, k), dtype)
        padded[: len(values)] = values
        first = expert * tiles + span.start // ROWS
        with region.part(first * tile, (first + len(padded) // ROWS) * tile) as out:
            out.view(dtype).reshape(-1, k, ROWS)[...] = padded.reshape(-1, ROWS, k).transpose(0, 2, 1)

    _run(work, _parts(experts, n, k), threads)
    if not all(finite):
        room.tell_not_finite(tensor.name)
    data = region.array().view(dtype).reshape(shape)
    return TiledFloatWeight(kind, n, k, data, scale, tensor.format.group if groups > 1 else 0)


def _is_finite(values: AnyArray, kind: Kind) -> bool:
    if kind == "f32":
        return bool(np.isfinite(values).all())
    exponent = 0x7C00 if kind == "f16" else 0x7F80
    return bool(((values & exponent) != exponent).all())
