"""BitNet b1.58: Llama with norms before the last product of attention and of feed-forward, and a gated squared ReLU.

Weights are -1, 0 and 1, times a number for each matrix (arXiv 2402.17764).
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import shown
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector

ACTIVATION = "hidden_activation"
RELU2, SILU = "relu2", "silu"


@dataclass(frozen=True, kw_only=True)
class Bitnet(Hyperparams):
    """The feed-forward's activation: RELU2 or SILU."""

    activation: str


def hparams(r: HyperparamReader) -> Bitnet:
    hp = read_shared(r, has_experts=False)
    # Files from before there was a key: BitNet b1.58 2B4T has 30 layers, models from before it have SiLU.
    activation = r.metadata.get_str(r.key(ACTIVATION), default=RELU2 if hp.n_layer == 30 else SILU)
    if activation not in (RELU2, SILU):
        raise r.error(ACTIVATION, f"is {shown(activation)}", f"{RELU2} or {SILU}")
    return hp.extended(Bitnet, activation=activation)


def tensors(hp: Bitnet) -> Tensors:
    sub_norms = {"attn_sub_norm.weight": vector(hp.n_head * hp.head_dim), "ffn_sub_norm.weight": vector(hp.n_ff)}
    return layers.model_tensors(hp, layers.attention_tensors(hp) | layers.ffn_tensors(hp) | sub_norms)


def build(g: GraphBuilder, hp: Bitnet, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", g.rms_norm(h, b["attn_sub_norm"], hp.eps)))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        gate, up = layers.linear(g, b, "ffn_gate", h), layers.linear(g, b, "ffn_up", h)
        h = g.swiglu(gate, up) if hp.activation == SILU else g.mul(g.relu_squared(gate), up)
        x = g.add(x, layers.linear(g, b, "ffn_down", g.rms_norm(h, b["ffn_sub_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for another activation, and for biases."""
    config.only_flags({"attention_bias": False})
    activation = config.values.get("hidden_act", RELU2)
    if activation not in (RELU2, SILU):
        raise config.error("hidden_act", f"is {brief(activation)}", f"{RELU2} or {SILU}")
    return {ACTIVATION: activation, "hidden_act": None}


ARCH = Architecture(
    name="bitnet",
    hparams=hparams,
    keys=frozenset({ACTIVATION}),
    tensors=tensors,
    build=build,
    classes={"BitNetForCausalLM": config_keys},
    names=names.LLAMA | {"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
    ropes=("default", "linear"),
    activation=RELU2,
    writable=False,
)
