"""DBRX: layer norms, q, k and v in one matrix and clipped, rope on halves of a head, experts."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, RMS_EPS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights
from octavo_legacy.shared import clipped

CLIP = "attention.clamp_kqv"
NORM = "attn_output_norm"
"""The norm before the experts."""


@dataclass(frozen=True, kw_only=True)
class Dbrx(Hyperparams):
    """The greatest magnitude of values of q, k and v, 0 for any."""

    clip: float


def hparams(r: HyperparamReader) -> Dbrx:
    hp = read_shared(r, has_experts=True, eps=LAYER_NORM_EPS)
    return hp.extended(Dbrx, clip=r.positive(CLIP) or 0.0)


def tensors(hp: Dbrx) -> Tensors:
    block = layers.joined_qkv_tensors(hp) | layers.moe_tensors(hp)
    block[f"{NORM}.weight"] = block.pop("ffn_norm.weight")
    return layers.model_tensors(hp, {name: want for name, want in block.items() if not name.endswith(".bias")})


def build(g: GraphBuilder, hp: Dbrx, w: Weights) -> Node:
    rope, kv = layers.rotary(g, hp.rope, w), hp.n_head_kv * hp.head_dim
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = layers.linear(g, b, "attn_qkv", layers.layer_norm(g, hp, b, "attn_norm", x))
        q, k, v = g.columns(clipped(g, h, hp.clip), hp.n_head * hp.head_dim, kv, kv)
        q, k, v = g.split_heads(q, hp.n_head), g.split_heads(k, hp.n_head_kv), g.split_heads(v, hp.n_head_kv)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.moe(g, hp, b, layers.layer_norm(g, hp, b, NORM, x)))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """The base of the rope is that of attention, where it says one.

    Raises ModelError for another activation, and for shares of experts that do not make 1.
    """
    attention, feed_forward = (_part(config, word) for word in ("attn_config", "ffn_config"))
    feed_forward.only({"ffn_act_fn": {"name": "silu"}, "moe_normalize_expert_weights": 1})
    experts = feed_forward.size("moe_num_experts", LIMITS["expert_count"])
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    clip = None if attention.values.get("clip_qkv") is None else attention.real("clip_qkv")
    base = {} if attention.values.get("rope_theta") is None else {"rope.freq_base": attention.real("rope_theta")}
    width = feed_forward.size("ffn_hidden_size", LIMITS["feed_forward_length"])
    return base | {
        RMS_EPS: None, LAYER_NORM_EPS: 1e-5, CLIP: clip, "attention.head_count_kv": attention.size("kv_n_heads", heads),
        "expert_count": experts, "expert_used_count": feed_forward.size("moe_top_k", experts),
        "feed_forward_length": width,
    }


def _part(config: Config, word: str) -> Config:
    found = config.values.get(word)
    if not isinstance(found, dict):
        raise config.error(word, "is missing or no object")
    return Config(found, config.file)


ARCH = Architecture(
    name="dbrx",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, CLIP}),
    tensors=tensors,
    build=build,
    classes={"DbrxForCausalLM": config_keys},
    base="transformer.",
    layer="blocks",
    names={
        "norm_attn_norm.norm_1": "attn_norm", "norm_attn_norm.norm_2": NORM, "norm_attn_norm.attn.Wqkv": "attn_qkv",
        "norm_attn_norm.attn.out_proj": "attn_output", "ffn.router.layer": "ffn_gate_inp",
        "ffn.experts.mlp.w1": "ffn_gate_exps", "ffn.experts.mlp.v1": "ffn_up_exps",
        "ffn.experts.mlp.w2": "ffn_down_exps",
    },
    outer={
        "wte.weight": "token_embd.weight", "norm_f.weight": "output_norm.weight", "lm_head.weight": "output.weight",
    },
    key_aliases={
        "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
        "max_seq_len": "max_position_embeddings",
    },
    ropes=("default",),
    columns="in one",
    writable=False,
)
