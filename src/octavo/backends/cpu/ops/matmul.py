"""Products with weights, and what else reads a weight by rows or goes before a product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.backends.cpu.launch.calls import copy_rows, stride, weight_arguments
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.matmul import float_kernel as float_mul_mat
from octavo.backends.cpu.matmul import rows_kernel as rows
from octavo.backends.cpu.matmul.adapters import lora_calls
from octavo.backends.cpu.matmul.experts.launch import product_of_experts
from octavo.backends.cpu.matmul.launch import product
from octavo.backends.cpu.matmul.w8a8.row_scales import sums_in_memory
from octavo.backends.cpu.ops.registry import binds
from octavo.backends.cpu.pointwise import routing_kernel as routing
from octavo.backends.cpu.weights.pack import TiledFloatWeight, TiledWeight
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.jit.program import KernelCall


@binds("mul_mat", "mul_mat_add")
def _mul_mat(node: Node, inputs: Sequence[Any], out: Any, shared: PlanMemory) -> list[KernelCall]:
    weight, x, *terms = inputs
    return product(weight, x, out, terms, shared, node.inputs[1])


@binds("lora")
def _lora(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, rows, starts, table, y = inputs
    return lora_calls(table, x, rows, starts, y, out, node.attrs["part"], shared)


@binds("mul_mat_concat")
def _mul_mat_concat(node: Node, inputs: Sequence[Any], out: Any, shared: PlanMemory) -> list[KernelCall]:
    x, *weights = inputs
    calls, start = [], 0
    for weight in weights:
        made = product(weight, x, out[:, start : start + weight.n], (), shared, node.inputs[0])
        if made:
            made[-1].overlaps = weight is not weights[-1] and not sums_in_memory(weight)
        calls += made
        start += weight.n
    return calls


@binds("mul_mat_id")
def _mul_mat_id(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    return product_of_experts(node, inputs, out, shared)


@binds("get_rows")
def _get_rows(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    table, ids = inputs
    if isinstance(table, TiledWeight):
        kernel = rows.get_rows_kernel(table.layout)
    elif isinstance(table, TiledFloatWeight):
        kernel = float_mul_mat.float_get_rows_kernel(table.kind, table.group)
    else:
        return [copy_rows(out, table, ids)]
    parts = weight_arguments(table)
    return [KernelCall(
        kernel, len(out), (table,), y=out, y_stride=stride(out), weights=table.data, k=table.k,
        table=parts["table"], scales=parts["scales"], rows=ids,
    )]


@binds("take_columns_id")
def _take_columns_id(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, orders, ids = inputs
    used, k = out.shape[1:]
    columns = shared.memory("columns", (ids.size, k), np.int32)
    taken = copy_rows(columns, orders.astype(np.int32).reshape(-1, k), ids.reshape(-1))
    return [taken, *(
        KernelCall(
            routing.gather_kernel(), len(out), (columns,),
            y=out[:, i], y_stride=stride(out), x=x, x_stride=stride(x), ids=columns[i:], ids_stride=used * k * 4, k=k,
        )
        for i in range(used)
    )]


@binds("take_columns")
def _take_columns(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, order = inputs
    ids = order.astype(np.int32)
    return [KernelCall(
        routing.gather_kernel(), len(out),
        y=out, y_stride=stride(out), x=x, x_stride=stride(x), ids=ids, ids_stride=0, k=out.shape[1],
    )]
