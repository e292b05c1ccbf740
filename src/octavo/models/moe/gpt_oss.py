"""gpt-oss: experts with biases and a clamped gate, attention with sinks, a window in every other layer."""

from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, TensorLayout
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.decoder import Attention, CustomPart, Decoder, NormNames
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.weights import Weights
from octavo.models.shared.windows import Windows

SLOPE, LIMIT = 1.702, 7.0
"""Numbers of the clamped SwiGLU, which no key says."""


def experts(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node, layer: int) -> Node:
    router = layers.linear(g, b, "ffn_gate_inp", h)
    ids = g.top_k(router, hp.n_expert_used)
    gated = partial(g.clamped_swiglu, slope=SLOPE, limit=LIMIT)
    return layers.through_experts(g, b, h, ids, g.soft_max(g.gather(router, ids)), gated)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for another gate."""
    for word, usual in (("swiglu_alpha", SLOPE), ("swiglu_limit", LIMIT)):
        if (found := config.real(word, usual)) != usual:
            raise config.error(word, f"is {found:g}", f"{usual:g}")
    return expert_keys(config, "num_local_experts", width="intermediate_size")


ARCH = Architecture(
    name="gpt-oss",
    network=Decoder(
        mixer=Attention(bias=True, output_bias=True, sinks=True),
        feed_forward=CustomPart(lambda hp, layer: layers.moe_tensors(hp, bias=True), experts),
        norms=NormNames(feed_forward="post_attention_norm"),
    ),
    windows=Windows(2, 128),
    experts=True,
    whole_pairs=False,
    classes={"GptOssForCausalLM": config_keys},
    only={"attention_bias": True},
    names=names.LATE_NORMS | names.ATTENTION | names.ffn("mlp.experts", "_exps") | names.stacked("mlp") | {
        "self_attn.sinks": "attn_sinks", "mlp.router": "ffn_gate_inp",
        "mlp.experts.gate_up_proj_bias": "ffn_gate_exps.bias ffn_up_exps.bias",
        "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    },
    layout=TensorLayout(columns="alternate"),
)
