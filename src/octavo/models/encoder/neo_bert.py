"""NeoBERT: an encoder with RMS norms before its parts, rope on neighbours, SwiGLU, and heads of q, k and v in turn."""

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.encoder import llama_embed
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, Modules, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import CustomPart, FeedForward, FullAttention, TransformerEncoder
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS, RMS_EPS, MetadataReader
from octavo.models.shared.weights import Weights

ROUNDED = 8
"""Widths of feed-forwards are multiples of this."""


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    if hp.n_head_kv != hp.n_head:
        raise r.error(KV_HEADS, f"is {hp.n_head_kv}", str(hp.n_head))
    return llama_embed.complete(r, hp)


def attention(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node, layer: int) -> Node:
    rope, size = layers.rotary(g, hp, b, layer), hp.head_dim
    heads = g.split_heads(layers.linear(g, b, "attn_qkv", h), hp.n_head)  # [T, H, 3 D]
    q, k, v = (g.slice_heads(heads, start, size) for start in (0, size, 2 * size))
    return layers.linear(g, b, "attn_output", g.attention_of_all(rope(q), rope(k), v, layer, hp.attention_scale))


def config_keys(config: Config) -> Keys:
    """Two thirds of the width that config.json says are that of the gate, as many are that of up."""
    width = 2 * config.size("intermediate_size", LIMITS[FF_WIDTH]) // 3
    return {
        RMS_EPS: config.real("norm_eps", 1e-6), "pooling_type": 2,
        "context_length": config.size("max_length", LIMITS["context_length"], 1024),
        FF_WIDTH: -(-width // ROUNDED) * ROUNDED,
    }


ARCH = Architecture(
    name="neo-bert",
    network=TransformerEncoder(
        mixer=CustomPart(FullAttention(joined=True, bias=False).tensors, attention),
        feed_forward=FeedForward(joined=True), freq_factors=False, output_norm="enc.output_norm",
    ),
    sizes=Sizes(complete=complete),
    interleaved=True,
    classes=dict.fromkeys(("NeoBERT", "NeoBERTLMHead"), config_keys),
    names={
        "attention_norm": "attn_norm", "qkv": "attn_qkv", "wo": "attn_output", "ffn_norm": "ffn_norm",
        "ffn.w12": "ffn_up", "ffn.w3": "ffn_down",
    },
    outer={"encoder.weight": "token_embd.weight", "layer_norm.weight": "enc.output_norm.weight"},
    layer="transformer_encoder",
    unused=("decoder.",),
    modules=Modules(ignored=("freqs_cis",)),
    ropes=("default",),
    tied=True,
)
