"""Mamba-2: scans alone, without attention and feed-forwards (arXiv 2405.21060)."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models import layers, ssd
from octavo.models.architecture import Architecture
from octavo.models.config import Config, Keys
from octavo.models.hparams import LIMITS, RMS_EPS, HyperparamReader, vocabulary_size
from octavo.models.rope import Rope
from octavo.models.ssd import Mamba2
from octavo.models.weights import Tensors, Weights, vector

NONE = ("attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_count")
"""Fields that are 0 or missing."""
CONTEXT = 1 << 20
"""What a file says where config.json names no length, as converters do."""
WORDS = {
    "taps": "conv_kernel", "keys": "state_size", "heads": "num_heads", "scan_groups": "n_groups", "size": "head_dim",
    "limit": "time_step_limit",
}  # fmt: skip


def hparams(r: HyperparamReader) -> Mamba2:
    for field in NONE:
        r.whole(field, 0, 0)
    n, sizes = r.size("block_count"), ssd.read_sizes(r)
    return Mamba2(
        arch=r.arch, n_layer=n, n_embd=r.size("embedding_length"), n_ff=0, n_head=0, n_head_kv=0, head_dim=0,
        n_vocab=vocabulary_size(r), n_ctx_train=r.size("context_length", CONTEXT), eps=r.real(RMS_EPS, 1e-5, high=1.0),
        rope=Rope(dims=0, base=10000.0, interleaved=False), attends=(False,) * n, scans=(True,) * n,
        taps=sizes["taps"], inner=sizes["inner"], keys=sizes["keys"], heads=sizes["heads"],
        scan_groups=sizes["scan_groups"],
    )  # fmt: skip


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
    return ssd.config_keys(ssd.with_head_size(config, WORDS, width), WORDS) | dict.fromkeys(NONE, 0) | {
        RMS_EPS: config.real("rms_norm_eps", 1e-5),
        "context_length": config.size("max_position_embeddings", LIMITS["context_length"], CONTEXT),
    }  # fmt: skip


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
)  # fmt: skip
