"""What architectures share: the tensors of their parts, and the parts as graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from octavo.formats import dequantize
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models.shared.hparams import CLASSIFIER, Hyperparams
from octavo.models.shared.weights import BIAS, SCALE, Expected, Tensors, Weights, matrix, vector, with_scales

Bias = bool | None
"""Whether products must have biases (True), may (None) or must not (False)."""
QkNorm = Literal["", "heads", "heads or none", "heads behind rope", "rows"]
RotaryFn = Callable[[Node], Node]
Gated = Callable[[Node, Node], Node]
Activation = str | Callable[..., Node]


def model_tensors(
    hp: Hyperparams, block: Tensors | Callable[[int], Tensors], *, output_bias: bool = False,
    output_norm: str = "output_norm",
) -> Tensors:
    """The tensors of a model: embedding, output, frequency factors, and those of layers, the same or by their number.

    A file may have or lack what layers that guess tokens are made of.
    """
    outer = {
        "token_embd.weight": matrix(hp.n_vocab, hp.n_embd),
        **({f"{output_norm}.weight": vector(hp.n_embd)} if output_norm else {}),
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


def products(shapes: Mapping[str, tuple[int, int]], bias: Bias = False) -> Tensors:
    """Matrices [N, K], by their names in a layer, with what goes with each."""
    found = with_scales({f"{name}.weight": matrix(*shape) for name, shape in shapes.items()})
    biases = {} if bias is False else {
        f"{name}{BIAS}": vector(rows, optional=not bias) for name, (rows, _) in shapes.items()
    }
    return found | biases


def norms(width: int, *names: str, bias: bool = False) -> Tensors:
    """Norms of this width; with `bias` they have biases. Names that end with a dot are whole names of tensors."""
    ends = (".weight", BIAS) if bias else (".weight",)
    return {name[:-1] if name.endswith(".") else name + end: vector(width) for name in names for end in ends}


def classifier_tensors(hp: Hyperparams) -> Tensors:
    """What a reranker has to score two texts with."""
    shape = (hp.n_embd,) if hp.n_labels == 1 else (hp.n_labels, hp.n_embd)
    return {CLASSIFIER: Expected(shape, optional=True, row=hp.n_labels == 1)}


def shared_expert_tensors(hp: Hyperparams, width: int, *, gated: bool = False) -> Tensors:
    """The feed-forward, `width` wide, that all tokens of a mixture-of-experts layer go through, in some with a gate."""
    rows = {f"ffn_{n}_shexp": (width, hp.n_embd) for n in ("gate", "up")}
    gate = {"ffn_gate_inp_shexp.weight": Expected((hp.n_embd,), row=True)} if gated else {}
    return products(rows | {"ffn_down_shexp": (hp.n_embd, width)}) | gate


def moe_tensors(hp: Hyperparams, *, bias: bool = False, joined: bool = False) -> Tensors:
    """A mixture-of-experts layer's tensors: a router, and stacked feed-forwards of experts; with `bias` all biased.

    joined  each expert's rows of the gate and then those of up are one tensor
    """
    heads = {"ffn_gate_up_exps": 2 * hp.n_ff_expert} if joined else dict.fromkeys(
        ("ffn_gate_exps", "ffn_up_exps"), hp.n_ff_expert)
    stacks = {f"{name}.weight": Expected((hp.n_expert, rows, hp.n_embd)) for name, rows in heads.items()}
    stacks["ffn_down_exps.weight"] = Expected((hp.n_expert, hp.n_embd, hp.n_ff_expert))
    tensors = {"ffn_gate_inp.weight": matrix(hp.n_expert, hp.n_embd), **with_scales(stacks)}
    if bias:
        tensors |= {n.removesuffix(".weight") + BIAS: Expected(want.shape[:2]) for n, want in stacks.items()}
        tensors["ffn_gate_inp.bias"] = vector(hp.n_expert)
    return tensors


def rotary(g: GraphBuilder, hp: Hyperparams, b: Weights, layer: int, *, freq_factors: bool = False) -> RotaryFn:
    """A layer's rope as a function of x [T, H, D]; its frequencies are worked out once for all layers.

    freq_factors  those of a file are for layers with a window, too, where these have a rope of their own
    """
    local = hp.rope_local if hp.windowed and hp.windowed[layer] else None
    rope, divides = local or hp.rope, freq_factors or local is None

    def frequencies() -> Node:
        factors = b.outer.get("rope_freqs") if divides else None
        if divides and factors is None and rope.kind == "longrope":
            factors = b.outer.get("rope_factors_long" if g.n_ctx > rope.n_ctx_original else "rope_factors_short")
        by = None if factors is None else dequantize(factors.tensor)[: rope.dims // 2]
        return constant(np.asarray(rope.frequencies(by)), "rope_frequencies")

    made = b.constant(f"frequencies {local is None}", frequencies)
    return lambda x: g.rope(x, made, rope.scale, rope.interleaved)


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


def qkv(
    g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node, norm: QkNorm = "", *, joined: bool = False
) -> tuple[Node, Node, Node]:
    """The three projections of h [T, n_embd], split into heads; of q and k normed what `norm` says.

    joined  one matrix has the rows of all
    """
    heads = hp.n_head, hp.n_head_kv, hp.n_head_kv
    if joined:
        q, k, v = g.columns(linear(g, b, "attn_qkv", h), *(n * hp.head_dim for n in heads))
    else:
        q, k, v = (linear(g, b, f"attn_{n}", h) for n in "qkv")
    if norm == "rows":
        q, k = norm_heads(g, hp, b, q, k)
    q, k, v = map(g.split_heads, (q, k, v), heads)
    if norm == "heads" or (norm == "heads or none" and b.get("attn_q_norm") is not None):
        q, k = norm_heads(g, hp, b, q, k)
    return q, k, v


def norm_heads(g: GraphBuilder, hp: Hyperparams, b: Weights, q: Node, k: Node) -> tuple[Node, Node]:
    """Each head of q and k, or each row, normed."""
    return g.rms_norm(q, b["attn_q_norm"], hp.eps), g.rms_norm(k, b["attn_k_norm"], hp.eps)


def ffn(g: GraphBuilder, b: Weights, h: Node, kind: str = "", gated: Gated | None = None) -> Node:
    """Down(silu(gate(h)) * up(h)); of the shared expert where `kind` is "_shexp"; `gated` as in `through_experts`."""
    gate, up = (linear(g, b, f"ffn_{n}{kind}", h) for n in ("gate", "up"))
    return linear(g, b, f"ffn_down{kind}", (gated or g.swiglu)(gate, up))


def scaled(g: GraphBuilder, x: Node, scale: float) -> Node:
    """x [T, K], each value times `scale`; x itself where that is 1."""
    width = x.shape[1]
    assert isinstance(width, int)
    return x if scale == 1 else g.mul(x, constant(np.full(width, scale, np.float32), f"{x.name}.scale"))


def through_experts(g: GraphBuilder, b: Weights, h: Node, ids: Node, weights: Node, gated: Gated | None = None) -> Node:
    """Each token of h [T, K] through its experts `ids`, weighted by `weights`, both [T, k]; `gated` is SwiGLU or so."""
    if b.get("ffn_gate_up_exps") is None:
        gate, up = (experts(g, b, f"ffn_{n}_exps", h, ids) for n in ("gate", "up"))
    else:
        gate, up = g.halves(experts(g, b, "ffn_gate_up_exps", h, ids))
    return g.weighted_sum(experts(g, b, "ffn_down_exps", (gated or g.swiglu)(gate, up), ids), weights)


def norm(g: GraphBuilder, hp: Hyperparams, w: Weights, name: str, x: Node) -> Node:
    """The norm `name`, an RMS norm, or a layer norm with its bias if it has one."""
    return g.layer_norm(x, w[name], w.get(f"{name}{BIAS}"), hp.eps) if hp.around_mean else g.rms_norm(
        x, w[name], hp.eps)


def logits(g: GraphBuilder, hp: Hyperparams, w: Weights, x: Node, last: str = "output_norm") -> Node:
    """[T, n_embd] -> [outputs, n_vocab]; a model without `output` uses its embedding (tied weights).

    last  what the last norm is called
    """
    h = norm(g, hp, w, last, g.last(x))
    if w.get("output") is not None:
        return linear(g, w, "output", h)
    return g.mul_mat(w["token_embd"], h, w.get("output.bias"))
