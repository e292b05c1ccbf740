"""Nomic BERT: an encoder with rope instead of learned positions, SwiGLU, and q, k and v in one matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.encoder import bert
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS
from octavo.models.shared.weights import Tensors, Weights, matrix, vector, with_scales

FIXED = {
    "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "moe_every_n_layers": 0,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "causal": False,
    "rotary_scaling_factor": None,
}
"""Words of config.json that have no computation here with other values."""
TRAINED = 2048
"""Positions that the published models were trained for, whatever more their configurations say."""


def tensors(hp: bert.Bert) -> Tensors:
    block = with_scales({
        "attn_qkv.weight": matrix((hp.n_head + 2 * hp.n_head_kv) * hp.head_dim, hp.n_embd),
        "attn_output.weight": matrix(hp.n_embd, hp.n_head * hp.head_dim),
    })
    block |= {name: want for name, want in layers.ffn_tensors(hp).items() if not name.startswith("ffn_norm")}
    block |= {f"{name}.{part}": vector(hp.n_embd) for name in bert.NORMS for part in ("weight", "bias")}
    return bert.outer_tensors(hp, positions=False) | {
        f"blk.{i}.{name}": want for i in range(hp.n_layer) for name, want in block.items()
    }


FeedForward = Callable[[int, Weights, Node], Node]
"""What a layer, by its number and its weights, makes of its rows after attention."""


def build(g: GraphBuilder, hp: bert.Bert, w: Weights) -> Node:
    return encoded(g, hp, w, lambda _, b, x: layers.ffn(g, b, x))


def encoded(g: GraphBuilder, hp: bert.Bert, w: Weights, feed_forward: FeedForward) -> Node:
    """The last layer's rows."""
    rope = layers.rotary(g, hp.rope, w)
    x = bert.embedded(g, hp, w)
    heads = hp.n_head, hp.n_head_kv, hp.n_head_kv
    for i in range(hp.n_layer):
        b = w.block(i)
        parts = g.columns(layers.linear(g, b, "attn_qkv", x), *(n * hp.head_dim for n in heads))
        q, k, v = map(g.split_heads, parts, heads)
        h = g.attention_of_all(rope(q), rope(k), v, i, hp.attention_scale)
        x = layers.layer_norm(g, hp, b, "attn_output_norm", g.add(x, layers.linear(g, b, "attn_output", h)))
        x = layers.layer_norm(g, hp, b, "layer_output_norm", g.add(x, feed_forward(i, b, x)))
    return g.last(x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for what the published models of 137M parameters do not have."""
    require_fixed(config, FIXED)
    return encoder_keys(config, TRAINED)


def require_fixed(config: Config, fixed: Mapping[str, object]) -> None:
    for key, allowed in fixed.items():
        if (found := config.values.get(key, allowed)) != allowed:
            raise config.error(key, f"is {brief(found)}", str(allowed))


def encoder_keys(config: Config, trained: int) -> Keys:
    """What both kinds have, of `trained` positions at most."""
    bert.require_types(config)
    keys = layer_norm_keys(config, "layer_norm_eps") | {"attention.causal": False}
    keys["context_length"] = min(trained, config.size("max_position_embeddings", LIMITS["context_length"], trained))
    if config.values.get("rotary_emb_base") is not None:
        keys["rope.freq_base"] = config.real("rotary_emb_base")
    return keys


ARCH = Architecture(
    name="nomic-bert",
    hparams=bert.hparams,
    keys=frozenset({LAYER_NORM_EPS, "attention.causal", "pooling_type"}),
    tensors=tensors,
    build=build,
    classes={"NomicBertModel": config_keys},
    names={
        "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "mlp.fc11": "ffn_up",
        "mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down", "norm2": "layer_output_norm",
    },
    key_aliases={
        "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
        "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    base="bert.",
    layer="encoder.layers",
    rows=bert.ROWS,
    outer={
        **{name: gguf for name, gguf in bert.OUTER.items() if "word_" in name or "type_" in name},
        "emb_ln.weight": "token_embd_norm.weight",
        "emb_ln.bias": "token_embd_norm.bias",
    },
    unused=("pooler.", "cls."),
    tied=True,
    encoder=True,
    writable=False,
)
