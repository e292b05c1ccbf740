"""MPT: layer norms, q, k and v in one matrix, attention that falls with the distance (ALiBi) in most, GELU."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, matrix, vector
from octavo_legacy.shared import clipped

MOST, CLIP = "attention.max_alibi_bias", "attention.clamp_kqv"
HEADS = {"multihead_attention": None, "multiquery_attention": 1}
"""Kinds of attention that config.json names without a number of heads of keys, and that number, None for all."""


@dataclass(frozen=True, kw_only=True)
class Mpt(Hyperparams):
    """How positions are told, and what becomes of q, k and v.

    alibi    what the slopes of heads are made of, 0 for none
    clip     the greatest magnitude of values of q, k and v, 0 for any
    placed   whether there are vectors of positions
    """

    alibi: float
    clip: float
    placed: bool


def hparams(r: HyperparamReader) -> Mpt:
    hp = read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)
    placed = "position_embd.weight" in r.shapes
    alibi = r.positive(MOST) or 0.0
    if not alibi and not placed:
        raise r.error(MOST, "is 0, and there is no tensor position_embd.weight", "over 0 without vectors of positions")
    return hp.extended(Mpt, alibi=alibi, clip=r.positive(CLIP) or 0.0, placed=placed)


def tensors(hp: Mpt) -> Tensors:
    """The published models have no biases; a file may have some."""
    block = layers.joined_qkv_tensors(hp) | layers.plain_ffn_tensors(hp, bias=True)
    block |= {f"{name}.bias": vector(hp.n_embd, optional=True) for name in ("attn_norm", "ffn_norm")}
    outer = {"position_embd.weight": matrix(hp.n_ctx_train, hp.n_embd)} if hp.placed else {}
    found = layers.model_tensors(hp, block) | {"output_norm.bias": vector(hp.n_embd, optional=True)} | outer
    return {name: want for name, want in found.items() if name != "rope_freqs.weight"}


def build(g: GraphBuilder, hp: Mpt, w: Weights) -> Node:
    x = g.get_rows(w["token_embd"], g.tokens)
    if hp.placed:
        x = g.add(x, g.get_rows(w["position_embd"], g.positions))
    sizes = hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim, hp.n_head_kv * hp.head_dim
    for i in range(hp.n_layer):
        b = w.block(i)
        h = layers.linear(g, b, "attn_qkv", layers.layer_norm(g, hp, b, "attn_norm", x))
        q, k, v = g.columns(clipped(g, h, hp.clip), *sizes)
        heads = g.split_heads(q, hp.n_head), g.split_heads(k, hp.n_head_kv), g.split_heads(v, hp.n_head_kv)
        h = g.attention(*heads, layer=i, scale=hp.attention_scale, alibi=hp.alibi)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.plain_ffn(g, b, layers.layer_norm(g, hp, b, "ffn_norm", x), g.gelu_erf))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for norms of q and k, scores of another scale, scaled logits, biases, and no ALiBi."""
    attention = config.values.get("attn_config")
    if not isinstance(attention, dict):
        raise config.error("attn_config", "is missing or no object")
    inner = Config(attention, config.file)
    inner.only({"softmax_scale": None, "prefix_lm": False, "qk_ln": False, "alibi": True})
    config.only({"logit_scale": None, "no_bias": True})
    kind = attention.get("attn_type", "multihead_attention")
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    n_kv = inner.size("kv_n_heads", heads, HEADS.get(str(kind)) or heads)
    clip = None if attention.get("clip_qkv") is None else inner.real("clip_qkv")
    width = config.size("hidden_size", LIMITS["embedding_length"])
    times = config.size("expansion_ratio", LIMITS["feed_forward_length"] // width, 4)
    return layer_norm_keys(config, "layer_norm_epsilon") | {
        MOST: inner.real("alibi_bias_max", 8.0), CLIP: clip, "attention.head_count_kv": n_kv,
        "feed_forward_length": times * width, "rope.freq_base": None, "rope.dimension_count": None,
    }


ARCH = Architecture(
    name="mpt",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, MOST, CLIP}),
    tensors=tensors,
    build=build,
    classes={"MptForCausalLM": config_keys, "MPTForCausalLM": config_keys},
    base="transformer.",
    layer="blocks",
    names={
        "norm_1": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm_2": "ffn_norm",
        "ffn.up_proj": "ffn_up", "ffn.down_proj": "ffn_down",
    },
    outer={"wte.weight": "token_embd.weight", "norm_f.weight": "output_norm.weight", "lm_head.weight": "output.weight"},
    key_aliases={
        "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
        "max_seq_len": "max_position_embeddings",
    },
    ropes=("default",),
    tied=True,
    writable=False,
)
