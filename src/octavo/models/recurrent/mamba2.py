"""Mamba-2: scans alone, without attention and feed-forwards (arXiv 2405.21060)."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, ssd
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, RMS_EPS, HyperparamReader
from octavo.models.shared.ssd import Mamba2
from octavo.models.shared.states import CONTEXT, NO_ATTENTION, without_attention
from octavo.models.shared.weights import Tensors, Weights, vector

WORDS = {
    "taps": "conv_kernel", "keys": "state_size", "heads": "num_heads", "scan_groups": "n_groups", "size": "head_dim",
    "limit": "time_step_limit",
}


def hparams(r: HyperparamReader) -> Mamba2:
    hp = without_attention(r)
    return hp.extended(
        Mamba2, **ssd.read_sizes(r), attends=(False,) * hp.n_layer, scans=(True,) * hp.n_layer
    )


def tensors(hp: Mamba2) -> Tensors:
    return layers.model_tensors(hp, {"attn_norm.weight": vector(hp.n_embd), **ssd.tensors(hp)})


def build(g: GraphBuilder, hp: Mamba2, w: Weights) -> Node:
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        x = g.add(x, ssd.scan(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps), i))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases of matrices."""
    config.only_flags({"use_bias": False})
    width = config.size("hidden_size", ssd.MOST) * config.size("expand", 64, 2)
    return ssd.config_keys(ssd.with_head_size(config, WORDS, width), WORDS) | plain_keys(config)


def plain_keys(config: Config) -> Keys:
    """Those of a model without attention beside what its scans have."""
    return dict.fromkeys(NO_ATTENTION, 0) | {
        RMS_EPS: config.real("rms_norm_eps", 1e-5),
        "context_length": config.size("max_position_embeddings", LIMITS["context_length"], CONTEXT),
    }


ARCH = Architecture(
    name="mamba2",
    hparams=hparams,
    keys=ssd.KEYS,
    tensors=tensors,
    build=build,
    classes={"Mamba2ForCausalLM": config_keys},
    names={"norm": "attn_norm", **ssd.names("mixer.")},
    base="backbone.",
    other_bases=("model.backbone.", "model."),
    outer={
        "embeddings.weight": "token_embd.weight", "norm_f.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    key_aliases={"layer_norm_epsilon": "rms_norm_eps"},
    remade=ssd.remade,
    writable=False,
)
