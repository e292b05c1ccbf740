"""SmolLM3: Llama without rope in every fourth layer."""

from __future__ import annotations

from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights

PERIOD = 4
"""Each layer of this number has no rope; a file can't say another number."""


def tensors(hp: Hyperparams) -> Tensors:
    return layers.model_tensors(hp, layers.attention_tensors(hp) | layers.ffn_tensors(hp))


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        if (i + 1) % PERIOD:
            q, k = rope(q), rope(k)
        h = g.attention(q, k, v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for windows, for biases of all linear layers, and for other layers without rope."""
    config.only_flags(dict.fromkeys(("use_sliding_window", "mlp_bias", "attention_bias"), False))
    n = config.size("num_hidden_layers", LIMITS["block_count"])
    period = config.values.get("no_rope_layer_interval", PERIOD)
    usual = [int((i + 1) % PERIOD != 0) for i in range(n)]
    found = config.values.get("no_rope_layers") or (usual if period == PERIOD else None)
    if found != usual:
        problem = f"is {brief(found if found else period)}"
        raise config.error("no_rope_layers", problem, f"0, for no rope, in every layer of {PERIOD} and 1 in others")
    return {}


ARCH = Architecture(
    name="smollm3",
    hparams=partial(read_shared, interleaved=True, has_experts=False),
    tensors=tensors,
    build=build,
    classes={"SmolLM3ForCausalLM": config_keys},
    names=names.LLAMA,
    ropes=("default", "linear", "yarn", "llama3"),
    tied=True,
    writable=False,
)
