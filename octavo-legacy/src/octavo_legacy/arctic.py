"""Arctic: beside attention and a dense feed-forward experts that are given the input of both."""

from dataclasses import replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import expert_keys
from octavo.models.shared.decoder import Attention, Decoder, Experts
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.weights import Tensors, Weights

NORM = "ffn_norm_exps"
"""The norm before the experts; `ffn_norm` is that before the dense feed-forward."""


class ArcticDecoder(Decoder):
    """A dense feed-forward as wide as the model, and experts that are given what attention is."""

    def layer_tensors(self, hp: Hyperparams, layer: int) -> Tensors:
        experts = layers.moe_tensors(hp) | layers.norms(hp.n_embd, NORM)
        return super().layer_tensors(replace(hp, n_ff=hp.n_embd), layer) | experts

    def build_layer(self, g: GraphBuilder, hp: Hyperparams, b: Weights, x: Node, i: int) -> Node:
        y = super().build_layer(g, hp, b, x, i)
        return g.add(y, Experts().build(g, hp, b, g.rms_norm(x, b[NORM], hp.eps), i))


ARCH = Architecture(
    name="arctic",
    network=ArcticDecoder(mixer=Attention(bias=False)),
    interleaved=True,
    experts=True,
    only={
        "moe_layer_frequency": 1, "use_residual": True, "parallel_attn_mlp_res": True, "attention_bias": False,
        "sliding_window": 0,
    },
    classes={"ArcticForCausalLM": lambda config: expert_keys(config, "num_local_experts")},
    names=names.ATTENTION | names.moe("block_sparse_moe", "w1", "w3", "w2") | {
        "input_layernorm": "attn_norm", "residual_layernorm": "ffn_norm", "post_attention_layernorm": NORM,
        "residual_mlp.w1": "ffn_gate", "residual_mlp.w3": "ffn_up", "residual_mlp.w2": "ffn_down",
    },
    ropes=("default", "linear", "yarn"),
)
