"""What architectures share: the tensors of their parts, and the parts as graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from octavo.formats import dequantize
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models.shared.hparams import CLASSIFIER, Hyperparams
from octavo.models.shared.rope import Rope
from octavo.models.shared.weights import BIAS, SCALE, Expected, Tensors, Weights, matrix, vector, with_scales


def model_tensors(hp: Hyperparams, block: Tensors | Callable[[int], Tensors], *, output_bias: bool = False) -> Tensors:
    """The tensors of a model: embedding, output, rope's factors, and those of layers, the same or by their number.

    A file may have or lack what layers that guess tokens are made of.
    """
    outer = {
        "token_embd.weight": matrix(hp.n_vocab, hp.n_embd),
        "output_norm.weight": vector(hp.n_embd),
        **with_scales({"output.weight": Expected((hp.n_vocab, hp.n_embd), optional=True)}),
    }
    if output_bias:
        outer["output.bias"] = vector(hp.n_vocab, optional=True)
    pairs = hp.rope.dims // 2
    if hp.rope.kind == "longrope":
        outer |= {f"rope_factors_{length}.weight": vector(pairs) for length in ("long", "short")}
    else:
        outer["rope_freqs.weight"] = vector(hp.freq_factor_pairs, optional=True)
    blocks = [block(i) if callable(block) else block for i in range(hp.n_layer + hp.n_next)]
    for i in range(hp.n_layer, len(blocks)):
        blocks[i] = {name: replace(want, optional=True) for name, want in (blocks[i] | _nextn_tensors(hp)).items()}
    return outer | {f"blk.{i}.{name}": shape for i, here in enumerate(blocks) for name, shape in here.items()}


def _nextn_tensors(hp: Hyperparams) -> Tensors:
    """What a layer that guesses tokens has beside what others have."""
    norms = {f"nextn.{name}.weight": vector(hp.n_embd) for name in ("enorm", "hnorm", "shared_head_norm")}
    heads = {f"nextn.{name}.weight": matrix(hp.n_vocab, hp.n_embd) for name in ("embed_tokens", "shared_head_head")}
    return norms | with_scales({"nextn.eh_proj.weight": matrix(hp.n_embd, 2 * hp.n_embd)} | heads)


def attention_tensors(
    hp: Hyperparams, *, bias: bool = False, output_bias: bool = False, qk_norm: bool = False
) -> Tensors:
    """An attention layer's tensors; a model may always have biases for q, k and v, with `bias` it must."""
    q, kv = hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim
    products = {
        "attn_q.weight": matrix(q, hp.n_embd),
        "attn_k.weight": matrix(kv, hp.n_embd),
        "attn_v.weight": matrix(kv, hp.n_embd),
        "attn_output.weight": matrix(hp.n_embd, q),
    }
    tensors = {"attn_norm.weight": vector(hp.n_embd), **with_scales(products)}
    tensors |= {f"attn_{n}.bias": vector(size, optional=not bias) for n, size in zip("qkv", (q, kv, kv), strict=True)}
    if output_bias:
        tensors["attn_output.bias"] = vector(hp.n_embd, optional=True)
    if qk_norm:
        tensors |= {f"attn_{n}_norm.weight": vector(hp.head_dim) for n in "qk"}
    return tensors


def joined_qkv_tensors(hp: Hyperparams, *, bias: bool = False) -> Tensors:
    """An attention layer's tensors where q, k and v are rows of one; with `bias` it must have biases, else it may."""
    q, kv = hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim
    products = {"attn_qkv.weight": matrix(q + 2 * kv, hp.n_embd), "attn_output.weight": matrix(hp.n_embd, q)}
    biases = {"attn_qkv.bias": q + 2 * kv, "attn_output.bias": hp.n_embd}
    return {
        "attn_norm.weight": vector(hp.n_embd), **with_scales(products),
        **{name: vector(size, optional=not bias) for name, size in biases.items()},
    }


def row_norm_tensors(hp: Hyperparams) -> Tensors:
    """Norms of q and k as whole rows."""
    sizes = {"attn_q_norm": hp.n_head * hp.head_dim, "attn_k_norm": hp.n_head_kv * hp.head_dim}
    return {f"{name}.weight": vector(size) for name, size in sizes.items()}


def ffn_tensors(hp: Hyperparams, *, bias: bool = False) -> Tensors:
    """A dense SwiGLU feed-forward layer's tensors; with `bias` it may have biases."""
    products = {
        "ffn_gate.weight": matrix(hp.n_ff, hp.n_embd),
        "ffn_up.weight": matrix(hp.n_ff, hp.n_embd),
        "ffn_down.weight": matrix(hp.n_embd, hp.n_ff),
    }
    tensors = {"ffn_norm.weight": vector(hp.n_embd), **with_scales(products)}
    if bias:
        tensors |= {
            n.removesuffix(".weight") + BIAS: vector(want.shape[0], optional=True) for n, want in products.items()
        }
    return tensors


def plain_ffn_tensors(hp: Hyperparams, *, bias: bool = False) -> Tensors:
    """Those of a feed-forward of two matrices."""
    return {name: want for name, want in ffn_tensors(hp, bias=bias).items() if not name.startswith("ffn_gate")}


def classifier_tensors(hp: Hyperparams) -> Tensors:
    """What a reranker has to score two texts with."""
    shape = (hp.n_embd,) if hp.n_labels == 1 else (hp.n_labels, hp.n_embd)
    return {CLASSIFIER: Expected(shape, optional=True, row=hp.n_labels == 1)}


def shared_expert_tensors(hp: Hyperparams, width: int) -> Tensors:
    """The feed-forward, `width` wide, that all tokens of a mixture-of-experts layer go through."""
    products = {f"ffn_{n}_shexp.weight": matrix(width, hp.n_embd) for n in ("gate", "up")}
    return with_scales(products | {"ffn_down_shexp.weight": matrix(hp.n_embd, width)})


def moe_tensors(hp: Hyperparams, *, bias: bool = False, joined: bool = False) -> Tensors:
    """A mixture-of-experts layer's tensors: a router, and stacked feed-forwards of experts; with `bias` all biased.

    joined  each expert's rows of the gate and then those of up are one tensor
    """
    heads = {"ffn_gate_up_exps": 2 * hp.n_ff_expert} if joined else dict.fromkeys(
        ("ffn_gate_exps", "ffn_up_exps"), hp.n_ff_expert)
    products = {f"{name}.weight": Expected((hp.n_expert, rows, hp.n_embd)) for name, rows in heads.items()}
    products["ffn_down_exps.weight"] = Expected((hp.n_expert, hp.n_embd, hp.n_ff_expert))
    router = matrix(hp.n_expert, hp.n_embd)
    tensors = {"ffn_norm.weight": vector(hp.n_embd), "ffn_gate_inp.weight": router, **with_scales(products)}
    if bias:
        tensors |= {n.removesuffix(".weight") + BIAS: Expected(want.shape[:2]) for n, want in products.items()}
        tensors["ffn_gate_inp.bias"] = vector(hp.n_expert)
    return tensors


RotaryFn = Callable[[Node], Node]
Gated = Callable[[Node, Node], Node]
Qkv = Callable[[GraphBuilder, Hyperparams, Weights, Node], tuple[Node, Node, Node]]
"""What makes q, k and v of h [T, n_embd] and a layer's weights, as `qkv` does."""


def rotary(g: GraphBuilder, rope: Rope, w: Weights | None) -> RotaryFn:
    """A rope as a function of x [T, H, D]; its frequencies are worked out once, with the factors that `w` may have."""
    factors = None if w is None else w.get("rope_freqs")
    if w is not None and factors is None and rope.kind == "longrope":
        factors = w.get("rope_factors_long" if g.n_ctx > rope.n_ctx_original else "rope_factors_short")
    freq_factors = None if factors is None else dequantize(factors.tensor)[: rope.dims // 2]
    freqs = constant(np.asarray(rope.frequencies(freq_factors)), "rope_frequencies")
    return lambda x: g.rope(x, freqs, rope.scale, rope.interleaved)


def linear(g: GraphBuilder, b: Weights, name: str, x: Node) -> Node:
    """x [T, K] times the weight `name`, times its scale and plus its bias where it has these: [T, N]."""
    order = b.order(name)
    x = x if order is None else g.take_columns(x, order)
    y, scale, bias = g.mul_mat(b[name], x), b.scale(name), b.get(f"{name}{BIAS}")
    if scale is not None:
        n = y.shape[1]
        assert isinstance(n, int)
        y = g.mul(y, constant(np.repeat(scale, n), f"{b[name].name}{SCALE}"))
    return y if bias is None else g.add(y, bias)


def experts(g: GraphBuilder, b: Weights, name: str, x: Node, ids: Node) -> Node:
    """Each token's x times the weights `name` of its experts `ids` [T, k], times their scales and plus their biases."""
    orders = b.order(name)
    x = x if orders is None else g.take_columns_id(x, orders, ids)
    y, scales, bias = g.mul_mat_id(b[name], x, ids), b.scale(name), b.get(f"{name}{BIAS}")
    if scales is not None:
        y = g.mul(y, g.gather(constant(scales, f"{b[name].name}{SCALE}"), ids))
    return y if bias is None else g.add_rows(y, constant(dequantize(bias.tensor).reshape(-1), bias.name), ids)


def qkv(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node) -> tuple[Node, Node, Node]:
    """The three projections of h [T, n_embd], split into heads."""
    q, k, v = (linear(g, b, f"attn_{n}", h) for n in "qkv")
    return g.split_heads(q, hp.n_head), g.split_heads(k, hp.n_head_kv), g.split_heads(v, hp.n_head_kv)


def joined_qkv(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node) -> tuple[Node, Node, Node]:
    """The same, of one matrix with the rows of all."""
    q, kv = hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim
    parts = g.columns(linear(g, b, "attn_qkv", h), q, kv, kv)
    q_heads, k_heads, v_heads = map(g.split_heads, parts, (hp.n_head, hp.n_head_kv, hp.n_head_kv))
    return q_heads, k_heads, v_heads


def normed_qkv(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node) -> tuple[Node, Node, Node]:
    """The same, each head of q and k normed."""
    q, k, v = qkv(g, hp, b, h)
    return g.rms_norm(q, b["attn_q_norm"], hp.eps), g.rms_norm(k, b["attn_k_norm"], hp.eps), v


def qkv_of_rows(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node) -> tuple[Node, Node, Node]:
    """The same, q and k normed as whole rows before."""
    q, k = (g.rms_norm(linear(g, b, n, h), b[f"{n}_norm"], hp.eps) for n in ("attn_q", "attn_k"))
    v = linear(g, b, "attn_v", h)
    return g.split_heads(q, hp.n_head), g.split_heads(k, hp.n_head_kv), g.split_heads(v, hp.n_head_kv)


def ffn(g: GraphBuilder, b: Weights, h: Node, kind: str = "", gated: Gated | None = None) -> Node:
    """Down(silu(gate(h)) * up(h)); of the shared expert where `kind` is "_shexp"; `gated` as in `through_experts`."""
    gate, up = (linear(g, b, f"ffn_{n}{kind}", h) for n in ("gate", "up"))
    return linear(g, b, f"ffn_down{kind}", (gated or g.swiglu)(gate, up))


def plain_ffn(g: GraphBuilder, b: Weights, h: Node, act: Callable[[Node], Node], kind: str = "") -> Node:
    """Down(act(up(h))), of two matrices; of the shared expert where `kind` is "_shexp"."""
    return linear(g, b, f"ffn_down{kind}", act(linear(g, b, f"ffn_up{kind}", h)))


def geglu_ffn(g: GraphBuilder, b: Weights, h: Node) -> Node:
    """Down(gelu(gate(h)) * up(h))."""
    return linear(g, b, "ffn_down", g.geglu(linear(g, b, "ffn_gate", h), linear(g, b, "ffn_up", h)))


def scaled(g: GraphBuilder, x: Node, scale: float) -> Node:
    """x [T, K], each value times `scale`; x itself where that is 1."""
    width = x.shape[1]
    assert isinstance(width, int)
    return x if scale == 1 else g.mul(x, constant(np.full(width, scale, np.float32), f"{x.name}.scale"))


def moe(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node, *, normalized: bool = True) -> Node:
    """Each token through its most likely experts, weighted by their shares of the router's probability.

    normalized  shares are of what the chosen experts have together, otherwise of what all have
    """
    probabilities = g.soft_max(g.mul_mat(b["ffn_gate_inp"], h))
    ids = g.top_k(probabilities, hp.n_expert_used)
    shares = g.gather(probabilities, ids)
    return through_experts(g, b, h, ids, g.normalize(shares) if normalized else shares)


def through_experts(g: GraphBuilder, b: Weights, h: Node, ids: Node, shares: Node, gated: Gated | None = None) -> Node:
    """Each token of h [T, K] through its experts `ids`, weighted by `shares`, both [T, k]; `gated` is SwiGLU or so."""
    if b.get("ffn_gate_up_exps") is None:
        gate, up = (experts(g, b, f"ffn_{n}_exps", h, ids) for n in ("gate", "up"))
    else:
        gate, up = g.halves(experts(g, b, "ffn_gate_up_exps", h, ids))
    return g.weighted_sum(experts(g, b, "ffn_down_exps", (gated or g.swiglu)(gate, up), ids), shares)


def layer_norm(g: GraphBuilder, hp: Hyperparams, w: Weights, name: str, x: Node) -> Node:
    """The norm `name`, with its bias if it has one."""
    return g.layer_norm(x, w[name], w.get(f"{name}{BIAS}"), hp.eps)


def layer_norm_graph(
    g: GraphBuilder, hp: Hyperparams, w: Weights, feed_forward: Callable[[GraphBuilder, Weights, Node], Node]
) -> Node:
    """The graph of a model with rope, whose layer norms are before attention and before `feed_forward` of a layer."""
    rope = rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = qkv(g, hp, b, layer_norm(g, hp, b, "attn_norm", x))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        x = g.add(x, linear(g, b, "attn_output", h))
        x = g.add(x, feed_forward(g, b, layer_norm(g, hp, b, "ffn_norm", x)))
    return logits(g, hp, w, x, around_mean=True)


def logits(
    g: GraphBuilder, hp: Hyperparams, w: Weights, x: Node, *, around_mean: bool = False, norm: str = "output_norm"
) -> Node:
    """[T, n_embd] -> [outputs, n_vocab]; a model without `output` uses its embedding (tied weights).

    around_mean  the last norm, called `norm`, is a layer norm, otherwise an RMS norm
    """
    x = g.last(x)
    h = layer_norm(g, hp, w, norm, x) if around_mean else g.rms_norm(x, w[norm], hp.eps)
    if w.get("output") is not None:
        return linear(g, w, "output", h)
    return g.mul_mat(w["token_embd"], h, w.get("output.bias"))
