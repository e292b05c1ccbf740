"""Jais 1: GPT-2 with ALiBi in place of positions, SwiGLU, scores over the size of a head, and scaled vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.formats.spec import F32
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import gpt2
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector

MOST, USUAL = "attention.max_alibi_bias", 8.0


@dataclass(frozen=True, kw_only=True)
class Jais(Hyperparams):
    """
    alibi        what the slopes of heads are made of
    logit_scale  what logits are multiplied by: 1 in a file with an output matrix, whose values are multiplied
    """

    alibi: float
    logit_scale: float

    @property
    def attention_scale(self) -> float:
        return 1 / self.head_dim


def hparams(r: HyperparamReader) -> Jais:
    hp = read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)
    return hp.extended(Jais, alibi=r.real(MOST, USUAL), logit_scale=r.positive("logit_scale") or 1.0)


def tensors(hp: Jais) -> Tensors:
    ffn = layers.ffn_tensors(hp)
    block = layers.joined_qkv_tensors(hp, bias=True) | ffn
    block |= {f"{name}.bias": vector(hp.n_embd) for name in ("attn_norm", "ffn_norm", "ffn_down")}
    block |= {f"{name}.bias": vector(hp.n_ff) for name in ("ffn_gate", "ffn_up")}
    found = layers.model_tensors(hp, block) | {"output_norm.bias": vector(hp.n_embd)}
    return {name: want for name, want in found.items() if name != "rope_freqs.weight"}


def build(g: GraphBuilder, hp: Jais, w: Weights) -> Node:
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.joined_qkv(g, hp, b, layers.layer_norm(g, hp, b, "attn_norm", x))
        h = g.attention(q, k, v, layer=i, scale=hp.attention_scale, alibi=hp.alibi)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, layers.layer_norm(g, hp, b, "ffn_norm", x)))
    return layers.scaled(g, layers.logits(g, hp, w, x, around_mean=True), hp.logit_scale)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for learned positions, slopes of another steepness, and scores that are scaled otherwise."""
    config.only_flags({"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False})
    config.only({"position_embedding_type": "alibi"})
    by_size = "mup_scale_qk_dot_by_d" if "mup_scale_qk_dot_by_d" in config.values else "scale_qk_dot_by_d"
    if not config.flag(by_size, False):
        raise config.error(by_size, "is false", "true")
    embedding, output = _scales(config)
    tied = config.flag("tie_word_embeddings", True)
    return layer_norm_keys(config, "layer_norm_epsilon") | {
        MOST: USUAL, "context_length": _context(config), "logit_scale": output / embedding if tied else None,
        "attention.head_count_kv": config.size("num_attention_heads", LIMITS["attention.head_count"]),
        "rope.freq_base": None, "rope.dimension_count": None,
    }


def _context(config: Config) -> int:
    """Positions up to which slopes are those of the file: beyond `train_seq_len` they fall with a text's length."""
    n = config.size("max_position_embeddings", LIMITS["context_length"])
    scaling = config.values.get("alibi_scaling")
    if scaling is None:
        return n
    usual = {"type": (None, "linear"), "factor": (None, 1)}
    if not isinstance(scaling, dict) or any(scaling.get(key) not in known for key, known in usual.items()):
        allowed = "an object with train_seq_len, of type linear, and no factor"
        raise config.error("alibi_scaling", f"is {brief(scaling)}", allowed)
    return min(n, Config(scaling, config.file).size("train_seq_len", LIMITS["context_length"]))


def _scales(config: Config) -> tuple[float, float]:
    """What embeddings are multiplied by, and what logits are."""
    embedding = config.real("mup_embeddings_scale", config.real("embeddings_scale", 1.0))
    if config.values.get("mup_output_alpha") is None:
        return embedding, config.real("width_scale", 1.0)
    return embedding, config.real("mup_output_alpha") * config.real("mup_width_scale", 1.0)


def factors(config: Config) -> Mapping[str, float | F32]:
    embedding, output = _scales(config)
    return {"token_embd.weight": embedding, "output.weight": output}


ARCH = Architecture(
    name="jais",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, MOST, "logit_scale"}),
    tensors=tensors,
    build=build,
    classes={"JAISLMHeadModel": config_keys},
    base=gpt2.ARCH.base,
    layer=gpt2.ARCH.layer,
    names={**gpt2.ARCH.names, "mlp.c_fc2": "ffn_gate"},
    outer={name: part for name, part in gpt2.ARCH.outer.items() if not name.startswith("wpe.")},
    ignored=(*gpt2.ARCH.ignored, "relative_pe.slopes"),
    key_aliases=gpt2.ARCH.key_aliases,
    remade=gpt2.remade,
    factors=factors,
    unwritten_tensors=(*gpt2.ARCH.unwritten_tensors, "ffn_gate"),
    activation="swiglu",
    tied=True,
    writable=False,
)
