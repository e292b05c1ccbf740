"""Products with weights, and what else reads a weight by rows or goes before a product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from octavo.backends.gpu.launch.arguments import matrix
from octavo.backends.gpu.launch.context import Context, Weight
from octavo.backends.gpu.launch.device_values import q8_1, q8_1_bytes
from octavo.backends.gpu.launch.sizes import block_of
from octavo.backends.gpu.matmul import activations
from octavo.backends.gpu.matmul.experts import launch as experts
from octavo.backends.gpu.matmul.experts.gating_fusion import gated_rows, plain_rows
from octavo.backends.gpu.matmul.launch import product, product_by_id, product_pair, rows_of
from octavo.backends.gpu.matmul.lora import lora_launches
from octavo.backends.gpu.matmul.matvec.float8_kernel import FLOAT8_PLANES
from octavo.backends.gpu.matmul.w8a8.row_scales import row_product
from octavo.backends.gpu.ops.quantize import float_call, quantize_call
from octavo.backends.gpu.ops.registry import binds
from octavo.backends.gpu.pointwise import kernel as pointwise
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight
from octavo.backends.gpu.weights.row_scales import RowWeight
from octavo.graph.node import Node
from octavo.graph.protocol import Call


@binds("mul_mat", "mul_mat_add")
def _mul_mat(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    weight, x, *terms = inputs
    return _product(c, weight, x, out, terms)


def _product(c: Context, weight: Weight, x: Any, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> list[Call]:
    return row_product(c, weight, x, y, terms) if isinstance(weight, RowWeight) else product(c, weight, x, y, terms)


@binds("lora")
def _lora(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, rows, starts, table, y = inputs
    return lora_launches(c, table, x, rows, starts, y, out, node.attrs["part"])


@binds("mul_mat_concat")
def _mul_mat_concat(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, *weights = inputs
    weights = c.joined(weights)
    outs = out.split([w.n for w in weights], 1)
    return product_pair(c, weights, x, outs) or [
        call for weight, y in zip(weights, outs, strict=True) for call in _product(c, weight, x, y, ())
    ]


@binds("mul_mat_concat_add")
def _mul_mat_concat_add(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, *more = inputs
    weights, biases = c.joined(more[: len(more) // 2]), c.joined_rows(more[len(more) // 2 :])
    sizes = [w.n for w in weights]
    parts = zip(weights, out.split(sizes, 1), torch.split(biases, sizes), strict=True)
    return [call for weight, y, bias in parts for call in _product(c, weight, x, y, (bias,))]


@binds("mul_mat_id", "mul_mat_id_concat")
def _mul_mat_id(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    weight, x, ids, *others = inputs
    (weight,) = c.joined([weight, *others])
    return _of_experts(c, weight, plain_rows(x), ids, out, ids.shape[1] if x.ndim == 2 else 1)


@binds("mul_mat_id_gated")
def _mul_mat_id_gated(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    return _of_experts(c, inputs[0], gated_rows(node, inputs), inputs[3], out, 1)


def _of_experts(
    c: Context, weight: Weight, rows: experts.Rows, ids: torch.Tensor, out: torch.Tensor, sharing: int
) -> list[Call]:
    """Activations are quantized here, a row for a token or for each token and expert, once for all their products."""
    assert not isinstance(weight, RowWeight)
    if not c.deterministic and (calls := experts.product(c, weight, rows, ids, out, sharing)) is not None:
        return calls
    if isinstance(weight, FloatWeight):
        return _float_product_by_id(c, weight, rows, ids, out, sharing)
    kp, count = weight.kp, rows.count
    if weight.layout.float8:
        planar = c.shared("planar expert inputs", count * kp, torch.float32).view(count, kp)
        calls = [] if c.holds("planar expert inputs", rows.x) else [
            float_call(c, rows.source, count, matrix(planar), None, rows.kind, weight.k, kp, FLOAT8_PLANES)
        ]
        return [*calls, *product_by_id(c, weight, planar, ids, out, sharing)]
    quantized = q8_1(c.shared("experts", q8_1_bytes(count, kp, count), torch.uint8), count, kp, count)
    calls = []
    if not c.holds("expert codes", rows.x):
        calls.append(quantize_call(c, rows.source, count, quantized, rows.kind, weight.k, kp))
    return [*calls, *product_by_id(c, weight, quantized, ids, out, sharing)]


def _float_product_by_id(
    c: Context, w: FloatWeight, rows: experts.Rows, ids: torch.Tensor, out: torch.Tensor, sharing: int
) -> list[Call]:
    """Of float weights, whose kernel takes values as they are."""
    x, calls = rows.x.view(-1, w.k), list[Call]()
    if rows.kind != "values":
        x, block = c.shared("expert values", x.numel(), torch.float32).view(x.shape), block_of(w.k)
        grid = (rows.count, -(-w.k // block))
        calls.append(c.launch(activations.float_kernel, grid, rows.source, matrix(x), None, w.k, w.k, KIND=rows.kind,
                              B=block, PLANES=1))
    return [*calls, *product_by_id(c, w, x, ids, out, sharing)]


@binds("get_rows")
def _get_rows(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    table, ids = inputs
    if isinstance(table, QuantWeight):
        return [rows_of(c, table, ids, out)]
    data = table.data[0] if isinstance(table, FloatWeight) else table
    n, k = data.shape
    grid = (len(out), -(-k // 1024))
    return [c.launch(pointwise.copy_rows_kernel, grid, data, ids, out, data.stride(0), out.stride(0), n, k, B=1024)]


@binds("take_columns")
def _take_columns(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, order = inputs
    tokens, k = x.shape
    block, order = block_of(k), order.int()
    grid = tokens, -(-k // block)
    return [
        c.launch(pointwise.take_columns_kernel, grid, x, order, None, out, x.stride(0), out.stride(0), 1, k, B=block)
    ]


@binds("take_columns_id")
def _take_columns_id(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, orders, ids = inputs
    used, k = out.shape[1:]
    block, orders = block_of(k), orders.int()
    grid = ids.numel(), -(-k // block)
    return [
        c.launch(pointwise.take_columns_kernel, grid, x, orders, ids, out, x.stride(0), out.stride(1), used, k,
                 B=block)
    ]
