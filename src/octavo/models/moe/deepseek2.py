"""DeepSeek V2 and V3 (R1), GLM-4.7-Flash, Mistral Large 3: latent attention, experts chosen by softmax or sigmoids.

They are chosen among the best groups, if there are groups; some experts all tokens go through.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense.mistral3 import TEMPERATURE
from octavo.models.shared import latent_attention as latent
from octavo.models.shared import layers, names, routed, unsplit
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, nextn_keys, rope_parameters
from octavo.models.shared.hparams import LIMITS, NEXTN, HyperparamReader, read_shared
from octavo.models.shared.rope import LOG_MULTIPLIER
from octavo.models.shared.routed import SIGMOID, SOFTMAX
from octavo.models.shared.weights import Tensors, Weights

LENGTH = "attention.temperature_length"
KEYS = routed.KEYS | {LOG_MULTIPLIER, NEXTN, TEMPERATURE, LENGTH, *latent.SIZES.values()}


@dataclass(frozen=True, kw_only=True)
class Deepseek2(latent.Latent, routed.Routed):
    """Latent attention, and experts that are chosen by scores.

    Queries are multiplied by 1 + temperature * log(1 + lengths before their position), 0: not.
    """

    temperature: float
    length: int


def hparams(r: HyperparamReader) -> Deepseek2:
    hp = read_shared(r, interleaved=True, has_experts=True, equal_lengths=False)
    sizes = latent.read_sizes(r, hp)
    # The key has 0.1 times what takes yarn's strength from turned values and gives it to scores.
    stretch = math.log(max(1.0, hp.rope.factor))
    turned = 1 + 0.1 * stretch if r.has(LOG_MULTIPLIER) else 1.0
    strength = 1 + (r.positive(LOG_MULTIPLIER) or 0.0) * stretch
    rope = replace(hp.rope, attention_factor=hp.rope.attention_factor / turned)
    scale = strength**2 / math.sqrt(sizes["key"])
    return hp.extended(
        Deepseek2, **sizes, **routed.read(r, hp, SOFTMAX), rope=rope, query_scale=scale,
        temperature=r.positive(TEMPERATURE) or 0.0,
        length=r.whole(LENGTH, 0, LIMITS["context_length"]) or hp.rope.n_ctx_original,
    )


def tensors(hp: Deepseek2) -> Tensors:
    attention = latent.attention_tensors(hp)
    return layers.model_tensors(hp, lambda i: attention | routed.feed_forward_tensors(hp, i))


def build(g: GraphBuilder, hp: Deepseek2, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)

    def scaled(q: Node) -> Node:
        return g.scale_by_position(q, hp.length, hp.temperature, offset=0) if hp.temperature else q

    for i in range(hp.n_layer):
        b = w.block(i)
        x = g.add(x, latent.attend(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps), i, rope, scaled))
        x = g.add(x, routed.feed_forward(g, hp, b, g.rms_norm(x, b["ffn_norm"], hp.eps), i))
    return layers.logits(g, hp, w, x)


def v2(config: Config) -> Keys:
    """Raises ModelError for other ways to choose experts, and for normalized shares."""
    config.only_flags({"norm_topk_prob": False})
    method = config.values.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.error("topk_method", f"is {brief(method)}", "greedy or group_limited_greedy")
    keys = attention_keys(config) | routed.config_keys(config, SOFTMAX, normalized=False)
    return keys | (routed.group_keys(config) if method == "group_limited_greedy" else {})


def v3(config: Config) -> Keys:
    config.only_flags({"rope_interleave": True})
    keys = attention_keys(config) | routed.config_keys(config, SIGMOID, normalized=True) | routed.group_keys(config)
    return keys | nextn_keys(config)


def attention_keys(config: Config) -> Keys:
    """Latent attention. Raises ModelError for its biases, and for yarn that GGUF has no words for."""
    config.only_flags({"attention_bias": False})
    found = rope_parameters(config)
    if (scale := found.get("mscale")) != found.get("mscale_all_dim"):
        raise config.error("mscale", f"is {brief(scale)}", "mscale_all_dim's value")
    keys: Keys = {LOG_MULTIPLIER: 0.1 * config.real("mscale", of=found)} if scale else {}
    return keys | latent.config_keys(config)


ARCH = Architecture(
    name="deepseek2",
    hparams=hparams,
    keys=KEYS,
    tensors=tensors,
    build=build,
    updated=unsplit.split,
    classes={"DeepseekV2ForCausalLM": v2, "DeepseekV3ForCausalLM": v3, "Glm4MoeLiteForCausalLM": v3},
    names=names.NORMS | names.FFN | latent.NAMES | names.ROUTED | names.NEXTN,
    reordered=False,
    writable=False,
)
