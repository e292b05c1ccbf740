"""Granite: Llama whose embeddings, scores, residuals and logits are each multiplied by a number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights

SHARED_WIDTH = "expert_shared_feed_forward_length"
ROPE = "rope.scaling.finetuned"
"""Whether there is rope, which is what converters have this key for."""
KEYS = frozenset({"attention.scale", "embedding_scale", "residual_scale", "logit_scale", ROPE, SHARED_WIDTH})


@dataclass(frozen=True, kw_only=True)
class Granite(Hyperparams):
    """What scores, embeddings, what layers add and logits are multiplied by; the width of a shared expert, or 0."""

    query_scale: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    n_ff_shared: int


def hparams(r: HyperparamReader, *, has_experts: bool) -> Granite:
    hp = read_shared(r, interleaved=True, has_experts=has_experts)
    if not r.metadata.get_bool(r.key(ROPE), default=True):
        raise r.error(ROPE, "is false, a model without rope", "true")
    width = r.integer(SHARED_WIDTH, 0)
    if not 0 <= width <= LIMITS["feed_forward_length"] * has_experts:
        raise r.error(SHARED_WIDTH, f"{width} is out of range", "0 to 2^22 of models with experts, 0 of others")
    return hp.extended(Granite, **scales(r, hp), n_ff_shared=width)


def scales(r: HyperparamReader, hp: Hyperparams) -> dict[str, float]:
    """The four numbers of `Granite`."""
    return {
        "query_scale": r.positive("attention.scale") or hp.attention_scale,
        "embedding_scale": r.positive("embedding_scale") or 1.0,
        "residual_scale": r.positive("residual_scale") or 1.0,
        "logit_scale": 1 / (r.positive("logit_scale") or 1.0),
    }


def tensors(hp: Granite) -> Tensors:
    return layers.model_tensors(hp, layers.attention_tensors(hp, output_bias=True) | feed_forward_tensors(hp))


def feed_forward_tensors(hp: Granite) -> Tensors:
    found = layers.moe_tensors(hp) if hp.n_expert else layers.ffn_tensors(hp, bias=True)
    return found | (layers.shared_expert_tensors(hp, hp.n_ff_shared) if hp.n_ff_shared else {})


def build(g: GraphBuilder, hp: Granite, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = layers.scaled(g, g.get_rows(w["token_embd"], g.tokens), hp.embedding_scale)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.query_scale)
        x = g.add(x, layers.scaled(g, layers.linear(g, b, "attn_output", h), hp.residual_scale))
        x = g.add(x, layers.scaled(g, feed_forward(g, hp, b, x), hp.residual_scale))
    return layers.scaled(g, layers.logits(g, hp, w, x), hp.logit_scale)


def feed_forward(g: GraphBuilder, hp: Granite, b: Weights, x: Node) -> Node:
    h = g.rms_norm(x, b["ffn_norm"], hp.eps)
    y = layers.moe(g, hp, b, h) if hp.n_expert else layers.ffn(g, b, h)
    return g.add(y, layers.ffn(g, b, h, "_shexp")) if hp.n_ff_shared else y


def config_keys(config: Config) -> Keys:
    """The four numbers, each 1 where config.json does not say."""
    words = {"attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
             "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}
    return {field: config.real(word, 1.0) for word, field in words.items()}


def without_scans(config: Config) -> Keys:
    """Of Granite 4 where all layers attend, which converters write as this architecture.

    Raises ModelError for experts, and for attention without rope.
    """
    if config.count("num_local_experts", LIMITS["expert_count"]):
        raise config.error("num_local_experts", "is not 0, and all layers have attention", "0")
    if (positions := config.values.get("position_embedding_type")) != "rope":
        raise config.error("position_embedding_type", f"is {brief(positions)}, and all layers have attention", "rope")
    width = config.size("shared_intermediate_size", LIMITS["feed_forward_length"])
    return config_keys(config) | {"feed_forward_length": width}


HYBRID = "GraniteMoeHybridForCausalLM"
WITHOUT_SCANS = f"{HYBRID} with layer_types only attention full_attention"
DENSE = {"shared_mlp.input_linear": "ffn_gate ffn_up", "shared_mlp.output_linear": "ffn_down"}
"""The feed-forward of the class where there are no experts, in which it is called that of all tokens."""

ARCH = Architecture(
    name="granite",
    hparams=partial(hparams, has_experts=False),
    keys=KEYS,
    tensors=tensors,
    build=build,
    classes={"GraniteForCausalLM": config_keys, WITHOUT_SCANS: without_scans},
    names=names.LLAMA,
    class_names={WITHOUT_SCANS: DENSE},
    ropes=("default", "linear", "yarn", "llama3"),
    writable=False,
)
