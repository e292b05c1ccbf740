"""GraphBuilder: what a model's `build` writes its graph with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from octavo.formats import QTensor, by_name
from octavo.formats.spec import F32
from octavo.graph import choice_ops, collective_ops, fused_ops, state_ops  # noqa: F401  (register their ops)
from octavo.graph.node import PAGE_SIZE, Dim, DType, Node
from octavo.graph.ops import apply
from octavo.graph.pointwise import POINTWISE

CacheType = Literal["f32", "f16", "q8_0", "int8", "fp8", "int4"]
"""Names of rows of `formats.cache`."""

WHOLE = 1 << 30
"""A reach of attention beyond the end of any sequence."""


def weight(tensor: QTensor, static_scale: float | None = None) -> Node:
    """A leaf for a stored tensor; `static_scale` is that of activations which are multiplied with its codes."""
    attrs: dict[str, Any] = {"tensor": tensor} | ({} if static_scale is None else {"static_scale": static_scale})
    return Node("weight", (), tensor.shape, "weight", MappingProxyType(attrs), tensor.name)


def constant(values: F32, name: str) -> Node:
    """A leaf for numbers that the builder worked out; float32 [K]. It is loaded wherever it is read."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    tensor = QTensor(by_name("F32"), values.shape, values.view(np.uint8), name)
    return Node("weight", (), tensor.shape, "weight", MappingProxyType({"tensor": tensor, "constant": True}), name)


def _label(node: Node) -> str:
    """What a node made with `node` is called: blk.0.attn_q for a product with blk.0.attn_q.weight."""
    return node.name.removesuffix(".weight")


class GraphBuilder:
    """Makes nodes. Inputs of a step are attributes: `tokens`, `positions`, `outputs` and where its sequences lie.

    `kinds` are 1 for tokens of a second text, else 0; few graphs read them. `residuals` are what each layer of a
    Decoder is given, and last what the last one gives, [T, n_embd].

    cache_type and page_size are of the KV cache that the graph reads and writes, n_ctx the longest sequence. With
    `window_pages` the layers with a window have pages of their own. Caches of a layer and kind ("k" or "v") that are in
    `static` have static scales, float32 [Hkv].
    """

    def __init__(
        self, cache_type: CacheType = "f16", page_size: int = PAGE_SIZE, n_ctx: int = 4096, *,
        window_pages: bool = False, static: Mapping[tuple[int, str], F32] | None = None,
    ) -> None:
        self.cache_type: CacheType = cache_type
        self.page_size = page_size
        self.n_ctx = n_ctx
        self._static = static or {}
        self._caches: dict[tuple[int, str], Node] = {}
        self._filled: dict[int, tuple[Node, Node]] = {}
        self.tokens = self._input("tokens", ("tokens",))
        self.positions = self._input("positions", ("tokens",))
        self.outputs = self._input("outputs", ("outputs",))
        self.kinds = self._input("kinds", ("tokens",))
        self.starts = self._input("starts", ("boundaries",))
        self.slots = self._input("slots", ("sequences",))
        self._further = 0
        self._lies = self._tables("pages", "rows")
        self._windows_lie = self._tables("window_pages", "window_rows") if window_pages else self._lies
        self.residuals: list[Node] = []
        self._taken: dict[tuple[int, bytes], Node] = {}

    def _tables(self, pages: str, rows: str) -> tuple[Node, Node]:
        """Where sequences lie in caches of this many `rows`: their pages, and the rows of new tokens."""
        return self._input(pages, ("sequences", "pages")), self._input(rows, ("tokens",), "i64")

    @staticmethod
    def _input(name: str, shape: tuple[Dim, ...], dtype: DType = "i32") -> Node:
        return Node("input", (), shape, dtype, name=name)

    def __getattr__(self, name: str) -> Callable[..., Node]:
        """The pointwise op `name`, for its inputs and then its numbers."""
        if name not in POINTWISE:
            raise AttributeError(f"no op {name} (allowed: methods, and {', '.join(POINTWISE)})")
        return POINTWISE[name]

    def hidden(self, width: int) -> Node:
        """Hidden states [T, width] of another model's step, which a step is given beside its tokens."""
        return self._input("hidden", ("tokens", width), "f32")

    def get_rows(self, table: Node, rows: Node) -> Node:
        return apply("get_rows", table, rows, label=_label(table))

    def after(self, tokens: Node) -> GraphBuilder:
        """A builder for one more token of each sequence, int [outputs], in the same step: of sequences that each have
        one output. Their places are inputs `positions_1`, `rows_1` and so on."""
        made = copy(self)
        made._further += 1
        made.tokens = tokens
        made.positions = self._input(f"positions_{made._further}", ("outputs",))
        made._lies = made._windows_lie = self._lies[0], self._input(f"rows_{made._further}", ("outputs",), "i64")
        return made

    def last(self, x: Node) -> Node:
        """Of x [T, K], the rows whose logits are wanted."""
        return x if self._further else apply("get_rows", x, self.outputs, label="outputs")

    def rms_norm(self, x: Node, weight: Node, eps: float) -> Node:
        return apply("rms_norm", x, weight, eps=eps, label=_label(weight))

    def layer_norm(self, x: Node, weight: Node, bias: Node | None, eps: float) -> Node:
        biases = () if bias is None else (bias,)
        return apply("layer_norm", x, weight, *biases, eps=eps, label=_label(weight))

    def mul_mat(self, weight: Node, x: Node, bias: Node | None = None) -> Node:
        y = apply("mul_mat", weight, x, label=_label(weight))
        return y if bias is None else self.add(y, bias)

    def mul_mat_id(self, weight: Node, x: Node, ids: Node) -> Node:
        return apply("mul_mat_id", weight, x, ids, label=_label(weight))

    def split_heads(self, x: Node, heads: int) -> Node:
        """[T, H * D] -> [T, H, D]."""
        width = x.shape[1]
        assert isinstance(width, int)
        assert width % heads == 0
        return apply("reshape", x, shape=(x.shape[0], heads, width // heads), label=x.name)

    def likeliest(self, logits: Node) -> Node:
        """[T, N] -> int [T], the place of the largest value."""
        found = self.top_k(logits, 1)
        return apply("reshape", found, shape=found.shape[:1], label=found.name)

    def join_of_heads(self, x: Node) -> Node:
        """[T, H, D] -> [T, H * D]."""
        heads, dim = x.shape[1:]
        assert isinstance(heads, int)
        assert isinstance(dim, int)
        return apply("reshape", x, shape=(x.shape[0], heads * dim), label=x.name)

    def as_one_row(self, x: Node) -> Node:
        """[T, K] -> [T, 1, K]."""
        return apply("reshape", x, shape=(x.shape[0], 1, *x.shape[1:]), label=x.name)

    def rope(self, x: Node, freqs: Node, scale: float, interleaved: bool) -> Node:
        return apply("rope", x, self.positions, freqs, scale=scale, interleaved=interleaved, label=x.name)

    def columns(self, x: Node, *sizes: int) -> list[Node]:
        """[T, sum of sizes] -> [T, size] each, side by side."""
        starts = accumulate(sizes, initial=0)
        return [apply("columns", x, start=a, size=n, label=x.name) for a, n in zip(starts, sizes, strict=False)]

    def slice_heads(self, x: Node, start: int, size: int) -> Node:
        return apply("slice_heads", x, start=start, size=size, label=x.name)

    def halves(self, x: Node) -> tuple[Node, Node]:
        """[T, H, 2 D] -> the first D values of each head, and the others, [T, H, D] each."""
        width = x.shape[2]
        assert isinstance(width, int)
        return self.slice_heads(x, 0, width // 2), self.slice_heads(x, width // 2, width // 2)

    def join_heads(self, a: Node, b: Node) -> Node:
        return apply("join_heads", a, b, label=a.name)

    def beside(self, *parts: Node) -> Node:
        """[T, K] each -> [T, sum of K], side by side."""
        joined = self.as_one_row(parts[0])
        for part in parts[1:]:
            joined = self.join_heads(joined, self.as_one_row(part))
        return self.join_of_heads(joined)

    def numbers(self, count: int) -> Node:
        return apply("numbers", self.positions, count=count, label="numbers")

    def keep_groups(self, x: Node, groups: int, used: int, best: int) -> Node:
        return apply("keep_groups", x, groups=groups, used=used, best=best, label=x.name)

    def attention(
        self, q: Node, k: Node, v: Node | None, layer: int, scale: float, window: int = 0, cap: float = 0.0,
        sinks: Node | None = None, reach: int = 0, value_dim: int = 0, alibi: float = 0.0,
    ) -> Node:
        """Writes k and v [T, Hkv, D] to the layer's cache, then attends with q [T, H, D] -> [T, H * D].

        Without v, keys are values too (their first `value_dim` values, 0: all), and the cache has them once.

        window, cap, sinks, reach and alibi are those of op `attention`, 0 and None for none.
        """
        last = () if sinks is None else (sinks,)
        rare: dict[str, Any] = {n: x for n, x in (("reach", reach), ("value_dim", value_dim), ("alibi", alibi)) if x}
        shared = 0 if reach else layer  # what no later step reads needs no memory of its own
        pages, rows = self._windows_lie if window and not reach else self._lies
        keys = self._written(shared, layer, "k", k, rows)
        values = keys if v is None else self._written(shared, layer, "v", v, rows)
        self._filled[layer] = keys, values
        return apply("attention", q, keys, values, self.positions, self.starts, pages, *last,
                     scale=scale, page_size=self.page_size, window=window, cap=cap, **rare,
                     label=f"blk.{layer}.attn")

    def attention_to(self, source: int, q: Node, layer: int, scale: float, window: int = 0) -> Node:
        """Attends with q [T, H, D] -> [T, H * D] to the keys and values of an earlier layer, `source`.

        The window is that of `source`.
        """
        pages, _ = self._windows_lie if window else self._lies
        return apply("attention", q, *self._filled[source], self.positions, self.starts, pages, scale=scale,
                     page_size=self.page_size, window=window, cap=0.0, label=f"blk.{layer}.attn")

    def attention_of_all(
        self, q: Node, k: Node, v: Node, layer: int, scale: float, window: int = 0, alibi: float = 0.0
    ) -> Node:
        """Attention where each token sees its whole sequence, or with a `window` as many before it as after it.

        `window` counts those before it and the token itself. All layers write to the same cache.
        """
        reach = window - 1 if window else WHOLE
        return self.attention(q, k, v, layer, scale, window=window, reach=reach, alibi=alibi)

    def _written(self, cache: int, layer: int, kind: str, x: Node, rows: Node) -> Node:
        """The cache of a layer's keys or values once x [T, Hkv, D] of a layer is in it."""
        return apply("set_rows", self._cache(cache, kind, x, rows.name), x, rows, label=f"blk.{layer}.cache_{kind}")

    def _cache(self, layer: int, kind: str, x: Node, rows: str) -> Node:
        if (layer, kind) not in self._caches:
            attrs = MappingProxyType({"layer": layer, "kind": kind, "static": self._static.get((layer, kind))})
            shape = (rows, *x.shape[1:])
            node = Node("cache", (), shape, self.cache_type, attrs, f"blk.{layer}.cache_{kind}")
            self._caches[layer, kind] = node
        return self._caches[layer, kind]

    def causal_conv(
        self, x: Node, taps: F32, layer: int, *, silu: bool = False, bias: Node | None = None, part: str = ""
    ) -> Node:
        """x [T, C] convolved over time with taps [K, F * C], the last of which is a token's own, plus bias [F * C].

        part  names one of several convolutions of a layer
        """
        state = self._state(layer, f"conv{part}", len(taps) - 1, *x.shape[1:])
        given = constant(taps.reshape(-1), f"blk.{layer}.taps{part}")
        more = () if bias is None else (bias,)
        return apply("causal_conv", x, given, state, self.positions, self.starts, self.slots, *more, silu=silu,
                     label=x.name)

    def gated_delta_rule(
        self, q: Node, k: Node, v: Node, alpha: Node, beta: Node, ssm_a: Node, dt_bias: Node, layer: int, *,
        tiled: bool,
    ) -> Node:
        """As the op, with a state of the layer's own."""
        (heads, size), keys = v.shape[1:], k.shape[2]
        state = self._state(layer, "delta", heads, keys, size)
        return apply("gated_delta_rule", q, k, v, alpha, beta, ssm_a, dt_bias, state, self.positions, self.starts,
                     self.slots, tiled=tiled, label=f"blk.{layer}.delta")

    def selective_scan(
        self, x: Node, b: Node, c: Node, dt: Node, ssm_a: Node, dt_bias: Node, ssm_d: Node, layer: int
    ) -> Node:
        """As the op, with a state of the layer's own."""
        (heads, size), keys = x.shape[1:], b.shape[2]
        state = self._state(layer, "scan", heads, keys, size)
        return apply("selective_scan", x, b, c, dt, ssm_a, dt_bias, ssm_d, state, self.positions, self.starts,
                     self.slots, label=f"blk.{layer}.scan")

    def channel_scan(self, x: Node, b: Node, c: Node, dt: Node, ssm_a: F32, ssm_d: Node, layer: int) -> Node:
        """As the op, with a state of the layer's own; ssm_a is [N, C]."""
        given = constant(ssm_a.reshape(-1), f"blk.{layer}.scan_a")
        state = self._state(layer, "scan", *ssm_a.shape)
        return apply("channel_scan", x, b, c, dt, given, ssm_d, state, self.positions, self.starts, self.slots,
                     label=f"blk.{layer}.scan")

    def wkv7(
        self, r: Node, w: Node, k: Node, v: Node, a: Node, vectors: F32, layer: int, heads: int,
        eps: float | None, mixed: tuple[Node, Node] | None = None,
    ) -> Node:
        """As the op, with a state of the layer's own; vectors are [7, H * N], or [8, H * N] where there is `mixed`.

        mixed  the first layer's v, and what is to say how much of it is taken
        """
        size = vectors.shape[1] // heads
        state = self._state(layer, "wkv", heads, size, size)
        given = constant(vectors.reshape(-1), f"blk.{layer}.wkv_vectors")
        return apply("wkv7", r, w, k, v, a, given, state, self.positions, self.starts, self.slots, *(mixed or ()),
                     eps=eps, label=f"blk.{layer}.wkv")

    def wkv6(
        self, r: Node, w: Node, k: Node, v: Node, vectors: F32, layer: int, heads: int, eps: float
    ) -> Node:
        """As the op, with a state of the layer's own; vectors are [4, H * N]."""
        size = vectors.shape[1] // heads
        state = self._state(layer, "wkv", heads, size, size)
        given = constant(vectors.reshape(-1), f"blk.{layer}.wkv_vectors")
        return apply("wkv6", r, w, k, v, given, state, self.positions, self.starts, self.slots, eps=eps,
                     label=f"blk.{layer}.wkv")

    @staticmethod
    def _state(layer: int, kind: str, *shape: Dim) -> Node:
        attrs = MappingProxyType({"layer": layer, "kind": kind})
        return Node("state", (), ("states", *shape), "f32", attrs, f"blk.{layer}.state_{kind}")

    def add_rows(self, x: Node, rows: Node, ids: Node) -> Node:
        return apply("add_rows", x, rows, ids, label=x.name)

    def keep_largest(self, x: Node, spread: float) -> Node:
        return apply("keep_largest", x, spread=spread, label=x.name)

    def relu(self, x: Node) -> Node:
        return self.clamp(x, 0.0, math.inf)

    def as_large_as(self, x: Node, like: Node, least: float) -> Node:
        return apply("as_large_as", x, like, least=least, label=x.name)

    def add(self, a: Node, b: Node) -> Node:
        return apply("add", a, b, label=_label(b) or _label(a))

    def mul(self, a: Node, b: Node) -> Node:
        """a * b, which may have a number for each row of a [T, k, N]."""
        return apply("mul", a, self.as_columns(b) if a.shape[:-1] == b.shape else b, label=a.name)

    def as_columns(self, x: Node) -> Node:
        """[T, k] -> [T, k, 1]."""
        return apply("reshape", x, shape=(*x.shape, 1), label=x.name)

    def scale_by_position(self, x: Node, length: int, factor: float, offset: int) -> Node:
        positions = apply("reshape", self.positions, shape=(*self.positions.shape, 1, 1), label="positions")
        return apply("scale_by_position", x, positions, length=length, factor=factor, offset=offset, label=x.name)

    def soft_max(self, x: Node) -> Node:
        return apply("soft_max", x, label=x.name)

    def top_k(self, x: Node, k: int) -> Node:
        return apply("top_k", x, k=k, label=x.name)

    def gather(self, x: Node, ids: Node) -> Node:
        return apply("gather", x, ids, label=x.name)

    def take_columns(self, x: Node, order: F32) -> Node:
        """x [T, K] with its columns in an order [K]: made once for all that want the same."""
        key = id(x), order.tobytes()
        if key not in self._taken:
            self._taken[key] = apply("take_columns", x, constant(order, f"{x.name}.order"), label=x.name)
        return self._taken[key]

    def take_columns_id(self, x: Node, orders: F32, ids: Node) -> Node:
        """x [T, K] with its columns in the order [E, K] of each of its experts `ids`: [T, k, K], made once too."""
        key = id(x), orders.tobytes()
        if key not in self._taken:
            wanted = constant(orders.reshape(-1), f"{x.name}.orders")
            self._taken[key] = apply("take_columns_id", x, wanted, ids, label=x.name)
        return self._taken[key]

    def sparse_shares(self, x: Node, ids: Node, tolerance: float) -> Node:
        return apply("sparse_shares", x, ids, tolerance=tolerance, label=x.name)

    def normalize(self, x: Node) -> Node:
        return apply("normalize", x, label=x.name)

    def weighted_sum(self, x: Node, weights: Node) -> Node:
        return apply("weighted_sum", x, weights, label=x.name)
