"""For each op, the kernel calls that compute it: which kernel, which arguments, how many tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from octavo.backends.cpu.calls import copy_rows, stride, weight_arguments
from octavo.backends.cpu.experts import product_of_experts
from octavo.backends.cpu.kernels import attention, elementwise, float_mul_mat, quantize, rope, routing, rows
from octavo.backends.cpu.kernels.quantize_token import round_fp8_kernel
from octavo.backends.cpu.pack import FloatWeight, QuantWeight
from octavo.backends.cpu.products import product
from octavo.backends.cpu.row_products import sums_in_memory
from octavo.backends.cpu.shared import Shared
from octavo.backends.cpu.tokens import TokenCodes, quantize_tokens
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.jit.program import KernelCall, address

Bind = Callable[[Node, Sequence[Any], Any, Shared], list[KernelCall]]

BINDERS: dict[str, Bind] = {}
TILES = quantize.TILES
ROPE_RUN = 32  # tokens whose keys fill lines of the cache; one at a time where tokens are few
SPLIT_TASKS = 32  # tasks of attention with one token a sequence; not by threads, so that results do not depend on those


def _binds(*names: str) -> Callable[[Bind], Bind]:
    def register(bind: Bind) -> Bind:
        BINDERS.update(dict.fromkeys(names, bind))
        return bind

    return register


@_binds("mul_mat", "mul_mat_add")
def _mul_mat(node: Node, inputs: Sequence[Any], out: Any, shared: Shared) -> list[KernelCall]:
    weight, x, *terms = inputs
    return product(weight, x, out, terms, shared)


@_binds("mul_mat_concat")
def _mul_mat_concat(node: Node, inputs: Sequence[Any], out: Any, shared: Shared) -> list[KernelCall]:
    x, *weights = inputs
    calls, start = [], 0
    for weight in weights:
        made = product(weight, x, out[:, start : start + weight.n], (), shared)
        if made:
            made[-1].overlaps = weight is not weights[-1] and not sums_in_memory(weight)
        calls += made
        start += weight.n
    return calls


@_binds("get_rows")
def _get_rows(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    table, ids = inputs
    if isinstance(table, QuantWeight):
        kernel = rows.get_rows_kernel(table.layout)
    elif isinstance(table, FloatWeight):
        kernel = float_mul_mat.float_get_rows_kernel(table.kind, table.group)
    else:
        return [copy_rows(out, table, ids)]
    parts = weight_arguments(table)
    return [KernelCall(
        kernel, len(out), (table,), y=out, y_stride=stride(out), weights=table.data, k=table.k,
        table=parts["table"], scales=parts["scales"], rows=ids,
    )]  # fmt: skip


@_binds("rms_norm")
def _rms_norm(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    if node.quantizes:
        return _quantize(node, inputs, out, shared)
    x, weight = inputs
    heads, k = (x.shape[1], x.shape[2]) if x.ndim == 3 else (1, x.shape[1])
    return [_rows_call(
        elementwise.rms_norm_kernel(), out, x, weight=weight, k=k, eps=float(node.attrs["eps"]),
        heads=heads, y_head_stride=k * 4, x_head_stride=k * 4,
    )]  # fmt: skip


@_binds("layer_norm")
def _layer_norm(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, weight, *bias = inputs
    kernel, given = elementwise.layer_norm_kernel(bool(bias)), bias[0] if bias else 0
    return [_rows_call(kernel, out, x, weight=weight, bias=given, k=x.shape[1], eps=float(node.attrs["eps"]))]


@_binds("quantize")
def _quantize(node: Node, inputs: Sequence[Any], out: Any, shared: Shared) -> list[KernelCall]:
    """`quantize`, or the op whose result is quantized on its way out."""
    x, *other = inputs
    tokens, k = x.shape
    if node.dtype == "fp8_token":
        return [KernelCall(round_fp8_kernel(), tokens, out=out, k=k, x=x, x_stride=stride(x))]
    source: quantize.Source = "values"
    more: dict[str, Any] = {"other": 0, "other_stride": 0, "eps": 0.0}
    if node.op == "rms_norm":
        source, more = "rms_norm", more | {"other": other[0], "eps": float(node.attrs["eps"])}
    elif node.op in ("swiglu", "geglu"):
        source, more = cast("quantize.Source", node.op), more | {"other": other[0], "other_stride": stride(other[0])}
    if isinstance(out, TokenCodes):
        return [quantize_tokens(out, x, source, **more)]
    tiles, chunks = quantize.tasks_of(tokens, k, TILES[0])
    return [KernelCall(
        quantize.quantize_kernel(source, TILES[0]), tiles * chunks,
        codes=out, tokens=tokens, k=k, x=x, x_stride=stride(x), chunks=chunks, **more,
    )]  # fmt: skip


@_binds("add", "mul", "swiglu", "geglu")
def _binary(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    if node.quantizes:
        return _quantize(node, inputs, out, shared)
    a, b = inputs
    if a.ndim == 3 and b.ndim == 2:
        return [_scale_rows(out, a, b)]
    k = int(np.prod(out.shape[1:]))
    b_stride = stride(b) if b.ndim == a.ndim else 0
    return [KernelCall(
        elementwise.binary_kernel(node.op), len(out),
        y=out, y_stride=stride(out), a=a, a_stride=stride(a), b=b, b_stride=b_stride, k=k,
    )]  # fmt: skip


def _scale_rows(out: AnyArray, x: AnyArray, scales: AnyArray) -> KernelCall:
    """out [T, k, N] = x times the numbers of its rows, scales [T, k]; none has gaps."""
    k = x.shape[2]
    return KernelCall(
        elementwise.scale_rows_kernel(), scales.size, y=out, y_stride=4 * k, x=x, x_stride=4 * k, scales=scales, k=k
    )


@_binds("rope")
def _rope(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, positions, freqs = inputs
    table, before = _rope_table(positions, freqs, float(node.attrs["scale"]), shared)
    kernel = rope.rope_kernel(node.attrs["interleaved"], x.shape[2], len(freqs))
    return [*before, _rows_call(kernel, out, x, heads=x.shape[1], table=table)]


def _rope_table(
    positions: AnyArray, freqs: AnyArray, scale: float, shared: Shared
) -> tuple[AnyArray, list[KernelCall]]:
    """Cosines and sines for the tokens of a step, and the call that makes them if this plan has none yet."""
    name = "rope", address(positions), address(freqs), scale
    table = shared.memory(name, (len(positions), 2, len(freqs)), np.float32)
    if shared.holds(table):
        return table, []
    call = KernelCall(
        rope.rope_table_kernel(), len(positions),
        table=table, positions=positions, freqs=freqs, pairs=len(freqs), scale=scale,
    )  # fmt: skip
    return table, [call]


@_binds("rope_set_rows")
def _rope_set_rows(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    q, k, v, keys, values, positions, places, freqs, *norms = inputs
    table, before = _rope_table(positions, freqs, float(node.attrs["scale"]), shared)
    tokens, heads, dim = q.shape
    run = ROPE_RUN if tokens > 2 * ROPE_RUN else 1
    kernel = rope.rope_set_rows_kernel(_kind(node.inputs[3]), node.attrs["interleaved"], bool(norms), dim, len(freqs))
    q_weight, k_weight = norms or (0, 0)
    call = KernelCall(
        kernel, -(-tokens // run) * (heads + 2 * k.shape[1]),
        y=out, y_stride=stride(out), q=q, q_stride=stride(q), heads=heads,
        k=k, k_stride=stride(k), v=v, v_stride=stride(v), kv_heads=k.shape[1],
        keys=keys, values=values, rows=places, table=table,
        q_weight=q_weight, k_weight=k_weight, eps=float(node.attrs.get("eps", 0.0)), tokens=tokens, run=run,
    )  # fmt: skip
    return [*before, call]


@_binds("set_rows")
def _set_rows(node: Node, inputs: Sequence[Any], out: Any, shared: Shared) -> list[KernelCall]:
    cache, values, places = inputs
    make = rope.set_keys_kernel if node.inputs[0].attrs["kind"] == "k" else rope.set_values_kernel
    return [KernelCall(
        make(_kind(node), values.shape[2]), len(values),
        cache=cache, x=values, x_stride=stride(values), heads=values.shape[1], rows=places,
    )]  # fmt: skip


def _kind(cache: Node) -> Any:
    """How a cache node's rows are stored."""
    return cache.dtype


@_binds("attention")
def _attention(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    q, k, v, positions, starts, pages, *sinks = inputs
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    group, kind, window = heads // kv_heads, _kind(node.inputs[1]), int(node.attrs.get("window", 0))
    given = {
        "out": out, "q": q, "q_stride": stride(q), "tokens": tokens,
        "keys": k, "values": v, "kv_heads": kv_heads, "scale": float(node.attrs["scale"]),
        "positions": positions, "starts": starts, "sequences": len(pages),
        "pages": pages, "pages_width": pages.shape[1],
        "window": abs(window), "chunked": int(window < 0), "cap": float(node.attrs.get("cap", 0.0)),
        "sinks": sinks[0] if sinks else 0,
        "reach": int(node.attrs.get("reach", 0)),
    }  # fmt: skip
    windowed, capped, joint = given["window"] > 0, given["cap"] > 0, node.inputs[1] is node.inputs[2]
    if tokens != len(pages):
        tasks = -(-tokens // attention.TILE) * heads
        kernel = attention.prefill_kernel(kind, group, dim, windowed, capped, joint, given["reach"] > 0)
        return [KernelCall(kernel, tasks, **given, splits=1, partial=0)]
    pairs = tokens * kv_heads
    splits = max(1, SPLIT_TASKS // pairs)
    partial = np.empty(pairs * splits * group * (dim + 4) if splits > 1 else 0, np.float32)
    kernel = attention.decode_kernel(kind, group, dim, windowed, capped, joint)
    calls = [KernelCall(kernel, pairs * splits, **given, splits=splits, partial=partial)]
    if splits > 1:
        calls.append(KernelCall(
            attention.combine_kernel(group, dim), pairs, out=out, partial=partial, splits=splits,
            sinks=given["sinks"], kv_heads=kv_heads,
        ))  # fmt: skip
    return calls


def _rows_call(kernel: Any, out: AnyArray, x: AnyArray, **more: int | float | AnyArray) -> KernelCall:
    """A kernel with a task for each row of y, which is `out`, and of x."""
    return KernelCall(kernel, len(out), y=out, y_stride=stride(out), x=x, x_stride=stride(x), **more)


@_binds("soft_max")
def _soft_max(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return [_rows_call(elementwise.soft_max_kernel(), out, inputs[0], k=out.shape[1])]


@_binds("sigmoid")
def _sigmoid(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return [_rows_call(elementwise.sigmoid_kernel(), out, inputs[0], k=out.shape[1])]


@_binds("gelu", "gelu_erf")
def _gelu(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    kernel = elementwise.gelu_kernel() if node.op == "gelu" else elementwise.gelu_erf_kernel()
    return [_rows_call(kernel, out, inputs[0], k=out.shape[1])]


@_binds("clamped_swiglu")
def _clamped_swiglu(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    gate, up = inputs
    return [_rows_call(
        elementwise.clamped_swiglu_kernel(), out, gate,
        up=up, up_stride=stride(up), k=int(np.prod(out.shape[1:])), **node.attrs,
    )]  # fmt: skip


@_binds("add_rows")
def _add_rows(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, rows, ids = inputs
    k = x.shape[2]
    return [KernelCall(
        routing.add_rows_kernel(), ids.size, y=out, y_stride=4 * k, x=x, x_stride=4 * k, rows=rows, ids=ids, k=k
    )]  # fmt: skip


@_binds("scale_by_position")
def _scale_by_position(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, positions = inputs
    kernel, k = elementwise.scale_by_position_kernel(), x.shape[1] * x.shape[2]
    return [_rows_call(kernel, out, x, k=k, positions=positions, **node.attrs)]


@_binds("normalize")
def _normalize(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return [_rows_call(elementwise.normalize_kernel(), out, inputs[0], k=out.shape[1])]


@_binds("soft_cap")
def _soft_cap(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return [_rows_call(elementwise.soft_cap_kernel(), out, inputs[0], k=out.shape[1], cap=float(node.attrs["cap"]))]


@_binds("top_k")
def _top_k(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    (x,) = inputs
    return [KernelCall(
        routing.top_k_kernel(), len(out),
        ids=out, ids_stride=stride(out), x=x, x_stride=stride(x), n=x.shape[1], k=out.shape[1],
    )]  # fmt: skip


@_binds("keep_groups")
def _keep_groups(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    groups, used, best = (node.attrs[name] for name in ("groups", "used", "best"))
    kernel = routing.keep_groups_kernel(groups)
    return [_rows_call(kernel, out, inputs[0], size=out.shape[1] // groups, used=used, best=best)]


@_binds("numbers")
def _numbers(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return [KernelCall(routing.numbers_kernel(), len(out), y=out, y_stride=stride(out), k=out.shape[1])]


@_binds("slice_heads")
def _slice_heads(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    start = node.attrs["start"]
    return [_copy_heads(out, inputs[0][:, :, start : start + out.shape[2]])]


@_binds("join_heads")
def _join_heads(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    size = inputs[0].shape[2]
    return [_copy_heads(out[:, :, :size], inputs[0]), _copy_heads(out[:, :, size:], inputs[1])]


def _copy_heads(out: AnyArray, x: AnyArray) -> KernelCall:
    """out [T, H, D] = x, either of which may be some of the values of heads."""
    _, heads, k = out.shape
    strides = {"y_head_stride": out.strides[1], "x_head_stride": x.strides[1]}
    return _rows_call(elementwise.copy_heads_kernel(), out, x, heads=heads, k=k, **strides)


@_binds("gather")
def _gather(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, ids = inputs
    x_stride = stride(x) if x.ndim == 2 else 0
    return [KernelCall(
        routing.gather_kernel(), len(out),
        y=out, y_stride=stride(out), x=x, x_stride=x_stride, ids=ids, ids_stride=stride(ids), k=out.shape[1],
    )]  # fmt: skip


@_binds("take_columns")
def _take_columns(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, order = inputs
    ids = order.astype(np.int32)
    return [KernelCall(
        routing.gather_kernel(), len(out),
        y=out, y_stride=stride(out), x=x, x_stride=stride(x), ids=ids, ids_stride=0, k=out.shape[1],
    )]  # fmt: skip


@_binds("weighted_sum")
def _weighted_sum(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, weights = inputs
    return [_rows_call(
        routing.weighted_sum_kernel(), out, x,
        weights=weights, weights_stride=stride(weights), k=x.shape[1], n=out.shape[1],
    )]  # fmt: skip


@_binds("mul_mat_id")
def _mul_mat_id(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return product_of_experts(node, inputs, out, shared)
