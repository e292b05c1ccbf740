"""Jina Embeddings 3: XLM-RoBERTa with rope instead of learned positions, q, k and v in one matrix."""

from __future__ import annotations

import logging

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.encoder import bert, nomic_bert
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, layer_norm_keys, rope_parameters
from octavo.models.shared.hparams import CAUSAL, LAYER_NORM_EPS, LIMITS
from octavo.models.shared.weights import Tensors, Weights, vector

log = logging.getLogger("octavo")

STORED = ".parametrizations.weight.original"
"""What the name of a weight ends in that has adapters beside it."""
WEIGHTS = {
    "mixer.Wqkv": "attn_qkv", "mixer.out_proj": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}
EMBEDDINGS = {
    "embeddings.word_embeddings": "token_embd.weight", "embeddings.token_type_embeddings": "token_types.weight",
}


def tensors(hp: bert.Bert) -> Tensors:
    block = layers.joined_qkv_tensors(hp, bias=True) | layers.plain_ffn_tensors(hp)
    block = {name: want for name, want in block.items() if not name.startswith(("attn_norm", "ffn_norm"))}
    block |= {"ffn_up.bias": vector(hp.n_ff), "ffn_down.bias": vector(hp.n_embd)}
    block |= {f"{name}.{part}": vector(hp.n_embd) for name in bert.NORMS for part in ("weight", "bias")}
    return bert.outer_tensors(hp, positions=False) | {
        f"blk.{i}.{name}": want for i in range(hp.n_layer) for name, want in block.items()
    }


def build(g: GraphBuilder, hp: bert.Bert, w: Weights) -> Node:
    return nomic_bert.encoded(g, hp, w, lambda _, b, x: layers.plain_ffn(g, b, x, g.gelu_erf))


def config_keys(config: Config) -> Keys:
    """Of transformers' form. Positions are counted from 0, but as many are left out as XLM-RoBERTa has no use for."""
    bert.require_types(config)
    pad = config.count("pad_token_id", LIMITS["context_length"])
    positions = config.size("max_position_embeddings", LIMITS["context_length"])
    if positions <= pad + 1:
        raise config.error("max_position_embeddings", f"is {positions}", f"over {pad + 1}, as pad_token_id says")
    keys = layer_norm_keys(config, "layer_norm_eps") | {CAUSAL: False, "context_length": positions - pad - 1}
    return keys | {"rope.freq_base": config.real("rope_theta", 20000.0, of=rope_parameters(config))}


def published(config: Config) -> Keys:
    """Of the form that Jina publishes, whose adapters are left out with a warning. Raises ModelError for learned
    positions."""
    config.only({"position_embedding_type": "rotary"})
    tasks = config.values.get("lora_adaptations")
    if isinstance(tasks, list) and tasks:
        listed = brief(", ".join(map(str, tasks)))
        log.warning("%s: vectors are those without a task, adapters for %s are left out", config.file, listed)
    return config_keys(config) | {"rope.freq_base": config.real("rotary_emb_base", 10000.0)}


ARCH = Architecture(
    name="jina-bert-v3",
    hparams=bert.hparams,
    keys=frozenset({LAYER_NORM_EPS, CAUSAL, "pooling_type"}),
    tensors=tensors,
    build=build,
    classes={"JinaEmbeddingsV3Model": config_keys, "XLMRobertaModel with lora_adaptations": published},
    names=WEIGHTS | {module + STORED: part for module, part in WEIGHTS.items()} | {
        "norm1": "attn_output_norm", "norm2": "layer_output_norm",
    },
    base="roberta.",
    layer="encoder.layers",
    rows=bert.ROWS,
    outer={
        **{module + end: name for module, name in EMBEDDINGS.items() for end in (".weight", STORED)},
        "emb_ln.weight": "token_embd_norm.weight", "emb_ln.bias": "token_embd_norm.bias",
    },
    unused=("pooler.", "lm_head."),
    ignored=(".lora_A", ".lora_B"),
    ropes=("default",),
    activation="gelu",
    tied=True,
    encoder=True,
    writable=False,
)
