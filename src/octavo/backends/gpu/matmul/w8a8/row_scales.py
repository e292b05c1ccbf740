"""Products of weights that have a scale for each row with 8-bit activations that have one for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from octavo.backends import row_products
from octavo.backends.gpu.launch.arguments import Constant, Matrix, Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import TokenCodes
from octavo.backends.gpu.launch.sizes import warps_of
from octavo.backends.gpu.matmul.activations_per_token import token_codes_kernel, token_maxima_kernel
from octavo.backends.gpu.matmul.w8a8 import gemm
from octavo.backends.gpu.matmul.w8a8.row_matvec_kernel import row_matvec_kernel
from octavo.backends.gpu.matmul.w8a8.streamk import streamk_product
from octavo.backends.gpu.matmul.w8a8.w4a8_mma import mma_product, mma_shape
from octavo.backends.gpu.matmul.w8a8.w4a8_multicta import multicta_product, multicta_shape
from octavo.backends.gpu.weights.row_scales import RowWeight
from octavo.graph.node import Node
from octavo.graph.protocol import Call

TOPS = {"int8": 127.0, "e4m3": 448.0}
"""The largest codes."""
MOST_TOKENS = 2
"""Of `row_matvec_kernel`: of more the products of tensor cores are as fast or faster."""
FEW_ROWS = 4096
"""Of which programs of eight are too few: 4096 x 14336 int4 weights take 8.5 us on an H200 by four, 10.5 by eight."""
MANY_ROWS, LONG_ROWS = 8192, 8192
"""Of 4-bit weights: rows from which on there are enough programs of eight, and values that fill larger ones."""
DIVIDED_ROW, ROW_PART, FEW_LONG_ROWS = 8192, 1024, 64
"""Values of a row that a program alone takes long for, of a part of it, and tokens up to which such rows are divided:
14,336 values after SwiGLU take a multiprocessor 8 us of instructions on an H200."""
MOST_OVERLAPPED = 64
"""Tokens of products whose weights are on their way before the kernel before ends; all programs of more do not fit."""


def supports(node: Node) -> tuple[bool, str]:
    """Whether a node with weights of rows is a product that is computed here; see `backends.row_products`."""
    if node.op == "mul_mat_concat_add":
        return all(len(i.shape) < 3 for i in node.inputs if i.op == "weight"), "weights of experts"
    return row_products.supports(node, lambda w: len(w.shape) == 2)


@dataclass(frozen=True)
class RowMatvecShape(Constant):
    """What `row_matvec_kernel` is compiled for.

    kind     of codes: "int8", "fp8", "int4" or "int4_groups"
    k        values of a row
    block_n  rows of a program
    words    words of codes, four bytes, that are loaded at once
    warps
    """

    kind: str
    k: int
    block_n: int
    words: int
    warps: int

    @property
    def length(self) -> int:
        """Words of a row."""
        return self.k // (4 if self.kind in ("int8", "fp8") else 8)


def row_matvec_shape(w: RowWeight, tokens: int, arch: str) -> RowMatvecShape | None:
    """The shape of a product with a few tokens; None for more, and for rows that do not end at whole 16 bytes."""
    kind = {torch.int8: "int8", torch.uint8: "int4" if w.groups is None else "int4_groups"}.get(w.codes.dtype, "fp8")
    most = 1 if kind == "fp8" and arch.startswith("gfx11") else MOST_TOKENS  # which has too few registers
    if not 0 < tokens <= most or w.k % 16:
        return None
    if arch == "interpreter":
        return RowMatvecShape(kind, w.k, 32, 64, 1)
    if kind.startswith("int4"):
        return _int4_shape(w, kind, tokens)
    few = tokens > 1 or kind == "fp8" or w.n <= FEW_ROWS  # registers, or programs
    return RowMatvecShape(kind, w.k, 4 if few else 8, 256, 2)


def _int4_shape(w: RowWeight, kind: str, tokens: int) -> RowMatvecShape:
    """As they measured fastest on an H200."""
    many, long = w.n > MANY_ROWS, w.k > LONG_ROWS
    wide = many if tokens > 1 else long and kind == "int4"
    rows = 8 if tokens > 1 or long or (many and kind == "int4") else 4
    return RowMatvecShape(kind, w.k, rows, 512 if wide else 256, 4 if wide else 2)


def row_product(c: Context, w: RowWeight, x: TokenCodes, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> list[Call]:
    """The calls for y [T, n] = x [T, k] @ w.T + terms. Scales of groups multiply sums of a few tokens, and are folded
    into codes for more."""
    if shape := row_matvec_shape(w, x.tokens, c.target.arch):
        return [c.launch(
            row_matvec_kernel, (-(-w.n // shape.block_n),), w.codes.view(torch.int32), w.scale,
            None if w.groups is None else w.groups.t(), x.bytes.view(torch.int32), x.scales, tuple(map(matrix, terms)),
            matrix(y), w.n, TOKENS=x.tokens, shape=shape, ASM=c.target.asm, warps=shape.warps,
        )]
    if of_lanes := mma_shape(w, x.tokens, c.target.arch):
        return [mma_product(c, of_lanes, w, x, y, terms)]
    if few := multicta_shape(w, x.tokens, c.target.arch):
        return multicta_product(c, few, w, x, y, terms, lambda: _gemm(c, w, x, y, terms))
    if w.codes.dtype != torch.uint8:
        scales = x.scales, w.scale
        return streamk_product(c, x.codes, w.codes, scales, y, terms, lambda: _gemm(c, w, x, y, terms))
    return _gemm(c, w, x, y, terms)


def _gemm(c: Context, w: RowWeight, x: TokenCodes, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> list[Call]:
    """`row_product` by a function of `octavo.ops`."""
    bias, residual = row_products.bias_and_residual(terms)
    after: dict[str, Any] = {"bias": bias, "residual": residual, "workspace": c.workspace(x.tokens, w.n, w.k), "out": y}
    after["overlaps"] = x.tokens <= MOST_OVERLAPPED

    def run() -> None:
        if w.codes.dtype == torch.uint8:
            gemm.w4a8_gemm(x.codes, w.codes, x.scales, w.scale, w.groups, **after)
        elif w.codes.dtype == torch.int8:
            gemm.int8_gemm(x.codes, w.codes, x.scales, w.scale, **after)
        else:
            gemm.fp8_gemm(x.codes, w.codes, x.scales, w.scale, **after)

    return [run]


def quantize_tokens(
    c: Context, out: TokenCodes, source: Source, kind: Any, block: int, warps: int, static_scale: float | None = None,
    least: torch.Tensor | None = None,
) -> list[Call]:
    """The calls that quantize a Source [T, K], of which `kind` says what is made; `block` holds K, `least` is that of
    the kernel."""
    code = "int8" if out.is_int8 else "e4m3"
    parts, calls, maxima = 1, list[Call](), None
    divides = kind != "rms_norm" and static_scale is None and DIVIDED_ROW < out.k <= 32 * ROW_PART
    if divides and out.tokens <= FEW_LONG_ROWS:
        block, warps, parts = ROW_PART, warps_of(ROW_PART), -(-out.k // ROW_PART)
        maxima = c.shared("maxima", out.tokens * parts, torch.int32)
        calls = [c.launch(token_maxima_kernel, (out.tokens, parts), source, maxima, out.k, KIND=kind, B=block,
                          warps=warps, exact=True)]
    return [*calls, c.launch(
        token_codes_kernel, (out.tokens, parts), source, Matrix(out.bytes, out.k), out.scales, out.k, TOPS[code],
        static_scale, least, maxima, KIND=kind, CODE=code, B=block, PARTS=parts, warps=warps, exact=True,
    )]
