"""Falcon: attention and feed-forward side by side behind one layer norm or two, few heads of keys, GELU."""

from dataclasses import replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, TensorLayout, Unwritten
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import PARALLEL, Attention, Decoder, FeedForward
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS
from octavo.models.shared.weights import Tensors, Weights, vector
from octavo_legacy.shared import unjoined_heads

SECOND = "attn_norm_2"
"""The norm before attention where that has one of its own; `attn_norm` is that before the feed-forward then."""


class FalconDecoder(Decoder):
    """A file may have a norm of its own for attention."""

    def layer_tensors(self, hp: Hyperparams, layer: int) -> Tensors:
        second = {f"{SECOND}.{part}": vector(hp.n_embd, optional=True) for part in ("weight", "bias")}
        return super().layer_tensors(hp, layer) | second

    def build_layer(self, g: GraphBuilder, hp: Hyperparams, b: Weights, x: Node, i: int) -> Node:
        h = layers.norm(g, hp, b, "attn_norm", x)
        own = h if b.get(SECOND) is None else layers.norm(g, hp, b, SECOND, x)
        x = g.add(x, self.mixer.build(g, hp, b, own, i))
        return g.add(x, FEED_FORWARD.build(g, hp, b, h, i))


FEED_FORWARD = FeedForward(activation="gelu_erf", plain=True, bias=None)


def config_keys(config: Config) -> Keys:
    newer = config.flag("new_decoder_architecture", False)
    if not newer:
        config.only({"multi_query": True})
    limit = LIMITS[FF_WIDTH]
    return {
        KV_HEADS: config.size("num_key_value_heads", config.n_head, config.n_head) if newer else 1,
        FF_WIDTH: config.size("intermediate_size", limit, 4 * config.width),
    }


ARCH = Architecture(
    name="falcon",
    network=FalconDecoder(
        mixer=Attention(joined=True, output_bias=None), feed_forward=FEED_FORWARD, norms=replace(PARALLEL, bias=True)
    ),
    layer_norms="layer_norm_epsilon",
    only={"alibi": False, "parallel_attn": True},
    classes={"FalconForCausalLM": config_keys},
    base="transformer.",
    layer="h",
    names={
        "input_layernorm": "attn_norm", "ln_mlp": "attn_norm", "ln_attn": SECOND,
        "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
        "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    },
    outer=names.outer("word_embeddings", "ln_f", bias=True),
    key_aliases={
        "num_kv_heads": "num_key_value_heads", "ffn_hidden_size": "intermediate_size", "activation": "hidden_act",
        "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_head_kv": "num_key_value_heads",
    },
    layout=TensorLayout(converted=unjoined_heads),
    unwritten=Unwritten(tensors=("attn_qkv",)),
    ropes=("default", "linear"),
    activation="gelu",
    tied=True,
)
