"""Graphs of op cases, as `octavo.bench.op_graphs` has those of `octavo bench ops`.

A case of a fused op (`mul_mat_concat`, ...), or of one whose result is quantized (`quantized_rms_norm`, ...), is the
pattern of plain ops that rules of `graph.fuse` look for. A backend that asks for the fusion runs it fused, the
reference backend runs it as it stands.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from octavo.bench.op_graphs import GRAPHS, Sketch, attention, graph, pointwise
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name
from octavo.graph.builder import constant
from octavo.graph.chosen_adapters import INPUTS, with_adapters
from octavo.graph.factors import LowRank
from octavo.graph.low_rank import targets
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply
from octavo.graph.pointwise import POINTWISE, Pointwise


def quantized(s: Sketch, op: Pointwise) -> Node:
    """A product of what the op makes of values [tokens, k]."""
    return s.builder.mul_mat(s.matrix("w", s["n"], s["k"]), pointwise(s, op))


GRAPHS |= {f"quantized_{op.name}": partial(quantized, op=op) for op in POINTWISE.values() if op.quantizes}


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
def mul_mat_concat_add(s: Sketch) -> Node:
    """Three products of x with biases, of which views are read apart."""
    x, g = s.given("x", s["k"]), s.builder
    a, b, c = (
        g.add(g.mul_mat(s.matrix(f"w{i}", s[n], s["k"], number=i), x), s.vector(f"b{i}", s[n]))
        for i, n in enumerate(("n", "n2", "n"))
    )
    return g.add(g.mul(a, c), g.mul_mat(s.matrix("w3", s["n"], s["n2"]), b))


def with_random_adapters(s: Sketch, node: Node) -> Node:
    """A node with an adapter of each of the `ranks` behind its products; each token has one of them, or none."""
    ranks, fmt = s.shape["ranks"], by_name(s.formats[-1])
    graph = with_adapters(Graph.of(node), len(ranks), max(ranks))
    for rank in ranks:
        s.adapters.append({
            name: LowRank(random_matrix("a", fmt, (rank, k), s.rng), random_matrix("b", fmt, (n, rank), s.rng))
            for name, (n, k) in targets(graph).items() if rank
        })

    def chosen(tokens: int) -> np.ndarray:
        return np.random.default_rng(tokens).integers(0, len(ranks) + 1, tokens)

    def starts(tokens: int) -> np.ndarray:
        return np.concatenate([[0], np.bincount(chosen(tokens), minlength=len(ranks))[: len(ranks)].cumsum()])

    rows, begins = INPUTS["tokens"]
    s.draws[rows] = lambda tokens: np.argsort(chosen(tokens), kind="stable").astype(np.int32)
    s.draws[begins] = lambda tokens: starts(tokens).astype(np.int32)
    return graph.outputs[0]


@graph
def lora(s: Sketch) -> Node:
    """What adapters add to a product, or where there is n2 to three of one x, and to one of these."""
    if "n2" in s.shape:
        return with_random_adapters(s, mul_mat_concat(s))
    return with_random_adapters(s, s.builder.mul_mat(s.matrix("w", s["n"], s["k"]), s.given("x", s["k"])))


@graph
def mul_mat_id_gated(s: Sketch) -> Node:
    """Of SwiGLU; with `biased`, of a clamped one of values with biases."""
    g, ids, sizes = s.builder, s.chosen("ids", s["used"], below=s["experts"]), (s["used"], s["k"])
    gate, up = s.given("gate", *sizes), s.given("up", *sizes)
    if s["biased"]:
        gate, up = (g.add_rows(x, s.vector(f"b{i}", s["experts"] * s["k"]), ids) for i, x in enumerate((gate, up)))
    x = g.clamped_swiglu(gate, up, 1.7, 0.5) if s["biased"] else g.swiglu(gate, up)
    return g.mul_mat_id(s.matrix("w", s["experts"], s["n"], s["k"]), x, ids)


@graph
def mul_mat_id_concat(s: Sketch) -> Node:
    """A whole network of experts, the products of whose two halves are one."""
    g, ids, x = s.builder, s.chosen("ids", s["used"], below=s["experts"]), s.given("x", s["k"])
    gate, up = (g.mul_mat_id(s.matrix(f"w{i}", s["experts"], s["n"], s["k"], number=i), x, ids) for i in range(2))
    return g.mul_mat_id(s.matrix("w2", s["experts"], s["k"], s["n"], number=2), g.swiglu(gate, up), ids)


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
    """By shares that are normalized or not; with `plus`, and a value added; with `biased`, of values with biases, by a
    soft-max of the chosen."""
    g = s.builder
    logits, ids = s.given("logits", s["experts"]), s.chosen("ids", s["used"], below=s["experts"])
    x = s.given("x", s["used"], s["k"])
    if s["biased"]:
        x, shares = g.add_rows(x, s.vector("b", s["experts"] * s["k"]), ids), g.soft_max(g.gather(logits, ids))
    else:
        shares = g.gather(g.soft_max(logits), ids)
        shares = g.normalize(shares) if s["normalized"] else shares
    total = g.weighted_sum(x, shares)
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


@graph
def causal_conv(s: Sketch) -> Node:
    made = s["channels"] * s.shape.get("filters", 1)
    taps = s.rng.uniform(-1, 1, (s["width"], made)).astype(np.float32)
    bias = s.vector("bias", made) if "biased" in s.shape else None
    return s.builder.causal_conv(s.given("x", s["channels"]), taps, 0, silu=bool(s["silu"]), bias=bias)


@graph
def gated_delta_rule(s: Sketch) -> Node:
    """With keys of length 1 or so, as models have them, for others a state grows without end."""
    g, heads, size = s.builder, s["heads"], s["size"]
    even = constant(np.full(s["keys"], s["keys"] ** -0.5, np.float32), "even")
    q, k = (g.rms_norm(s.given(name, s["key_heads"], s["keys"]), even, 1e-6) for name in "qk")
    decays = heads * s["keys"] if "by_row" in s.shape else heads
    alpha, beta = s.given("alpha", decays), s.given("beta", heads)
    ssm_a = constant(s.rng.uniform(-8, -0.01, heads).astype(np.float32), "ssm_a")
    bias, tiled = s.vector("bias", decays), bool(s["tiled"])
    return g.gated_delta_rule(q, k, s.given("v", heads, size), alpha, beta, ssm_a, bias, 0, tiled=tiled)


@graph
def selective_scan(s: Sketch) -> Node:
    """With decays as models have them."""
    heads, of_keys = s["heads"], (s["groups"], s["keys"])
    ssm_a = constant(s.rng.uniform(-8, -0.01, heads).astype(np.float32), "ssm_a")
    x, b, c, dt = s.given("x", heads, s["size"]), s.given("b", *of_keys), s.given("c", *of_keys), s.given("dt", heads)
    return s.builder.selective_scan(x, b, c, dt, ssm_a, s.vector("dt_bias", heads), s.vector("ssm_d", heads), 0)


@graph
def channel_scan(s: Sketch) -> Node:
    """With decays as models have them."""
    channels, keys = s["channels"], s["keys"]
    ssm_a = s.rng.uniform(-8, -0.01, (keys, channels)).astype(np.float32)
    x, b, c, dt = (s.given(name, n) for name, n in (("x", channels), ("b", keys), ("c", keys), ("dt", channels)))
    return s.builder.channel_scan(x, b, c, dt, ssm_a, s.vector("ssm_d", channels), 0)


@graph
def wkv7(s: Sketch) -> Node:
    """With the norm that RWKV-7 has, or none."""
    heads, mixed = s["heads"], "mixed" in s.shape
    width = heads * s["size"]
    vectors = s.rng.uniform(-1, 1, (8 if mixed else 7, width)).astype(np.float32)
    r, w, k, v, a = (s.given(name, width) for name in "rwkva")
    first = (s.given("first", width), s.given("gate", width)) if mixed else None
    return s.builder.wkv7(r, w, k, v, a, vectors, 0, heads, None if "plain" in s.shape else 64e-5, first)
