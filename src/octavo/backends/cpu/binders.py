"""For each op, the kernel calls that compute it: which kernel, which arguments, how many tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from octavo.backends.cpu.calls import Shared, Weight, copy_rows, product_kernel, stride, tiles_of, weight_arguments
from octavo.backends.cpu.experts import product_of_experts
from octavo.backends.cpu.kernels import attention, elementwise, float_mul_mat, quantize, rope, rows
from octavo.backends.cpu.kernels.product import TERM
from octavo.backends.cpu.kernels.quantize_token import round_fp8_kernel
from octavo.backends.cpu.pack import FloatWeight, QuantWeight
from octavo.backends.cpu.row_products import RowWeight, row_product, sums_in_memory
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


def product(
    weight: Weight | RowWeight, x: Any, y: AnyArray, terms: Sequence[AnyArray], shared: Shared, expert: int = 0
) -> list[KernelCall]:
    """The calls for y [T, n] = x [T, k] @ weight.T + terms: whole tiles of tokens, a chain of tails for the rest."""
    if isinstance(weight, RowWeight):
        return row_product(weight, x, y, terms, shared)
    sizes, left = [], len(y)
    for n in tiles_of(weight):
        count, left = divmod(left, n)
        if count:
            sizes.append((n, count))
    first, call = len(y), None
    for n, count in reversed(sizes):
        first -= n * count
        call = _tile_call(weight, x, y, terms, first, n, count, call, expert)
    return [] if call is None else [call]


def _tile_call(
    weight: Weight, x: AnyArray, y: AnyArray, terms: Sequence[AnyArray],
    first: int, n: int, tiles: int, tail: KernelCall | None, expert: int,
) -> KernelCall:  # fmt: skip
    """The product for tokens `first` to `first` + n * tiles; `tail` is the call for those after."""
    shape = weight_arguments(weight)
    if not isinstance(weight, QuantWeight):
        assert x.dtype == np.float32
        shape["x_stride"] = stride(x)
    added = np.zeros(len(terms), TERM.dtype)
    for i, term in enumerate(terms):
        of_token = stride(term) if term.ndim == 2 else 0
        added[i] = address(term) + first * of_token, of_token
    return KernelCall(
        product_kernel(weight, n), -(-weight.n // 16), (weight, x, y, terms, tail),
        weights=weight.data[expert], **shape,
        x=address(x) + first * shape["x_stride"], y=address(y) + first * stride(y), y_stride=stride(y), tiles=tiles,
        terms=added, term_count=len(terms),
        tail=tail.kernel.address if tail else 0, tail_arguments=tail.args if tail else 0,
    )  # fmt: skip


@_binds("get_rows")
def _get_rows(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    table, ids = inputs
    tasks = len(out)
    if isinstance(table, QuantWeight):
        args = [address(out), stride(out), address(table.data), table.k, address(ids), table.table_address]
        return [KernelCall(rows.get_rows_kernel(table.layout), args, tasks, keep=(table, ids, out))]
    if isinstance(table, FloatWeight):
        kernel = float_mul_mat.float_get_rows_kernel(table.kind)
        args = [address(out), stride(out), address(table.data), table.k, address(ids), table.scale_address]
        return [KernelCall(kernel, args, tasks, keep=(table, ids, out))]
    return [copy_rows(out, table, ids)]


@_binds("rms_norm")
def _rms_norm(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    if node.quantizes:
        return _quantize(node, inputs, out, shared)
    x, weight = inputs
    heads, k = (x.shape[1], x.shape[2]) if x.ndim == 3 else (1, x.shape[1])
    args = [address(out), stride(out), address(x), stride(x), address(weight), k, float(node.attrs["eps"]),
            heads, k * 4, k * 4]  # fmt: skip
    return [KernelCall(elementwise.rms_norm_kernel(), args, len(out), keep=(x, weight, out))]


@_binds("quantize")
def _quantize(node: Node, inputs: Sequence[Any], out: Any, shared: Shared) -> list[KernelCall]:
    """`quantize`, or the op whose result is quantized on its way out."""
    x, *other = inputs
    tokens, k = x.shape
    if node.dtype == "fp8_token":
        args = [address(out), k, address(x), stride(x)]
        return [KernelCall(round_fp8_kernel(), args, tokens, keep=(x, out))]
    source: quantize.Source = "values"
    more: dict[str, Any] = {"other": 0, "other_stride": 0, "eps": 0.0}
    if node.op == "rms_norm":
        source, more = "rms_norm", more | {"other": other[0], "eps": float(node.attrs["eps"])}
    elif node.op == "swiglu":
        source, more = "swiglu", more | {"other": other[0], "other_stride": stride(other[0])}
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
    args = [address(out), stride(out), address(a), stride(a), address(b), b_stride, k]
    return [KernelCall(elementwise.binary_kernel(node.op), args, len(out), keep=(a, b, out))]


def _scale_rows(out: AnyArray, x: AnyArray, scales: AnyArray) -> KernelCall:
    """out [T, k, N] = x times the numbers of its rows, scales [T, k]; none has gaps."""
    k = x.shape[2]
    args = [address(out), 4 * k, address(x), 4 * k, address(scales), k]
    return KernelCall(elementwise.scale_rows_kernel(), args, scales.size, keep=(out, x, scales))


@_binds("rope")
def _rope(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, positions, freqs = inputs
    table, before = _rope_table(positions, freqs, float(node.attrs["scale"]), shared)
    kernel = rope.rope_kernel(node.attrs["interleaved"], False, x.shape[2], len(freqs))
    args = [address(out), stride(out), address(x), stride(x), x.shape[1], address(table), 0, 0.0]
    return [*before, KernelCall(kernel, args, len(out), keep=(x, table, out))]


def _rope_table(
    positions: AnyArray, freqs: AnyArray, scale: float, shared: Shared
) -> tuple[AnyArray, list[KernelCall]]:
    """Cosines and sines for the tokens of a step, and the call that makes them if this plan has none yet."""
    key = address(positions), len(positions), address(freqs), scale
    if key in shared:
        return shared[key], []
    table = shared[key] = np.empty((len(positions), 2, len(freqs)), np.float32)
    args = [address(table), address(positions), address(freqs), len(freqs), scale]
    return table, [KernelCall(rope.rope_table_kernel(), args, len(positions), keep=(table, positions, freqs))]


@_binds("rope_set_rows")
def _rope_set_rows(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    q, k, v, keys, values, positions, places, freqs, *norms = inputs
    table, before = _rope_table(positions, freqs, float(node.attrs["scale"]), shared)
    tokens, heads, dim = q.shape
    run = ROPE_RUN if tokens > 2 * ROPE_RUN else 1
    kernel = rope.rope_set_rows_kernel(_kind(node.inputs[3]), node.attrs["interleaved"], bool(norms), dim, len(freqs))
    args = [
        address(out), stride(out), address(q), stride(q), address(k), stride(k), address(v), stride(v),
        address(keys), address(values), address(places), address(table), heads, k.shape[1],
        *([address(w) for w in norms] or [0, 0]), float(node.attrs.get("eps", 0.0)), tokens, run,
    ]  # fmt: skip
    tasks = -(-tokens // run) * (heads + 2 * k.shape[1])
    return [*before, KernelCall(kernel, args, tasks, keep=(*inputs, table, out))]


@_binds("set_rows")
def _set_rows(node: Node, inputs: Sequence[Any], out: Any, shared: Shared) -> list[KernelCall]:
    cache, values, places = inputs
    make = rope.set_keys_kernel if node.inputs[0].attrs["kind"] == "k" else rope.set_values_kernel
    args = [address(cache), address(values), stride(values), address(places), values.shape[1]]
    kernel = make(_kind(node), values.shape[2])
    return [KernelCall(kernel, args, len(values), keep=(cache, values, places))]


def _kind(cache: Node) -> Any:
    """How a cache node's rows are stored."""
    return cache.dtype


@_binds("attention")
def _attention(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    q, k, v, positions, starts, pages = inputs
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    group, kind = heads // kv_heads, _kind(node.inputs[1])
    args = [address(out), address(q), stride(q), address(k), address(v), address(positions), address(starts),
            address(pages), pages.shape[1], len(pages), kv_heads, float(node.attrs["scale"]), tokens]  # fmt: skip
    keep = (q, k, v, positions, starts, pages, out)
    window, cap = int(node.attrs.get("window", 0)), float(node.attrs.get("cap", 0.0))
    if tokens != len(pages):
        tasks = -(-tokens // attention.TILE) * heads
        kernel = attention.prefill_kernel(kind, group, dim, window > 0, cap > 0)
        return [KernelCall(kernel, [*args, 0, 0, window, cap], tasks, keep=keep)]
    pairs = tokens * kv_heads
    splits = max(1, SPLIT_TASKS // pairs)
    partial = np.empty(pairs * splits * group * (dim + 4) if splits > 1 else 0, np.float32)
    args += [splits, address(partial), window, cap]
    kernel = attention.decode_kernel(kind, group, dim, window > 0, cap > 0)
    calls = [KernelCall(kernel, args, pairs * splits, keep=(*keep, partial))]
    if splits > 1:
        args = [address(out), address(partial), splits]
        calls.append(KernelCall(attention.combine_kernel(group, dim), args, pairs, keep=(partial, out)))
    return calls


def _rows_call(kernel: Any, out: AnyArray, x: AnyArray, *more: int | float, keep: Sequence[Any] = ()) -> KernelCall:
    """A kernel with a task for each row of `out`, whose arguments begin with out, x and their strides."""
    args = [address(out), stride(out), address(x), stride(x), *more]
    return KernelCall(kernel, args, len(out), keep=(out, x, *keep))


@_binds("soft_max")
def _soft_max(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return [_rows_call(elementwise.soft_max_kernel(), out, inputs[0], out.shape[1])]


@_binds("normalize")
def _normalize(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return [_rows_call(elementwise.normalize_kernel(), out, inputs[0], out.shape[1])]


@_binds("soft_cap")
def _soft_cap(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return [_rows_call(elementwise.soft_cap_kernel(), out, inputs[0], out.shape[1], float(node.attrs["cap"]))]


@_binds("top_k")
def _top_k(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return [_rows_call(elementwise.top_k_kernel(), out, inputs[0], inputs[0].shape[1], out.shape[1])]


@_binds("gather")
def _gather(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, ids = inputs
    x_stride = stride(x) if x.ndim == 2 else 0
    args = [address(out), stride(out), address(x), x_stride, address(ids), stride(ids), out.shape[1]]
    return [KernelCall(elementwise.gather_kernel(), args, len(out), keep=(out, x, ids))]


@_binds("weighted_sum")
def _weighted_sum(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, weights = inputs
    more = (address(weights), stride(weights), x.shape[1], out.shape[1])
    return [_rows_call(elementwise.weighted_sum_kernel(), out, x, *more, keep=(weights,))]


@_binds("mul_mat_id")
def _mul_mat_id(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return product_of_experts(node, inputs, out, shared)
