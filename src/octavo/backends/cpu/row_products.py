"""Products of weights that have a scale for each row with int8 activations that have one for each token."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from octavo.backends.cpu.gemm import FEW
from octavo.backends.cpu.kernels import int8_gemm as kernels
from octavo.backends.cpu.pages import Arena
from octavo.backends.cpu.program import KernelCall, address
from octavo.backends.cpu.simd.integers import INT4, INT4_GROUPS, INT8, OFFSETS
from octavo.backends.cpu.tokens import TokenCodes, whole, zeros
from octavo.formats import Planes, QTensor, unpack
from octavo.formats.channel import nibbles
from octavo.formats.spec import F32, U8, AnyArray
from octavo.graph.node import Node

log = logging.getLogger("octavo")

Shared = dict[object, AnyArray]
CHUNK_VALUES = 1 << 20


@dataclass(frozen=True, eq=False)
class RowWeight:
    """Weights [n, k] as the kernels take them.

    kind    which of `simd.integers` INT8, INT4 and INT4_GROUPS
    codes   int8 [n, whole k]; or uint8 [n, k / 2], of each 64 bytes the low nibbles first; rows one after the other
    groups  float16 [n, k / 128], or None
    scale   float32 [n], filled up to whole vectors; and as many zeros, float32 and int32
    """

    kind: int
    n: int
    k: int
    codes: AnyArray
    groups: AnyArray | None
    scale: F32
    nothing: F32
    columns: AnyArray


MOST = (1 << 17) - 1
"""Values of K whose products an int32 sum holds, whatever the codes."""


def is_row_weight(tensor: QTensor) -> bool:
    """Whether a tensor is a matrix of integers with a scale for each row."""
    return len(tensor.shape) == 2 and tensor.format.per_row and tensor.format.number is None


def pack_rows(tensor: QTensor, threads: int, arena: Arena) -> RowWeight:
    """A matrix in the layout of the kernels, packed some rows at a time."""
    n, k = tensor.shape
    fmt, data = tensor.format, tensor.data
    kind = INT8 if fmt.bits == 8 else INT4_GROUPS if fmt.folds else INT4
    width = whole(k) if kind == INT8 else k // 2
    codes = arena.take(n * width).reshape(n, width)
    groups = np.empty((n, k // fmt.group), np.float16) if kind == INT4_GROUPS else None
    scale = np.zeros(len(zeros(n)), np.float32)

    def work(part: slice) -> bool:
        planes = unpack(QTensor(fmt, (part.stop - part.start, k), data[part]))
        assert planes.d is not None
        codes[part] = _bytes(planes, width) if kind == INT8 else nibbles(planes.q)
        scale[part] = planes.d[:, 0]
        if groups is not None:
            assert planes.sc is not None
            groups[part] = planes.sc
        return bool(np.isfinite(planes.d).all())

    step = max(1, CHUNK_VALUES // k)
    with ThreadPoolExecutor(threads) as pool:
        finite = list(pool.map(work, [slice(i, min(i + step, n)) for i in range(0, n, step)]))
    if not all(finite):
        log.warning("tensor %s holds NaN or Inf", tensor.name)
    return RowWeight(kind, n, k, codes.view(np.int8) if kind == INT8 else codes, groups, scale,
                     np.zeros_like(scale), zeros(n))  # fmt: skip


def _bytes(planes: Planes, width: int) -> U8:
    signed = planes.q ^ np.uint8(0x80)
    return np.pad(signed, ((0, 0), (0, width - signed.shape[1])))


def supports(node: Node) -> tuple[bool, str]:
    """Whether the kernels compute a node with weights of rows: a product, with at most a bias and a residual."""
    weights = [i.tensor for i in node.inputs if i.op == "weight" and len(i.shape) > 1]
    if node.op not in ("mul_mat", "mul_mat_concat", "mul_mat_add") or not all(map(is_row_weight, weights)):
        return False, f"no kernel for {node.op} of {weights[0].format.name}"
    k = max(w.shape[1] for w in weights)
    if k > MOST:
        return False, f"a product of rows of {k} values in int32 (allowed: up to {MOST})"
    ranks = [len(term.shape) for term in node.inputs[2:]] if node.op == "mul_mat_add" else [1]
    return ranks in ([1], [2], [1, 2]), f"terms of {ranks} dimensions added to a product (allowed: a bias, a residual)"


def sums_in_memory(weight: object) -> bool:
    """Whether a product keeps sums in memory that the next call may use too."""
    return isinstance(weight, RowWeight) and whole(weight.k) > kernels.SLICE


def row_product(
    w: RowWeight, x: TokenCodes, y: AnyArray, terms: Sequence[AnyArray], shared: Shared
) -> list[KernelCall]:
    """The calls for y [T, n] = x [T, k] @ w.T + terms."""
    bias = next((t for t in terms if t.ndim == 1), None)
    residual = next((t for t in terms if t.ndim == 2), None)
    if bias is not None and len(bias) % 16:
        bias = np.pad(bias, (0, len(w.scale) - w.n))
    bias = w.nothing if bias is None else bias
    no_zeros = _shared(shared, "zeros", x.tokens)
    keep: tuple[object, ...] = (w, x.raw, y, bias, residual, no_zeros)
    source = [address(w.codes), w.codes.strides[0], 0, 0, w.codes.shape[1]]
    if w.groups is not None:
        source[2:4] = address(w.groups), w.groups.strides[0]
    if x.tokens < FEW:
        return _few(w, x, y, bias, residual, no_zeros, source, keep)
    tokens = _rows_of(x)
    parts = 0
    if sums_in_memory(w):
        memory = _shared(shared, "sums", len(w.scale) * tokens)
        parts, keep = address(memory), (*keep, memory)
    args = [*source, address(x.raw), parts, *_epilogue(w, x, y, bias, residual, no_zeros, 0), x.wide, x.narrow]
    return [KernelCall(kernels.many_kernel(w.kind), args, -(-w.n // 16), keep=keep)]


def _rows_of(x: TokenCodes) -> int:
    return x.wide * kernels.WIDE + x.narrow * kernels.NARROW


def _few(
    w: RowWeight, x: TokenCodes, y: AnyArray, bias: AnyArray, residual: AnyArray | None, no_zeros: AnyArray,
    source: list[int], keep: tuple[object, ...],
) -> list[KernelCall]:  # fmt: skip
    calls, first, width = [], 0, whole(x.k)
    for tokens in (4, 2, 1):
        while x.tokens - first >= tokens:
            end = _epilogue(w, x, y, bias, residual, no_zeros, first)
            args = [*source, address(x.raw) + first * width, width, *end]
            last = first + tokens == x.tokens
            calls.append(KernelCall(kernels.few_kernel(w.kind, tokens), args, -(-w.n // 16), keep=keep,
                                    overlaps=not last))  # fmt: skip
            first += tokens
    return calls


def _epilogue(
    w: RowWeight, x: TokenCodes, y: AnyArray, bias: AnyArray, residual: AnyArray | None, no_zeros: AnyArray, first: int
) -> list[int]:
    """What `kernels.int8_gemm.epilogue` reads, for the tokens from `first` on; there are no zero points."""
    begins = x.begins(OFFSETS[w.kind]) + 4 * first
    place = [0, 0] if residual is None else [address(residual) + first * residual.strides[0], residual.strides[0]]
    return [
        x.tokens - first, w.n, begins, address(no_zeros), address(w.columns), x.scales + 4 * first, address(w.scale),
        address(bias), 0, *place, address(y) + first * y.strides[0], y.strides[0], 0, 0,
    ]  # fmt: skip


def _shared(shared: Shared, name: str, size: int) -> AnyArray:
    """int32 memory that calls one after the other have in common; zeros until one of them writes."""
    key = name, size
    if key not in shared:
        shared[key] = np.zeros(size, np.int32)
    return shared[key]
