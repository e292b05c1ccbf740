"""CodeShell: layer norms, q, k and v in one matrix, rope, biases everywhere, GELU between two matrices."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import gpt2
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)


def tensors(hp: Hyperparams) -> Tensors:
    return {name: want for name, want in gpt2.tensors(hp).items() if name != "position_embd.weight"}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.joined_qkv(g, hp, b, layers.layer_norm(g, hp, b, "attn_norm", x))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.plain_ffn(g, b, layers.layer_norm(g, hp, b, "ffn_norm", x), g.gelu))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for learned positions, and for scores of another scale."""
    config.only({"position_embedding_type": "rope"})
    config.only_flags({"scale_attn_weights": True})
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    grouped = config.flag("group_query_attention", False)
    width = config.size("hidden_size", LIMITS["embedding_length"])
    return layer_norm_keys(config, "layer_norm_epsilon") | {
        "attention.head_count_kv": config.size("num_query_groups", heads) if grouped else heads,
        "feed_forward_length": config.size("intermediate_size", LIMITS["feed_forward_length"], 4 * width),
    }


ARCH = Architecture(
    name="codeshell",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS}),
    tensors=tensors,
    build=build,
    classes={"CodeShellForCausalLM": config_keys},
    base="transformer.",
    layer="h",
    names=gpt2.ARCH.names,
    outer=gpt2.ARCH.outer,
    ignored=(".attn.rotary_emb.inv_freq",),
    key_aliases=gpt2.ARCH.key_aliases,
    ropes=("default", "linear"),
    activation="gelu_pytorch_tanh",
    writable=False,
)
