"""PLaMo: attention and feed-forward side by side behind one norm; in checkpoints heads share those of keys in turn."""

from __future__ import annotations

from functools import partial

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, Hyperparams, read_shared
from octavo.models.shared.remaking import columns_moved, rows_moved
from octavo.models.shared.weights import Tensors, Weights

LENGTH = 4096
"""The context that the published model was trained with."""


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp) | layers.ffn_tensors(hp)
    del block["ffn_norm.weight"]
    return layers.model_tensors(hp, {name: want for name, want in block.items() if not name.endswith(".bias")})


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        q, k, v = layers.qkv(g, hp, b, h)
        y = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", y))
        x = g.add(x, layers.ffn(g, b, h))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Heads that share one of keys; what config.json says of heads of keys is that of queries."""
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    shared = config.size("n_shared_head", heads)
    if heads % shared:
        raise config.error("n_shared_head", f"is {shared}", f"a divisor of {heads} heads")
    length = config.size("max_position_embeddings", LIMITS["context_length"], LENGTH)
    return {"attention.head_count_kv": heads // shared, "context_length": length}


def remade(name: str, tensor: LazyTensor, hp: Hyperparams) -> LazyTensor:
    """Heads of queries one after the other that share a head of keys: of rows, or of columns behind attention."""
    order = np.arange(hp.n_head).reshape(-1, hp.n_head_kv).T.ravel()
    if name.endswith("attn_output.weight"):
        return columns_moved(tensor, order)
    if not name.endswith("attn_q.weight"):
        return tensor

    def moved(rows: AnyArray) -> AnyArray:
        return rows.reshape(hp.n_head, -1, rows.shape[1])[order].reshape(rows.shape)

    return rows_moved(tensor, moved)


ARCH = Architecture(
    name="plamo",
    hparams=partial(read_shared, has_experts=False),
    tensors=tensors,
    build=build,
    classes={"PlamoForCausalLM": config_keys},
    layer="layers.layers",
    names=names.ATTENTION | names.FFN | {"norm": "attn_norm"},
    remade=remade,
    unwritten_tensors=("attn_q", "attn_output"),
    ropes=("default", "linear"),
    writable=False,
)
