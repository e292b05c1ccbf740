"""Hunyuan: norms of q and k behind the rope, whose base a factor of NTK's may stretch."""

from __future__ import annotations

from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.hparams import LIMITS, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights

NAMES = names.NORMS | names.ATTENTION | {
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
}
STRETCHED = {1000.0: 1 << 18}
"""Tokens of context that a rope's `alpha` makes of 32,768, which config.json says as before."""


def tensors(hp: Hyperparams) -> Tensors:
    return layers.model_tensors(hp, layers.attention_tensors(hp, qk_norm=True) | layers.ffn_tensors(hp))


def attend(g: GraphBuilder, hp: Hyperparams, b: Weights, x: Node, layer: int, rope: layers.RotaryFn) -> Node:
    """[T, n_embd] -> [T, n_embd]: x and what attention adds."""
    q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
    q, k = g.rms_norm(rope(q), b["attn_q_norm"], hp.eps), g.rms_norm(rope(k), b["attn_k_norm"], hp.eps)
    h = g.attention(q, k, v, layer=layer, scale=hp.attention_scale)
    return g.add(x, layers.linear(g, b, "attn_output", h))


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        x = attend(g, hp, b, x, i, rope)
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def refuse(config: Config) -> None:
    """Raise ModelError for heads without norms, and for shared caches."""
    config.only_flags({"use_qk_norm": True, "use_cla": False})


def config_keys(config: Config) -> Keys:
    """The rope's base: theta * alpha^(d / (d - 2)) for heads of d values.

    Raises ModelError for a rope that follows the length of the text, for heads without norms, and for shared caches.
    """
    refuse(config)
    found = rope_parameters(config)
    if found.get("rope_type", found.get("type")) != "dynamic":
        return {}
    alpha, context = config.real("alpha", of=found), config.size("max_position_embeddings", LIMITS["context_length"])
    width = config.size("hidden_size", LIMITS["embedding_length"])
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    d = config.size("head_dim", LIMITS["attention.key_length"], max(3, width // heads))
    theta = config.real("rope_theta", of=found) if "rope_theta" in found else config.real("rope_theta", 10000.0)
    return {
        "rope.freq_base": theta * alpha ** (d / max(1, d - 2)),
        "context_length": max(context, STRETCHED.get(alpha, 1)) if context == 1 << 15 else context,
    }


ARCH = Architecture(
    name="hunyuan-dense",
    hparams=partial(read_shared, has_experts=False),
    tensors=tensors,
    build=build,
    classes={"HunYuanDenseV1ForCausalLM": config_keys},
    names=NAMES | names.FFN,
    ropes=("default", "dynamic"),
    writable=False,
)
