"""Products of weights that have a scale for each row with 8-bit activations that have one for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from octavo.backends import row_products
from octavo.backends.gpu.launch.arguments import Matrix, Source
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import TokenCodes
from octavo.backends.gpu.matmul.activations_per_token import token_codes_kernel
from octavo.backends.gpu.matmul.w8a8 import gemm
from octavo.backends.gpu.weights.row_scales import RowWeight
from octavo.graph.node import Node
from octavo.graph.protocol import Call

TOPS = {"int8": 127.0, "e4m3": 448.0}
"""The largest codes."""


def supports(node: Node) -> tuple[bool, str]:
    """Whether a node with weights of rows is a product that is computed here; see `backends.row_products`."""
    return row_products.supports(node, lambda w: len(w.shape) == 2)


def row_product(c: Context, w: RowWeight, x: TokenCodes, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> list[Call]:
    """The call for y [T, n] = x [T, k] @ w.T + terms."""
    bias, residual = row_products.bias_and_residual(terms)
    after: dict[str, Any] = {"bias": bias, "residual": residual, "workspace": c.workspace(x.tokens, w.n, w.k), "out": y}

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
) -> Call:
    """The call that quantizes a Source [T, K], of which `kind` says what is made; `block` holds K, `least` is that of
    the kernel."""
    code = "int8" if out.is_int8 else "e4m3"
    return c.launch(
        token_codes_kernel, (out.tokens,), source, Matrix(out.bytes, out.k), out.scales, out.k, TOPS[code],
        static_scale, least, KIND=kind, CODE=code, B=block, warps=warps, exact=True,
    )
