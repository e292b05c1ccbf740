"""For each op, the calls that compute it: which kernel, which arguments, how many programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from triton import next_power_of_2

from octavo.backends.gpu import dispatch, experts
from octavo.backends.gpu.arguments import Q8Activation, Source, matrix
from octavo.backends.gpu.attention import attend, quantizes
from octavo.backends.gpu.context import Context, Weight
from octavo.backends.gpu.kernels import activations, elementwise
from octavo.backends.gpu.kernels.argmax_topk import topk_merge_kernel, topk_parts_kernel
from octavo.backends.gpu.products import product, product_by_id, rows_of
from octavo.backends.gpu.rope import Norms, Rotation, set_rows, turn, turn_and_set_rows
from octavo.backends.gpu.row_products import quantize_tokens, row_product
from octavo.backends.gpu.row_weights import RowWeight
from octavo.backends.gpu.values import Activation, TokenCodes, q8_1, q8_1_bytes
from octavo.backends.gpu.weights import FloatWeight, QuantWeight
from octavo.graph.node import Node
from octavo.graph.protocol import Call

QUANTIZE_BLOCK = 256  # values that a program quantizes, unless it needs a whole row


Bind = Callable[[Context, Node, Sequence[Any], Any], list[Call]]

BINDERS: dict[str, Bind] = {}


def _binds(*names: str) -> Callable[[Bind], Bind]:
    def register(bind: Bind) -> Bind:
        BINDERS.update(dict.fromkeys(names, bind))
        return bind

    return register


def _block(k: int, most: int = 1024) -> int:
    return min(most, int(next_power_of_2(k)))


def _row_warps(block: int) -> int:
    return max(1, min(16, block // 256))


@_binds("mul_mat", "mul_mat_add")
def _mul_mat(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    weight, x, *terms = inputs
    return _product(c, weight, x, out, terms)


def _product(c: Context, weight: Weight, x: Any, y: torch.Tensor, terms: Sequence[torch.Tensor]) -> list[Call]:
    return row_product(c, weight, x, y, terms) if isinstance(weight, RowWeight) else product(c, weight, x, y, terms)


@_binds("mul_mat_concat")
def _mul_mat_concat(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, *weights = inputs
    calls, start = [], 0
    for weight in c.joined(weights):
        calls += _product(c, weight, x, out[:, start : start + weight.n], ())
        start += weight.n
    return calls


@_binds("mul_mat_id")
def _mul_mat_id(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    """Activations are quantized here, a row for each token or for each token and expert."""
    weight, x, ids = inputs
    used = ids.shape[1]
    sharing = used if x.ndim == 2 else 1
    if isinstance(weight, QuantWeight) and experts.sorts(ids.numel(), weight.experts, weight.kp):
        return experts.sorted_product(c, weight, x, ids, out, sharing)
    x = x.reshape(-1, x.shape[-1])
    calls: list[Call] = []
    if isinstance(weight, QuantWeight):
        kp, rows = weight.kp, len(x)
        quantized = q8_1(c.shared("experts", q8_1_bytes(rows, kp, rows), torch.uint8), rows, kp, rows)
        calls.append(_quantize_call(c, Source(matrix(x)), rows, quantized, "values", weight.k, kp))
        x = quantized
    return [*calls, *product_by_id(c, weight, x, ids, out, sharing)]


@_binds("get_rows")
def _get_rows(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    table, ids = inputs
    if isinstance(table, QuantWeight):
        return [rows_of(c, table, ids, out)]
    data = table.data[0] if isinstance(table, FloatWeight) else table
    n, k = data.shape
    grid = (len(out), -(-k // 1024))
    return [c.launch(elementwise.copy_rows_kernel, grid, data, ids, out, data.stride(0), out.stride(0), n, k, B=1024)]


@_binds("rms_norm")
def _rms_norm(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    if node.quantizes:
        return _quantize(c, node, inputs, out)
    x, weight = inputs
    heads, k = (x.shape[1], x.shape[2]) if x.ndim == 3 else (1, x.shape[1])
    block = next_power_of_2(k)
    return [c.launch(elementwise.rms_norm_kernel, (len(x) * heads,), x, weight, out, x.stride(0), out.stride(0), heads,
                     k, node.attrs["eps"], B=block, warps=_row_warps(block))]  # fmt: skip


@_binds("layer_norm")
def _layer_norm(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, weight, *bias = inputs
    block = next_power_of_2(x.shape[1])
    return [c.launch(elementwise.layer_norm_kernel, (len(x),), x, weight, bias[0] if bias else None, out, x.stride(0),
                     out.stride(0), x.shape[1], node.attrs["eps"], B=block, warps=_row_warps(block))]  # fmt: skip


@_binds("quantize")
def _quantize(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    """`quantize`, or the op whose result is quantized on its way out."""
    x, *others = inputs
    kind = "values" if node.op == "quantize" else node.op
    source = Source(matrix(x), matrix(others[0]) if others else None, float(node.attrs.get("eps", 0.0)))
    if isinstance(out, TokenCodes):
        block = next_power_of_2(out.k)
        return [quantize_tokens(c, out, source, kind, block, _row_warps(block))]
    return _quantized(c, source, out, kind)


def _quantized(c: Context, source: Source, out: Activation, kind: str = "values") -> list[Call]:
    if out.tokens <= dispatch.INT8_MAX_TOKENS:
        return [_quantize_call(c, source, out.tokens, out.q8_1, kind, out.k, out.kp)]
    block = next_power_of_2(out.kp) if kind == "rms_norm" else _block(out.kp, 2048)
    grid = (out.tokens, -(-out.kp // block))
    return [c.launch(activations.float_kernel, grid, source, matrix(out.halves), out.k, out.kp, KIND=kind, B=block,
                     warps=_row_warps(block))]  # fmt: skip


def _quantize_call(c: Context, source: Source, rows: int, out: Q8Activation, kind: str, k: int, kp: int) -> Call:
    block = next_power_of_2(kp) if kind == "rms_norm" else _block(kp, QUANTIZE_BLOCK)
    grid = (rows, -(-kp // block))
    return c.launch(activations.quantize_kernel, grid, source, out, k, kp, KIND=kind, B=block,
                    warps=_row_warps(block))  # fmt: skip


@_binds("add", "mul", "swiglu", "geglu")
def _binary(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    if node.quantizes:
        return _quantize(c, node, inputs, out)
    a, b = inputs
    by_row = a.ndim == 3 and b.ndim == 2  # [T, k, N] times [T, k]
    rows = a.shape[0] * a.shape[1] if by_row else len(a)
    a, out = a.reshape(rows, -1), out.reshape(rows, -1)
    b = b.reshape(-1) if by_row or b.ndim == 1 else b.reshape(rows, -1)
    b_stride = 1 if by_row else 0 if b.ndim == 1 else b.stride(0)
    k = out.shape[1]
    grid = (rows, -(-k // 1024))
    return [c.launch(elementwise.binary_kernel, grid, a, b, out, a.stride(0), b_stride, out.stride(0), k,
                     OP="scale_rows" if by_row else node.op, B=_block(k))]  # fmt: skip


@_binds("clamped_swiglu")
def _clamped_swiglu(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    rows = out.numel() // out.shape[-1]
    gate, up, y = (x.reshape(rows, -1) for x in (*inputs, out))
    k, by = y.shape[1], node.attrs
    return [c.launch(elementwise.clamped_swiglu_kernel, (rows, -(-k // 1024)), gate, up, y, gate.stride(0),
                     up.stride(0), y.stride(0), k, by["slope"], by["limit"], B=_block(k))]  # fmt: skip


@_binds("add_rows")
def _add_rows(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, rows, ids = inputs
    k = x.shape[2]
    return [c.launch(elementwise.add_rows_kernel, (ids.numel(), -(-k // 1024)), x, rows, ids, out, k, B=_block(k))]


@_binds("scale_by_position")
def _scale_by_position(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, positions = inputs
    k = x.shape[1] * x.shape[2]
    block, by = _block(k), node.attrs
    return [c.launch(elementwise.scale_by_position_kernel, (len(x), -(-k // block)), x, positions, out, x.stride(0),
                     out.stride(0), k, by["length"], by["factor"], by["offset"], B=block)]  # fmt: skip


@_binds("soft_max", "normalize", "soft_cap", "sigmoid", "gelu", "gelu_erf")
def _row(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    k = x.shape[1]
    block = next_power_of_2(k)
    return [c.launch(elementwise.row_kernel, (len(x),), x, out, x.stride(0), out.stride(0), k,
                     float(node.attrs.get("cap", 1.0)), OP=node.op, B=block, warps=_row_warps(block))]  # fmt: skip


@_binds("top_k")
def _top_k(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    k, used = x.shape[1], out.shape[1]
    return [c.launch(elementwise.top_k_kernel, (len(x),), x, out, x.stride(0), k, used, B=next_power_of_2(k), warps=1)]


@_binds("top_candidates")
def _top_candidates(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    tokens, n = x.shape
    k = node.attrs["k"]
    block = 2048 if k == 1 else 4096
    parts_of = -(-n // block)
    keys = c.shared("keys", tokens * parts_of * k, torch.int64)
    bad = c.shared("bad", tokens * parts_of, torch.int32)
    some = c.launch(topk_parts_kernel, (tokens, parts_of), x, keys, bad, x.stride(0), n, parts_of, K=k,
                    B=block)  # fmt: skip
    size = next_power_of_2(parts_of * k)
    last = c.launch(topk_merge_kernel, (tokens,), keys, bad, out, parts_of, K=k, B=size, BP=next_power_of_2(parts_of),
                    warps=max(1, min(8, size // 512)))  # fmt: skip
    return [some, last]


@_binds("keep_groups")
def _keep_groups(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    groups, used, best = (node.attrs[name] for name in ("groups", "used", "best"))
    size = x.shape[1] // groups
    return [c.launch(elementwise.keep_groups_kernel, (len(x),), x, out, x.stride(0), groups, size, used, BEST=best,
                     GROUPS=next_power_of_2(groups), SIZE=next_power_of_2(size), warps=1)]  # fmt: skip


@_binds("numbers")
def _numbers(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    tokens, count = out.shape
    return [c.launch(elementwise.numbers_kernel, (tokens,), out, count, B=next_power_of_2(count), warps=1)]


@_binds("slice_heads")
def _slice_heads(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    start = node.attrs["start"]
    return [_copy_heads(c, inputs[0][:, :, start : start + out.shape[2]], out)]


@_binds("join_heads")
def _join_heads(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    size = inputs[0].shape[2]
    return [_copy_heads(c, inputs[0], out[:, :, :size]), _copy_heads(c, inputs[1], out[:, :, size:])]


def _copy_heads(c: Context, x: torch.Tensor, out: torch.Tensor) -> Call:
    """out [T, H, D] = x, either of which may be some of the values of heads."""
    tokens, heads, k = out.shape
    return c.launch(elementwise.copy_heads_kernel, (tokens, heads), x, out, x.stride(0), x.stride(1), out.stride(0),
                    out.stride(1), k, B=next_power_of_2(k), warps=1)  # fmt: skip


@_binds("gather")
def _gather(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, ids = inputs
    used, x_stride = ids.shape[1], x.stride(0) if x.ndim == 2 else 0
    return [
        c.launch(elementwise.gather_kernel, (len(ids),), x, ids, out, x_stride, used, B=next_power_of_2(used), warps=1)
    ]


@_binds("take_columns")
def _take_columns(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, order = inputs
    tokens, k = x.shape
    block, ids = _block(k), order.int()
    grid = tokens, -(-k // block)
    return [c.launch(elementwise.take_columns_kernel, grid, x, ids, out, x.stride(0), out.stride(0), k, B=block)]


@_binds("weighted_sum")
def _weighted_sum(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, weights = inputs
    tokens, used, n = x.shape
    block = _block(n)
    return [c.launch(elementwise.weighted_sum_kernel, (tokens, -(-n // block)), x, weights, out, used, n, B=block)]


@_binds("rope")
def _rope(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, positions, freqs = inputs
    rotation = Rotation(positions, freqs, float(node.attrs["scale"]))
    return [turn(c, x, rotation, node.attrs["interleaved"], out)]


@_binds("set_rows")
def _set_rows(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    cache, values, places = inputs
    return [set_rows(c, values, places, cache)]


@_binds("rope_set_rows")
def _rope_set_rows(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    q, k, v, keys, values, positions, places, freqs, *norms = inputs
    rotation = Rotation(positions, freqs, float(node.attrs["scale"]))
    weights = Norms(norms[0], norms[1], float(node.attrs["eps"])) if norms else None
    interleaved = node.attrs["interleaved"]
    return [turn_and_set_rows(c, (q, k, v), (keys, values), places, rotation, interleaved, weights, out)]


@_binds("attention")
def _attention(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    q, pages = inputs[0], inputs[5]
    result = out
    if isinstance(out, Activation) and not quantizes(q, pages, out):
        result = c.shared("attended", q.numel(), torch.float32).view(len(q), -1)
    calls: list[Call] = [*attend(c, inputs, node.attrs, result)]
    return calls if result is out else calls + _quantized(c, Source(matrix(result)), out)
