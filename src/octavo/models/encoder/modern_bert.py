"""ModernBERT: an encoder with norms before its parts, GeGLU, and in most layers windows to both sides and a rope."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.encoder import bert
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, RerankHead
from octavo.models.shared.config import Config, Keys, brief, layer_norm_keys, local_rope
from octavo.models.shared.hparams import (
    LAYER_NORM_EPS,
    LIMITS,
    HyperparamReader,
    Hyperparams,
    read_shared,
    refuse_causal,
)
from octavo.models.shared.rope import Rope
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix, vector, with_scales
from octavo.models.shared.windows import PATTERN, read_windowed, windowed_layers

PERIOD = 3
"""The first of so many layers sees all of a text, where a file does not say which ones do."""
ACTIVATION, POOLING = "hidden_activation", "classifier.pooling_type"
ACTIVATIONS = ("gelu", "silu")
POOLINGS = {"mean": 1, "cls": 2}
"""Numbers of `classifier.pooling_type`: what the classifier of a reranker is given."""


@dataclass(frozen=True, kw_only=True)
class ModernBert(Hyperparams):
    """rope_local is that of layers with a window; `silu`: the feed-forward's activation is that, otherwise GELU."""

    rope_local: Rope
    silu: bool


def hparams(r: HyperparamReader) -> ModernBert:
    hp = read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)
    refuse_causal(r)
    kind = r.metadata.get_str(r.key(ACTIVATION), default="gelu")
    if kind not in ACTIVATIONS:
        raise r.error(ACTIVATION, f"is {kind[:40]!r}", " or ".join(ACTIVATIONS))
    rope_local = Rope(hp.rope.dims, r.real("rope.freq_base_swa", hp.rope.base, 1.0), interleaved=False)
    windowed = read_windowed(r, hp, PERIOD, first=True)
    return hp.extended(ModernBert, rope_local=rope_local, silu=kind == "silu", windowed=windowed)


def tensors(hp: ModernBert) -> Tensors:
    products = with_scales({
        "attn_qkv.weight": matrix((hp.n_head + 2 * hp.n_head_kv) * hp.head_dim, hp.n_embd),
        "attn_output.weight": matrix(hp.n_embd, hp.n_head * hp.head_dim),
        "ffn_up.weight": matrix(2 * hp.n_ff, hp.n_embd),
        "ffn_down.weight": matrix(hp.n_embd, hp.n_ff),
    })
    head = {"cls.weight": Expected((hp.n_embd, hp.n_embd), optional=True)} | layers.classifier_tensors(hp)
    head |= {"cls.norm.weight": vector(hp.n_embd, optional=True), "cls.output.bias": vector(hp.n_labels, optional=True)}
    blocks = {f"blk.{i}.{name}": want for i in range(hp.n_layer) for name, want in products.items()}
    blocks |= {f"blk.{i}.ffn_norm.weight": vector(hp.n_embd) for i in range(hp.n_layer)}
    blocks |= {f"blk.{i}.attn_norm.weight": vector(hp.n_embd, optional=i == 0) for i in range(hp.n_layer)}
    outer = {"token_embd.weight": matrix(hp.n_vocab, hp.n_embd)}
    return outer | {f"{name}.weight": vector(hp.n_embd) for name in ("token_embd_norm", "output_norm")} | head | blocks


def build(g: GraphBuilder, hp: ModernBert, w: Weights) -> Node:
    ropes = layers.rotary(g, hp.rope, w), layers.rotary(g, hp.rope_local, w)
    x = layers.layer_norm(g, hp, w, "token_embd_norm", g.get_rows(w["token_embd"], g.tokens))
    heads = hp.n_head, hp.n_head_kv, hp.n_head_kv
    for i in range(hp.n_layer):
        b, window = w.block(i), hp.window(i) // 2 + 1 if hp.windowed[i] else 0
        rope = ropes[hp.windowed[i]]
        h = x if b.get("attn_norm") is None else layers.layer_norm(g, hp, b, "attn_norm", x)
        parts = g.columns(layers.linear(g, b, "attn_qkv", h), *(n * hp.head_dim for n in heads))
        q, k, v = map(g.split_heads, parts, heads)
        h = g.attention_of_all(rope(q), rope(k), v, i, hp.attention_scale, window)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = layers.linear(g, b, "ffn_up", layers.layer_norm(g, hp, b, "ffn_norm", x))
        gate, up = g.columns(h, hp.n_ff, hp.n_ff)
        h = g.swiglu(gate, up) if hp.silu else g.mul(g.gelu_erf(gate), up)
        x = g.add(x, layers.linear(g, b, "ffn_down", h))
    return layers.layer_norm(g, hp, w, "output_norm", g.last(x))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases, which no published model has, and for other activations."""
    config.only_flags(dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias"), False))
    if (kind := config.values.get(ACTIVATION, "gelu")) not in ACTIVATIONS:
        raise config.error(ACTIVATION, f"is {brief(kind)}", " or ".join(ACTIVATIONS))
    keys = layer_norm_keys(config, "norm_eps") | {"attention.causal": False, ACTIVATION: kind}
    found = config.values.get("rope_parameters")
    full = found.get("full_attention") if isinstance(found, dict) else None
    for field, part, key, usual in (
        ("freq_base", full, "global_rope_theta", 160000.0),
        ("freq_base_swa", local_rope(config), "local_rope_theta", 10000.0),
    ):
        of_kind = isinstance(part, dict) and "rope_theta" in part
        keys[f"rope.{field}"] = config.real("rope_theta", of=part) if of_kind else config.real(key, usual)
    return keys | _window_keys(config)


def _window_keys(config: Config) -> Keys:
    """The window, and which layers have it."""
    n, listed = config.size("num_hidden_layers", LIMITS["block_count"]), config.values.get("layer_types") is not None
    period = config.size("global_attn_every_n_layers", LIMITS["block_count"], PERIOD)
    regular = [i % period != 0 for i in range(n)]
    windowed = windowed_layers(config, period) if listed else regular
    if not any(windowed):
        return {}
    window = config.size("local_attention", LIMITS["attention.sliding_window"], 128)
    return {"attention.sliding_window": window, PATTERN: period if windowed == regular else windowed}


def reranker(config: Config) -> Keys:
    """Raises ModelError for a classifier of more than one score, and one of another kind than GELU and a norm."""
    bert.require_one_label(config)
    config.only_flags({"classifier_bias": False})
    if (kind := config.values.get("classifier_activation", "gelu")) != "gelu":
        raise config.error("classifier_activation", f"is {brief(kind)}", "gelu")
    if (pooling := config.values.get("classifier_pooling", "cls")) not in POOLINGS:
        raise config.error("classifier_pooling", f"is {brief(pooling)}", " or ".join(POOLINGS))
    return config_keys(config) | {"pooling_type": bert.RANK, POOLING: POOLINGS[pooling]}


ARCH = Architecture(
    name="modern-bert",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, PATTERN, "attention.causal", "rope.freq_base_swa", ACTIVATION, POOLING}),
    tensors=tensors,
    build=build,
    classes={
        "ModernBertModel": config_keys, "ModernBertForMaskedLM": config_keys,
        "ModernBertForSequenceClassification": reranker,
    },
    names={
        "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "attn_norm": "attn_norm", "mlp_norm": "ffn_norm",
        "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down",
    },
    outer={
        "embeddings.tok_embeddings.weight": "token_embd.weight", "embeddings.norm.weight": "token_embd_norm.weight",
        "final_norm.weight": "output_norm.weight",
    },
    unused=("head.", "decoder.", "classifier."),
    class_outer={
        "ModernBertForSequenceClassification": {
            "head.dense.weight": "cls.weight", "head.norm.weight": "cls.norm.weight",
            "classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias",
        },
    },
    rerank_head=RerankHead(activation="gelu", pooling="mean"),
    ropes=("default",),
    activation="gelu",
    tied=True,
    encoder=True,
    writable=False,
)
