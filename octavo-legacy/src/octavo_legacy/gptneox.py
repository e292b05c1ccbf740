"""GPT-NeoX and Pythia: layer norms, attention and feed-forward side by side, rope on a part of each head, GELU."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys, rotary_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector
from octavo_legacy.shared import unjoined_heads

PARALLEL = "use_parallel_residual"


@dataclass(frozen=True, kw_only=True)
class GptNeoX(Hyperparams):
    """Whether attention and feed-forward are side by side."""

    parallel: bool


def hparams(r: HyperparamReader) -> GptNeoX:
    hp = read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)
    return hp.extended(GptNeoX, parallel=r.metadata.get_bool(r.key(PARALLEL), default=True))


def tensors(hp: GptNeoX) -> Tensors:
    block = layers.joined_qkv_tensors(hp, bias=True) | layers.plain_ffn_tensors(hp)
    block |= {f"{name}.bias": vector(hp.n_embd) for name in ("attn_norm", "ffn_norm", "ffn_down")}
    block["ffn_up.bias"] = vector(hp.n_ff)
    return layers.model_tensors(hp, block) | {"output_norm.bias": vector(hp.n_embd)}


def build(g: GraphBuilder, hp: GptNeoX, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.joined_qkv(g, hp, b, layers.layer_norm(g, hp, b, "attn_norm", x))
        y = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        after = g.add(x, layers.linear(g, b, "attn_output", y))
        h = layers.layer_norm(g, hp, b, "ffn_norm", x if hp.parallel else after)
        x = g.add(after, layers.plain_ffn(g, b, h, g.gelu_erf))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a model without biases."""
    config.only_flags({"attention_bias": True})
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    return layer_norm_keys(config, "layer_norm_eps") | rotary_keys(config, default=0.25) | {
        PARALLEL: config.flag(PARALLEL, True), "attention.head_count_kv": heads,
    }


ARCH = Architecture(
    name="gptneox",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, PARALLEL}),
    tensors=tensors,
    build=build,
    classes={"GPTNeoXForCausalLM": config_keys},
    base="gpt_neox.",
    names={
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "attention.dense": "attn_output",
        "attention.query_key_value": "attn_qkv", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    },
    outer={
        "embed_in.weight": "token_embd.weight", "final_layer_norm.weight": "output_norm.weight",
        "final_layer_norm.bias": "output_norm.bias", "embed_out.weight": "output.weight",
        "lm_head.weight": "output.weight",
    },
    ignored=(".attention.bias", ".attention.masked_bias"),
    key_aliases={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
    remade=unjoined_heads,
    unwritten_tensors=("attn_qkv",),
    ropes=("default", "linear"),
    activation="gelu",
    writable=False,
)
