"""How the graph of each op case is written: one small function an op, on plain ops only.

A case of a fused op (`mul_mat_concat`, ...), or of one whose result is quantized (`quantized_rms_norm`, ...), is the
pattern of plain ops that rules of `graph.fuse` look for. A backend that asks for the fusion runs it fused, the
reference backend runs it as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np

from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name, channel_format, quantize_reference
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.formats.group import row_named
from octavo.formats.rows import SCHEMES
from octavo.formats.spec import F32, AnyArray
from octavo.graph.builder import CacheType, GraphBuilder, constant, weight
from octavo.graph.node import PAGE_SIZE, DType, Node
from octavo.graph.ops import apply
from octavo.graph.pointwise import POINTWISE, Pointwise

Draw = Callable[[int], AnyArray]
"""Tokens in a step -> the values of an input, [tokens, ...]."""
OF_ROWS = frozenset(scheme.format for scheme in SCHEMES.values())
"""Formats that have a scale for a whole row, whose length says which they are."""


class Sketch:
    """What a case's graph is drawn with: random weights, and inputs whose values are drawn for each step.

    `draws` is how the values of each input are made, by its name.
    """

    def __init__(self, rng: np.random.Generator, formats: tuple[str, ...], shape: Mapping[str, Any]) -> None:
        self.rng, self.formats, self.shape = rng, formats, shape
        self.draws: dict[str, Draw] = {}
        cache = cast(CacheType, shape.get("cache", "f16"))
        self.builder = GraphBuilder(cache, PAGE_SIZE, static=_static(cache, shape) if "static" in shape else None)

    def __getitem__(self, name: str) -> int:
        return int(self.shape[name])

    def given(self, name: str, *shape: int) -> Node:
        """An input [tokens, *shape] of numbers from -1 to 1."""
        self.draws[name] = lambda tokens: self.rng.uniform(-1, 1, (tokens, *shape)).astype(np.float32)
        return Node("input", (), ("tokens", *shape), "f32", name=name)

    def chosen(self, name: str, *shape: int, below: int) -> Node:
        """An input of integers, [tokens] or [tokens, k]; the k of a row are different ones."""

        def draw(tokens: int) -> AnyArray:
            if not shape:
                return self.rng.integers(0, below, tokens, dtype=np.int32)
            rows = [self.rng.permutation(below)[: shape[0]] for _ in range(tokens)]
            return np.array(rows, np.int32)

        self.draws[name] = draw
        dtype: DType = "i32"
        return Node("input", (), ("tokens", *shape), dtype, name=name)

    def positions(self, below: int) -> Node:
        """The builder's `positions`, drawn at random."""
        self.draws["positions"] = lambda tokens: self.rng.integers(0, below, tokens, dtype=np.int32)
        return self.builder.positions

    def counts(self, name: str, *shape: int) -> Node:
        """An input of integers [tokens, *shape] up to 1,000."""
        self.draws[name] = lambda tokens: self.rng.integers(0, 1000, (tokens, *shape), dtype=np.int32)
        return Node("input", (), ("tokens", *shape), "i32", name=name)

    def matrix(self, name: str, *shape: int, number: int = 0) -> Node:
        """A weight [N, K] or [E, N, K] in the case's format of that number (the last one, if it has fewer)."""
        named = self.formats[min(number, len(self.formats) - 1)]
        fmt = channel_format(named, shape[-1]) if named in OF_ROWS else row_named(named)
        return weight(random_matrix(f"{name}.weight", fmt, shape, self.rng))

    def vector(self, name: str, size: int) -> Node:
        """A float32 weight of numbers around 1."""
        values = 1 + 0.2 * self.rng.standard_normal(size)
        return weight(quantize_reference(values, by_name("F32"), f"{name}.weight"))

    def freqs(self) -> Node:
        """Rope frequencies: of `turned` values of each head, or of the whole head."""
        turned = int(self.shape.get("turned", self.shape["dim"]))
        return constant((10000.0 ** (-np.arange(0, turned, 2) / turned)).astype(np.float32), "freqs")


def _static(cache: str, shape: Mapping[str, Any]) -> dict[tuple[int, str], F32]:
    """Static scales for keys and values from -1 to 1, of which the last head's largest eighth is cut off."""
    largest = np.linspace(1, 0.875, shape["kv_heads"], dtype=np.float32)
    scale = largest / np.float32(CACHE_FORMATS[cache].top)
    return {(0, "k"): scale, (0, "v"): scale}


GRAPHS: dict[str, Callable[[Sketch], Node]] = {}
"""Of pointwise ops `pointwise` draws all."""


def pointwise(s: Sketch, op: Pointwise) -> Node:
    """On values [tokens, k], or with `used` [tokens, used, k].

    With `row` further inputs are one row for all; with `spread` 1, 2 and 3 they have a number for each row, a row for
    each token, and a number for each token.
    """
    rows = [s["used"]] if "used" in s.shape else []
    sizes, spread, inputs = [*rows, s["k"]], s.shape.get("spread", 0), list[Node]()
    for name in op.inputs:
        if inputs and s.shape.get("row"):
            inputs.append(s.vector(name, s["k"]))
        else:
            inputs.append((s.counts if name in op.integers else s.given)(name, *sizes))
        sizes = [1 if spread & 1 << i else size for i, size in enumerate(reversed(sizes))][::-1]
    return op(*inputs, **op.numbers)


def quantized(s: Sketch, op: Pointwise) -> Node:
    """A product of what the op makes of values [tokens, k]."""
    return s.builder.mul_mat(s.matrix("w", s["n"], s["k"]), pointwise(s, op))


GRAPHS |= {f"quantized_{op.name}": partial(quantized, op=op) for op in POINTWISE.values() if op.quantizes}


def graph(write: Callable[[Sketch], Node]) -> Callable[[Sketch], Node]:
    GRAPHS[write.__name__] = write
    return write


@graph
def mul_mat(s: Sketch) -> Node:
    return s.builder.mul_mat(s.matrix("w", s["n"], s["k"]), s.given("x", s["k"]))


@graph
def mul_mat_add(s: Sketch) -> Node:
    """A bias and a residual."""
    y = s.builder.mul_mat(s.matrix("w", s["n"], s["k"]), s.given("x", s["k"]), s.vector("bias", s["n"]))
    return s.builder.add(s.given("residual", s["n"]), y)


@graph
def mul_mat_concat(s: Sketch) -> Node:
    """Three products of x, the last as wide as the first; their results are read apart, so views are too."""
    x, g = s.given("x", s["k"]), s.builder
    a, b, c = (g.mul_mat(s.matrix(f"w{i}", s[n], s["k"], number=i), x) for i, n in enumerate(("n", "n2", "n")))
    second = g.mul_mat(s.matrix("w3", s["n"], s["n2"]), b)
    return g.add(g.mul(a, c), second)


@graph
def mul_mat_id(s: Sketch) -> Node:
    """`shared`: the experts of a token see one row of x; else a row each."""
    ids = s.chosen("ids", s["used"], below=s["experts"])
    x = s.given("x", s["k"]) if s["shared"] else s.given("x", s["used"], s["k"])
    return s.builder.mul_mat_id(s.matrix("w", s["experts"], s["n"], s["k"]), x, ids)


@graph
def mul_mat_id_swiglu(s: Sketch) -> Node:
    ids, sizes = s.chosen("ids", s["used"], below=s["experts"]), (s["used"], s["k"])
    x = s.builder.swiglu(s.given("gate", *sizes), s.given("up", *sizes))
    return s.builder.mul_mat_id(s.matrix("w", s["experts"], s["n"], s["k"]), x, ids)


@graph
def quantized_rms_norm(s: Sketch) -> Node:
    g = s.builder
    return g.mul_mat(s.matrix("w", s["n"], s["k"]), g.rms_norm(s.given("x", s["k"]), s.vector("norm", s["k"]), 1e-6))


@graph
def get_rows(s: Sketch) -> Node:
    return s.builder.get_rows(s.matrix("table", s["n"], s["k"]), s.chosen("rows_wanted", below=s["n"]))


@graph
def rms_norm(s: Sketch) -> Node:
    """Over rows, or over each head where there are `heads`."""
    heads = (s["heads"],) if "heads" in s.shape else ()
    return s.builder.rms_norm(s.given("x", *heads, s["k"]), s.vector("norm", s["k"]), 1e-5)


@graph
def layer_norm(s: Sketch) -> Node:
    """Of values around 1 rather than 0; with `biased`, and a bias."""
    g, k = s.builder, s["k"]
    x = g.add(s.given("x", k), s.vector("around", k))
    return g.layer_norm(x, s.vector("norm", k), s.vector("bias", k) if s["biased"] else None, 1e-5)


@graph
def rope(s: Sketch) -> Node:
    x, positions = s.given("x", s["heads"], s["dim"]), s.positions(4096)
    return apply("rope", x, positions, s.freqs(), scale=1.1, interleaved=bool(s["interleaved"]))


@graph
def attention(s: Sketch) -> Node:
    """Writes k and v to the cache, then reads it. A shape may have a `window`, a `cap` for scores, `sinks`, a `reach`,
    and slopes of `alibi`.
    With `shared`, that many first values of keys are values too. A window below 0 is a chunk.
    With `static`, scales of the cache are.

    With several steps it reads what earlier ones wrote.
    """
    q = s.given("q", s["heads"], s["dim"])
    k, v = (s.given(name, s["kv_heads"], s["dim"]) for name in "kv")
    shared = int(s.shape.get("shared", 0))
    limits = s.shape.get("window", 0), s.shape.get("cap", 0)
    sinks, reach = s.vector("sinks", s["heads"]) if s.shape.get("sinks") else None, s.shape.get("reach", 0)
    alibi = float(s.shape.get("alibi", 0))
    return s.builder.attention(q, k, None if shared else v, 0, s["dim"] ** -0.5, *limits, sinks, reach, shared, alibi)


@graph
def slice_heads(s: Sketch) -> Node:
    return s.builder.slice_heads(s.given("x", s["heads"], s["dim"]), s["start"], s["size"])


@graph
def join_heads(s: Sketch) -> Node:
    return s.builder.join_heads(s.given("a", s["heads"], s["dim"]), s.given("b", s["heads"], s["size"]))


@graph
def numbers(s: Sketch) -> Node:
    """As the numbers of experts, one for each head."""
    x, g = s.given("x", s["heads"], s["k"]), s.builder
    s.positions(4)
    return g.mul_mat_id(s.matrix("w", s["heads"], s["n"], s["k"]), x, g.numbers(s["heads"]))


@graph
def keep_groups(s: Sketch) -> Node:
    """Softmax over what is left."""
    g = s.builder
    return g.soft_max(g.keep_groups(s.given("x", s["k"]), s["groups"], s["used"], s["best"]))


@graph
def rope_set_rows(s: Sketch) -> Node:
    """q/k norm (unless `norms` is 0), rope, the cache's writes, attention; with `readers` that of a second layer, too.

    The second one reads the cache of the first.
    """
    g, freqs = s.builder, s.freqs()
    q = s.given("q", s["heads"], s["dim"])
    k, v = (s.given(name, s["kv_heads"], s["dim"]) for name in "kv")
    if s["norms"]:
        q, k = (g.rms_norm(x, s.vector(f"{x.name}_norm", s["dim"]), 1e-6) for x in (q, k))
    q, k = (g.rope(x, freqs, 1.0, bool(s["interleaved"])) for x in (q, k))
    first = g.attention(q, k, v, 0, s["dim"] ** -0.5)
    if not s.shape.get("readers"):
        return first
    other = g.rope(s.given("other", s["heads"], s["dim"]), freqs, 1.0, bool(s["interleaved"]))
    return g.add(first, g.attention_to(0, other, 1, s["dim"] ** -0.5))


@graph
def quantized_attention(s: Sketch) -> Node:
    """Attention, and a product of its result."""
    return s.builder.mul_mat(s.matrix("w", s["n"], s["heads"] * s["dim"]), attention(s))


@graph
def add_rows(s: Sketch) -> Node:
    rows, ids = s.vector("rows", s["experts"] * s["k"]), s.chosen("ids", s["used"], below=s["experts"])
    return s.builder.add_rows(s.given("x", s["used"], s["k"]), rows, ids)


@graph
def soft_max(s: Sketch) -> Node:
    return s.builder.soft_max(s.given("x", s["k"]))


@graph
def top_k(s: Sketch) -> Node:
    return s.builder.top_k(s.given("x", s["k"]), s["used"])


@graph
def soft_max_top_k(s: Sketch) -> Node:
    return s.builder.top_k(s.builder.soft_max(s.given("x", s["k"])), s["used"])


@graph
def gather(s: Sketch) -> Node:
    """With `row`, from one row for all tokens."""
    x = s.vector("x", s["k"]) if "row" in s.shape else s.given("x", s["k"])
    return s.builder.gather(x, s.chosen("ids", s["used"], below=s["k"]))


@graph
def take_columns(s: Sketch) -> Node:
    return s.builder.take_columns(s.given("x", s["k"]), s.rng.permutation(s["k"]).astype(np.float32))


@graph
def take_columns_id(s: Sketch) -> Node:
    orders = np.stack([s.rng.permutation(s["k"]) for _ in range(s["experts"])]).astype(np.float32)
    ids = s.chosen("ids", s["used"], below=s["experts"])
    return s.builder.take_columns_id(s.given("x", s["k"]), orders, ids)


@graph
def normalize(s: Sketch) -> Node:
    return s.builder.normalize(s.builder.soft_max(s.given("x", s["k"])))


@graph
def weighted_sum(s: Sketch) -> Node:
    """With `sums`, as many sums."""
    sums = [s["sums"]] if "sums" in s.shape else []
    return s.builder.weighted_sum(s.given("x", s["used"], s["k"]), s.given("weights", *sums, s["used"]))


@graph
def sum_experts(s: Sketch) -> Node:
    """By shares that are normalized or not; with `plus`, and a value added."""
    g = s.builder
    logits, ids = s.given("logits", s["experts"]), s.chosen("ids", s["used"], below=s["experts"])
    shares = g.gather(g.soft_max(logits), ids)
    total = g.weighted_sum(s.given("x", s["used"], s["k"]), g.normalize(shares) if s["normalized"] else shares)
    return g.add(s.given("plus", s["k"]), total) if s["plus"] else total


@graph
def keep_largest(s: Sketch) -> Node:
    return s.builder.keep_largest(s.given("x", s["k"]), 0.5)


@graph
def sparse_shares(s: Sketch) -> Node:
    """So tolerant that some values are near."""
    x = s.given("x", s["k"])
    return s.builder.sparse_shares(x, s.builder.top_k(x, s["used"]), 0.3)


@graph
def as_large_as(s: Sketch) -> Node:
    """Some streams are smaller than the least, which their mean square is then."""
    return s.builder.as_large_as(s.given("x", s["streams"], s["k"]), s.given("like", s["k"]), 0.333)
