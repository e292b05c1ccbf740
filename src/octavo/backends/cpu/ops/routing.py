"""Which experts a token goes to, and what becomes of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.backends.cpu.launch.calls import rows_call, stride
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.ops.registry import binds
from octavo.backends.cpu.pointwise import routing_kernel as routing
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.jit.program import KernelCall


@binds("top_k")
def _top_k(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    (x,) = inputs
    return [KernelCall(
        routing.top_k_kernel(), len(out),
        ids=out, ids_stride=stride(out), x=x, x_stride=stride(x), n=x.shape[1], k=out.shape[1],
    )]


@binds("keep_groups")
def _keep_groups(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    groups, used, best = (node.attrs[name] for name in ("groups", "used", "best"))
    kernel = routing.keep_groups_kernel(groups)
    return [rows_call(kernel, out, inputs[0], size=out.shape[1] // groups, used=used, best=best)]


@binds("numbers")
def _numbers(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    return [KernelCall(routing.numbers_kernel(), len(out), y=out, y_stride=stride(out), k=out.shape[1])]


@binds("gather")
def _gather(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, ids = inputs
    x_stride = stride(x) if x.ndim == 2 else 0
    return [KernelCall(
        routing.gather_kernel(), len(out),
        y=out, y_stride=stride(out), x=x, x_stride=x_stride, ids=ids, ids_stride=stride(ids), k=out.shape[1],
    )]


@binds("sparse_shares")
def _sparse_shares(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, ids = inputs
    return [rows_call(
        routing.sparse_shares_kernel(), out, x, ids=ids, ids_stride=stride(ids), n=x.shape[1], k=out.shape[1],
        tolerance=float(node.attrs["tolerance"]),
    )]


@binds("add_rows")
def _add_rows(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, rows, ids = inputs
    k = x.shape[2]
    return [KernelCall(
        routing.add_rows_kernel(), ids.size, y=out, y_stride=4 * k, x=x, x_stride=4 * k, rows=rows, ids=ids, k=k
    )]


@binds("weighted_sum")
def _weighted_sum(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, weights = inputs
    return [rows_call(
        routing.weighted_sum_kernel(), out, x,
        weights=weights, weights_stride=stride(weights), sums=out[0].size // x.shape[2], k=x.shape[1], n=x.shape[2],
    )]
