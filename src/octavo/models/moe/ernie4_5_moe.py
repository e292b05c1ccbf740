"""ERNIE 4.5 with experts: chosen by shares and biases, behind dense layers, with one feed-forward for all tokens."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, HyperparamReader, read_shared
from octavo.models.shared.routed import SOFTMAX, Routed
from octavo.models.shared.weights import Tensors, Weights

STEP = "interleave_moe_layer_step"


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, interleaved=True, has_experts=True)
    if (step := r.integer(STEP, 1)) != 1:
        raise r.error(STEP, f"is {step}", "1, no dense layers behind those of experts")
    return hp.extended(Routed, **routed.read(r, hp, SOFTMAX, normalized=True))


def tensors(hp: Routed) -> Tensors:
    attention = layers.attention_tensors(hp, output_bias=True)
    return layers.model_tensors(hp, lambda i: attention | routed.feed_forward_tensors(hp, i))


def build(g: GraphBuilder, hp: Routed, w: Weights) -> Node:
    return routed.graph(g, hp, w, layers.qkv)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases, and for dense layers behind or between those of experts."""
    config.only_flags({"use_bias": False})
    n, experts = config.size("num_hidden_layers", LIMITS["block_count"]), config.size("moe_num_experts", 1 << 16)
    if (step := config.values.get("moe_layer_interval", 1)) != 1:
        raise config.error("moe_layer_interval", f"is {brief(step)}", "1")
    if (last := config.values.get("moe_layer_end_index", -1)) not in (-1, n - 1):
        raise config.error("moe_layer_end_index", f"is {brief(last)}", f"{n - 1}, the last layer")
    width = config.size("moe_intermediate_size", LIMITS["expert_feed_forward_length"])
    shared = config.count("moe_num_shared_experts", experts)
    return {
        "expert_count": experts, "expert_used_count": config.size("moe_k", experts), STEP: 1,
        "expert_feed_forward_length": width, routed.N_SHARED: shared, routed.SHARED_WIDTH: shared * width,
        routed.N_DENSE: config.count("moe_layer_start_index", n),
    }


ARCH = Architecture(
    name="ernie4_5-moe",
    hparams=hparams,
    keys=routed.KEYS | {STEP},
    tensors=tensors,
    build=build,
    classes={"Ernie4_5_MoeForCausalLM": config_keys},
    names=names.LLAMA | names.ROUTED | {"mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias"},
    unused=("mtp_",),
    tied=True,
    reordered=False,
    writable=False,
)
