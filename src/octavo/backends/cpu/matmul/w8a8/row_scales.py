"""Products of weights that have a scale for each row with int8 activations that have one for each token."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.backends import row_products
from octavo.backends.cpu.device.large_pages import Room
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.matmul.w8a8 import int8_kernel as kernels
from octavo.backends.cpu.matmul.w8a8.activations import Int8Tokens, rows_of, whole
from octavo.backends.cpu.matmul.w8a8.amx_kernel import panels_of, product_kernel
from octavo.backends.cpu.matmul.w8a8.epilogue import EPILOGUE
from octavo.backends.cpu.matmul.w8a8.gemm import (
    GEMM_MIN_TOKENS,
    epilogue_arguments,
    vectors,
    weight_place,
    whole_vectors,
)
from octavo.formats import Planes, QTensor, unpack
from octavo.formats.codec import chunks
from octavo.formats.rows import pack_int4
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat
from octavo.graph.node import Node
from octavo.jit.program import KernelCall, address
from octavo.jit.simd.integers import INT4, INT4_GROUPS, INT8, OFFSETS

CHUNK_VALUES = 1 << 20


@dataclass(frozen=True, eq=False)
class TiledRowWeight:
    """Weights [n, k] as the kernels take them.

    kind    which of `simd.integers` INT8, INT4 and INT4_GROUPS
    codes   int8 [n, whole k]; or uint8 [n, k / 2], of each 64 bytes the low nibbles first; rows one after the other
    groups  float16 [n, k / 128], or None
    scale   float32 [n], filled up to whole vectors
    """

    kind: int
    n: int
    k: int
    codes: AnyArray
    groups: AnyArray | None
    scale: F32


MAX_K = (1 << 17) - 1
"""Values of K whose products an int32 sum holds, whatever the codes."""


def is_row_weight(tensor: QTensor) -> bool:
    """Whether a tensor is a matrix of integers with a scale for each row."""
    return len(tensor.shape) == 2 and tensor.format.per_row and tensor.format.number is None


def row_kind(fmt: BlockFormat) -> int:
    """Which kind of `TiledRowWeight` a format's rows become."""
    return INT8 if fmt.bits == 8 else INT4_GROUPS if fmt.folds else INT4


def pack_rows(tensor: QTensor, threads: int, room: Room) -> TiledRowWeight:
    """A matrix in the layout of the kernels, packed some rows at a time."""
    n, k = tensor.shape
    fmt, stored = tensor.format, tensor.stored()
    kind = row_kind(fmt)
    width = whole(k) if kind == INT8 else k // 2
    region = room.region(n * width)
    groups = np.empty((n, k // fmt.group), np.float16) if kind == INT4_GROUPS else None
    scale = np.zeros(whole_vectors(n), np.float32)

    def work(part: slice) -> bool:
        planes = unpack(QTensor(fmt, (part.stop - part.start, k), stored.rows(part)))
        assert planes.d is not None
        with region.part(part.start * width, part.stop * width) as out:
            codes = _bytes(planes, width) if kind == INT8 else pack_int4(planes.q ^ np.uint8(8))
            out.reshape(-1, width)[...] = codes
        scale[part] = planes.d[:, 0]
        if groups is not None:
            assert planes.sc is not None
            groups[part] = planes.sc
        return bool(np.isfinite(planes.d).all())

    with ThreadPoolExecutor(threads) as pool:
        finite = list(pool.map(work, chunks(n, k, CHUNK_VALUES)))
    if not all(finite):
        room.tell_not_finite(tensor.name)
    data = region.array().reshape(n, width)
    return TiledRowWeight(kind, n, k, data.view(np.int8) if kind == INT8 else data, groups, scale)


def _bytes(planes: Planes, width: int) -> U8:
    signed = planes.q ^ np.uint8(0x80)
    return np.pad(signed, ((0, 0), (0, width - signed.shape[1])))


def supports(node: Node) -> tuple[bool, str]:
    """Whether the kernels compute a node with weights of rows; see `backends.row_products`."""
    found, why_not = row_products.supports(node, is_row_weight)
    k = max(i.tensor.shape[-1] for i in node.inputs if i.op == "weight" and len(i.shape) > 1)
    if found and k > MAX_K:
        return False, f"a product of rows of {k} values in int32 (allowed: up to {MAX_K})"
    return found, why_not


def sums_in_memory(weight: object) -> bool:
    """Whether a product keeps sums in memory that the next call may use too."""
    return isinstance(weight, TiledRowWeight) and whole(weight.k) > kernels.SLICE


def row_product(
    w: TiledRowWeight, x: Int8Tokens, y: AnyArray, terms: Sequence[AnyArray], shared: PlanMemory
) -> list[KernelCall]:
    """The calls for y [T, n] = x [T, k] @ w.T + terms."""
    bias, residual = row_products.bias_and_residual(terms)
    bias = None if bias is None else vectors(bias)
    bias_at = None if bias is None else address(bias)
    end = EPILOGUE.new(
        **epilogue_arguments(y, x.begins(OFFSETS[w.kind]), x.scales, address(w.scale), bias_at, residual)
    )
    keep, place = (w, x.raw, y, bias, residual, end), weight_place(w.codes, w.groups)
    if x.tokens < GEMM_MIN_TOKENS:
        return _matvec(w, x, place, end, keep)
    parts = shared.memory("sums", (len(w.scale) * rows_of(x.tokens),), np.int32) if sums_in_memory(w) else 0
    rows = 16 * (panels := panels_of(w.n, shared.threads))
    call = KernelCall(
        product_kernel(w.kind), -(-w.n // rows), keep,
        **place, x=x.raw, wide_tiles=x.wide, narrow_tiles=x.narrow, partial_sums=parts, panels=panels, end=end,
    )
    call.reads = address(w.codes), rows * w.codes.strides[0]
    return [call]


def _matvec(w: TiledRowWeight, x: Int8Tokens, place: dict[str, int], end: AnyArray, keep: Any) -> list[KernelCall]:
    calls, width = [], whole(x.k)
    for first, size in kernels.parts_of(x.tokens):
        call = KernelCall(
            kernels.matvec_kernel(w.kind, size), -(-w.n // 16), keep,
            **place, x=address(x.raw) + first * width, x_stride=width, first_token=first, end=end,
        )
        call.overlaps = first + size < x.tokens
        call.reads = address(w.codes), 16 * w.codes.strides[0]
        calls.append(call)
    return calls
