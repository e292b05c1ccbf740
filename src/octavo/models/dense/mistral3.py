"""Mistral 3 and Ministral 3, text: Llama whose scores grow with the position beyond the original context."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, rope_parameters
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.rope import LOG_MULTIPLIER
from octavo.models.shared.weights import Tensors, Weights

TEMPERATURE = "attention.temperature_scale"


@dataclass(frozen=True, kw_only=True)
class Mistral3(Hyperparams):
    """A query's scores are multiplied by 1 + temperature * log(1 + original contexts before its position)."""

    temperature: float


def hparams(r: HyperparamReader) -> Mistral3:
    hp = read_shared(r, interleaved=True, has_experts=False)
    strength = 1 + 0.1 * (r.positive(LOG_MULTIPLIER) or 0.0) * math.log(max(1.0, hp.rope.factor))
    rope = replace(hp.rope, attention_factor=hp.rope.attention_factor / strength)
    return hp.extended(Mistral3, rope=rope, temperature=r.positive(TEMPERATURE) or 0.0)


def tensors(hp: Mistral3) -> Tensors:
    return layers.model_tensors(hp, layers.attention_tensors(hp, output_bias=True) | layers.ffn_tensors(hp, bias=True))


def build(g: GraphBuilder, hp: Mistral3, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        if hp.temperature:
            q = g.scale_by_position(q, hp.rope.n_ctx_original, hp.temperature, offset=0)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a window, and for yarn whose strength GGUF has no words for."""
    if config.values.get("sliding_window") is not None:
        raise config.error("sliding_window", f"is {brief(config.values['sliding_window'])}", "null")
    found = rope_parameters(config)
    if found.get("mscale") not in (None, 1) or bool(found.get("mscale")) != bool(found.get("mscale_all_dim")):
        raise config.error("mscale", f"is {brief(found.get('mscale'))}", "1, with mscale_all_dim")
    keys: Keys = {}
    for field, word in ((TEMPERATURE, "llama_4_scaling_beta"), (LOG_MULTIPLIER, "mscale_all_dim")):
        if found.get(word):
            keys[field] = config.real(word, of=found)
    return keys


ARCH = Architecture(
    name="mistral3",
    hparams=hparams,
    keys=frozenset({TEMPERATURE, LOG_MULTIPLIER}),
    tensors=tensors,
    build=build,
    classes={"Ministral3ForCausalLM": config_keys},
    names=names.LLAMA,
    writable=False,
)
