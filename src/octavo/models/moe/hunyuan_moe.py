"""Hunyuan with experts for a feed-forward, and one that all tokens go through."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import hunyuan_dense
from octavo.models.shared import layers, names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, HyperparamReader, read_shared
from octavo.models.shared.routed import SOFTMAX, Routed
from octavo.models.shared.weights import Tensors, Weights


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, has_experts=True)
    fields = routed.read(r, hp, SOFTMAX, normalized=True)
    return hp.extended(Routed, **fields | {"n_ff_shared": fields["n_ff_shared"] or hp.n_ff})


def tensors(hp: Routed) -> Tensors:
    attention = layers.attention_tensors(hp, qk_norm=True)
    return layers.model_tensors(hp, lambda i: attention | routed.feed_forward_tensors(hp, i))


def build(g: GraphBuilder, hp: Routed, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        x = hunyuan_dense.attend(g, hp, b, x, i, rope)
        x = g.add(x, routed.feed_forward(g, hp, b, g.rms_norm(x, b["ffn_norm"], hp.eps), i))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for layers that differ, for several experts for all tokens, and for dense first layers."""
    one = config.replaced({**config.values, **{key: _of_all(config, key) for key in LISTS if key in config.values}})
    one.only({"num_shared_expert": 1, "moe_layer_num_skipped": 0})
    experts, width = one.size("num_experts", LIMITS["expert_count"]), LIMITS["expert_feed_forward_length"]
    dense = one.size("intermediate_size", width)
    return hunyuan_dense.config_keys(config) | {
        "expert_count": experts, "expert_used_count": one.size("moe_topk", experts),
        "expert_feed_forward_length": one.size("moe_intermediate_size", width, dense),
        routed.N_SHARED: 1, routed.SHARED_WIDTH: dense,
    }


LISTS = ("moe_topk", "moe_intermediate_size", "num_shared_expert", "num_experts")
"""What config.json says once, or for each layer."""


def _of_all(config: Config, key: str) -> object:
    """The value that all layers have."""
    value = config.values[key]
    if not isinstance(value, list) or not value:
        return value
    if any(other != value[0] for other in value):
        raise config.error(key, f"is {brief(value)}", "one value for all layers")
    return value[0]


ARCH = Architecture(
    name="hunyuan-moe",
    hparams=hparams,
    keys=routed.KEYS,
    tensors=tensors,
    build=build,
    classes={"HunYuanMoEV1ForCausalLM": config_keys},
    names=hunyuan_dense.NAMES | names.moe("mlp", "gate_proj", "up_proj", "down_proj") | {
        "mlp.gate.wg": "ffn_gate_inp", "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
        "mlp.shared_mlp.up_proj": "ffn_up_shexp", "mlp.shared_mlp.down_proj": "ffn_down_shexp",
    },
    ropes=("default", "dynamic"),
    writable=False,
)
