"""Products of weights and activations: which kernel for how many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from octavo.backends.gpu import dispatch
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.kernels import dequantize, elementwise, matvec, mmq_dot
from octavo.backends.gpu.kernels.mmq_mma.kernel import mmq_mma_kernel
from octavo.backends.gpu.mixed_gemm import mixed_gemm
from octavo.backends.gpu.values import Activation
from octavo.backends.gpu.weights import FloatWeight, QuantWeight
from octavo.graph.protocol import Call

Weight = QuantWeight | FloatWeight


def product(c: Context, weight: Weight, x: Any, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> list[Call]:
    """The calls for y [T, n] = x [T, k] @ weight.T + terms."""
    if isinstance(weight, FloatWeight):
        return _float_product(c, weight, x, y, terms)
    assert isinstance(x, Activation)
    if x.tokens > dispatch.INT8_MAX_TOKENS:
        return halves_product(c, weight, x.halves, y, terms)
    in_registers = dispatch.mixed_gemm(weight.layout, weight.n, weight.kp, x.tokens, c.target.arch)
    if in_registers:
        return mixed_gemm(c, in_registers, weight, x, y, terms, lambda: product(c, weight, x, y, terms))
    shape = dispatch.mmq_mma(weight.layout, weight.n, weight.kp, x.tokens, c.target.arch)
    if shape:
        return [_mmq_mma(c, shape, weight, x, y, terms)]
    if x.tokens <= dispatch.MATVEC_MAX_TOKENS:
        return [_matvec(c, weight, x, y, terms)]
    return [_mmq_dot(c, weight, x, y, terms)]


def _terms(terms: Sequence[torch.Tensor], some: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """Two terms and the elements from a token's row to the next; 0 for one row that all tokens share."""
    padded = [*terms, *(some for _ in range(2 - len(terms)))]
    return tuple(padded), tuple(t.stride(0) if t.ndim == 2 else 0 for t in padded)


def _matvec(c: Context, w: QuantWeight, x: Activation, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> Call:
    codes, d, _, s16 = x.q8_1
    shape = dispatch.matvec(w.layout, w.n, w.kp, x.tokens, c.target.arch)
    more, strides = _terms(terms, y)
    return c.launch(
        matvec.matvec_kernel, (-(-w.n // shape.rows),), *w.arguments, codes.view(torch.int32), d, s16, d, *more, y, w.n,
        x.tp, 1, y.stride(0), *strides, **w.constants, T=x.tokens, TERMS=len(terms), IDS=False, BN=shape.rows,
        BC=shape.chunks,
        AHEAD=shape.ahead, ASM=c.target.asm, warps=shape.warps,
    )  # fmt: skip


def _mmq_mma(
    c: Context, shape: dispatch.MmaShape, w: QuantWeight, x: Activation, y: torch.Tensor,
    terms: Sequence[torch.Tensor],
) -> Call:  # fmt: skip
    codes, d, s, s16 = x.q8_1
    more, strides = _terms(terms, y)
    programs = -(-w.n // (16 * shape.row_tiles))
    token_tiles = 1 << max(0, (x.tokens - 1).bit_length() - 3)
    shares = c.shared("shares", shape.splits * programs * 128 * shape.row_tiles * token_tiles, torch.float32)
    return c.launch(
        mmq_mma_kernel, (programs, shape.splits), *w.arguments, codes, d, s, s16, *more, y, shares,
        c.counters(programs), w.n, x.tokens, y.stride(0), *strides, **w.constants, RT=shape.row_tiles, NT=token_tiles,
        TP=x.tp, TERMS=len(terms), WARPS=shape.warps, AHEAD=shape.ahead, SPLITS=shape.splits,
        SMALL=w.n < 16 * shape.row_tiles, ASM=c.target.asm, warps=shape.warps,
    )  # fmt: skip


def _mmq_dot(c: Context, w: QuantWeight, x: Activation, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> Call:
    codes, d, s, s16 = x.q8_1
    shape = dispatch.mmq_dot(w.layout, w.n, w.kp, x.tokens, c.target.arch)
    more, strides = _terms(terms, y)
    row_tiles, token_tiles = -(-w.n // shape.rows), -(-x.tokens // shape.tokens)
    shares = c.shared("shares", shape.splits * token_tiles * shape.tokens * row_tiles * shape.rows, torch.float32)
    finished = c.counters(row_tiles * token_tiles)
    return c.launch(
        mmq_dot.mmq_dot_kernel, (row_tiles, token_tiles, shape.splits), *w.byte_arguments, codes, d, s, s16, *more, y,
        shares,
        finished, w.n, x.tokens, y.stride(0), *strides, **w.constants, T=shape.tokens, TP=x.tp, TERMS=len(terms),
        B=shape.warps, BN=shape.rows, STAGES=shape.stages, SPLITS=shape.splits, ASM=c.target.asm, warps=shape.warps,
        stages=shape.stages,
    )  # fmt: skip


def halves_product(
    c: Context, w: QuantWeight, x: torch.Tensor, y: torch.Tensor, terms: Sequence[torch.Tensor] = ()
) -> list[Call]:
    """The calls for y [T, n] = x float16 [T, kp] @ w.T + terms: weights become float16 in registers; or, where that has
    no kernel, in memory that all products share, for a library product."""
    shape = dispatch.mixed_gemm(w.layout, w.n, w.kp, len(x), c.target.arch)
    if shape:
        return mixed_gemm(c, shape, w, x, y, terms, lambda: halves_product(c, w, x, y, terms))
    halves, unpack = unpacked(c, w)
    calls: list[Call] = [unpack, lambda: library_product(x, halves, y)]
    return calls + _added(c, y, terms)


def unpacked(c: Context, w: QuantWeight) -> tuple[torch.Tensor, Call]:
    """Memory for the weights as float16 [n, kp], which lasts until the next call, and the call that fills it."""
    halves = c.shared("weights", w.n * w.kp, torch.float16).view(w.n, w.kp)
    rows, chunks = dispatch.unpacking(w.kp)
    grid = (-(-w.n // rows), -(-w.kp // (32 * chunks)))
    return halves, c.launch(
        dequantize.dequantize_kernel, grid, *w.arguments, halves, halves, w.n, w.n, w.kp, w.kp, **w.constants,
        ROWS=False, BN=rows, BC=chunks, ASM=c.target.asm,
    )  # fmt: skip


def library_product(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
    """y f32 [T, N] = x [T, K] @ w [N, K].T by the vendor's library; in f32 on the CPU (interpreted kernels)."""
    if x.device.type == "cpu":
        y.copy_(x.float() @ w.float().T)
    elif x.dtype == torch.float32:
        torch.mm(x, w.T, out=y)
    else:
        torch.mm(x, w.T, out_dtype=torch.float32, out=y)


def _added(c: Context, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> list[Call]:
    grid = (len(y), -(-y.shape[1] // 1024))
    return [
        c.launch(elementwise.binary_kernel, grid, y, t, y, y.stride(0), t.stride(0) if t.ndim == 2 else 0, y.stride(0),
                 y.shape[1], OP="add", B=1024)
        for t in terms
    ]  # fmt: skip


def _float_product(
    c: Context, w: FloatWeight, x: torch.Tensor, y: torch.Tensor, terms: Sequence[torch.Tensor]
) -> list[Call]:
    if len(x) <= dispatch.MATVEC_MAX_TOKENS:
        more, strides = _terms(terms, y)
        return [_float_matvec(c, w, x, y, x, 1, more, strides, len(terms), False)]
    matrix = w.data[0]
    if matrix.dtype == torch.float16:
        halves = torch.empty(x.shape, dtype=torch.float16, device=x.device)

        def run() -> None:
            halves.copy_(x)
            library_product(halves, matrix, y)

    else:

        def run() -> None:
            library_product(x, matrix.float(), y)

    return [run, *_added(c, y, terms)]


def _float_matvec(
    c: Context, w: FloatWeight, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor, sharing: int,
    terms: tuple[torch.Tensor, ...], strides: tuple[int, ...], count: int, by_id: bool,
) -> Call:  # fmt: skip
    rows = 64 if c.target.arch == "interpreter" else 4
    return c.launch(
        elementwise.float_matvec_kernel, (-(-w.n // rows), len(y)), w.data, x, ids, *terms, y, w.n, w.k, sharing,
        x.stride(0), y.stride(0), *strides, TERMS=count, IDS=by_id, BN=rows, BK=min(512, 1 << (w.k - 1).bit_length()),
    )  # fmt: skip


def product_by_id(c: Context, w: Weight, x: Any, ids: torch.Tensor, out: torch.Tensor, sharing: int) -> list[Call]:
    """out [T, used, n]: row i = (token, choice) is expert ids[i] times row i // sharing of x.

    For quantized weights x is (codes int8, d, s16), as `kernels.activations` has them, scales of all rows side by side.
    """
    y = out.view(-1, w.n)
    if isinstance(w, FloatWeight):
        return [_float_matvec(c, w, x, y, ids, sharing, (y, y), (0, 0), 0, True)]
    codes, d, s16 = x
    shape = dispatch.matvec(w.layout, w.n, w.kp, 1, c.target.arch)
    rows = len(y) // sharing
    return [c.launch(
        matvec.matvec_kernel, (-(-w.n // shape.rows), len(y)), *w.arguments, codes.view(torch.int32), d, s16, ids,
        y, y, y, w.n, rows, sharing, y.stride(0), 0, 0, **w.constants, T=1, TERMS=0, IDS=True, BN=shape.rows,
        BC=shape.chunks,
        AHEAD=shape.ahead, ASM=c.target.asm, warps=shape.warps,
    )]  # fmt: skip


def rows_of(c: Context, w: QuantWeight, ids: torch.Tensor, out: torch.Tensor) -> Call:
    """out f32 [T, k]: rows of the weights."""
    grid = (len(out), -(-w.kp // 1024))
    return c.launch(
        dequantize.dequantize_kernel, grid, *w.arguments, ids, out, w.n, len(out), out.stride(0), w.k, **w.constants,
        ROWS=True, BN=1, BC=32, ASM=c.target.asm, warps=1,
    )  # fmt: skip
