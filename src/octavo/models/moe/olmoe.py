"""OLMoE: q and k normed as whole rows, and experts by their shares of the probability of all."""

from __future__ import annotations

from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, expert_keys
from octavo.models.shared.hparams import Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights


def tensors(hp: Hyperparams) -> Tensors:
    attention = layers.attention_tensors(hp) | layers.row_norm_tensors(hp)
    return layers.model_tensors(hp, attention | layers.moe_tensors(hp))


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv_of_rows(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.moe(g, hp, b, g.rms_norm(x, b["ffn_norm"], hp.eps), normalized=False))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for normalized shares, for biases, and for values of q, k and v that are clipped."""
    config.only_flags({"norm_topk_prob": False, "attention_bias": False})
    if (clip := config.values.get("clip_qkv")) is not None:
        raise config.error("clip_qkv", f"is {brief(clip)}", "null")
    return expert_keys(config, "num_experts")


ARCH = Architecture(
    name="olmoe",
    hparams=partial(read_shared, has_experts=True),
    tensors=tensors,
    build=build,
    classes={"OlmoeForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.moe("mlp", "gate_proj", "up_proj", "down_proj"),
    writable=False,
)
