"""BitNet b1.58: Llama with norms before the last product of attention and of feed-forward, and a gated squared ReLU.

Weights are -1, 0 and 1, times a number for each matrix (arXiv 2402.17764).
"""

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, CustomPart, Decoder, FeedForward
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.weights import Tensors, Weights, vector

ACTIVATION = "hidden_activation"
RELU2, SILU = "relu2", "silu"


@dataclass(frozen=True, kw_only=True)
class BitnetParams(Hyperparams):
    """The feed-forward's activation: RELU2 or SILU."""

    activation: str = RELU2


class SubNormAttention(Attention):
    """Attention whose output is normed before it is projected."""

    def tensors(self, hp: Hyperparams, layer: int) -> Tensors:
        return super().tensors(hp, layer) | {"attn_sub_norm.weight": vector(hp.n_head * hp.head_dim)}

    def attend(self, g: GraphBuilder, hp: Hyperparams, b: Weights, heads: tuple[Node, Node, Node], layer: int) -> Node:
        return g.rms_norm(super().attend(g, hp, b, heads, layer), b["attn_sub_norm"], hp.eps)


def feed_forward_tensors(hp: BitnetParams, layer: int) -> Tensors:
    return FeedForward().tensors(hp, layer) | {"ffn_sub_norm.weight": vector(hp.n_ff)}


def feed_forward(g: GraphBuilder, hp: BitnetParams, b: Weights, h: Node, layer: int) -> Node:
    gate, up = layers.linear(g, b, "ffn_gate", h), layers.linear(g, b, "ffn_up", h)
    h = g.swiglu(gate, up) if hp.activation == SILU else g.mul(g.relu_squared(gate), up)
    return layers.linear(g, b, "ffn_down", g.rms_norm(h, b["ffn_sub_norm"], hp.eps))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for another activation."""
    return {ACTIVATION: config.one_of("hidden_act", (RELU2, SILU), RELU2), "hidden_act": None}


ARCH = Architecture(
    name="bitnet",
    network=Decoder(mixer=SubNormAttention(), feed_forward=CustomPart(feed_forward_tensors, feed_forward)),
    # Files from before there was a key: BitNet b1.58 2B4T has 30 layers, models from before it have SiLU.
    keys=(Key(
        "activation", ACTIVATION, choices=(RELU2, SILU), default=lambda hp: RELU2 if hp.n_layer == 30 else SILU
    ),),
    sizes=Sizes(kind=BitnetParams),
    classes={"BitNetForCausalLM": config_keys},
    only={"attention_bias": False},
    names=names.LLAMA | {"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
    ropes=("default", "linear"),
    activation=RELU2,
)
