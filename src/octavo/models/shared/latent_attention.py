"""Latent attention: heads' keys and values are products of one short vector a token, all that the cache keeps.

q . (k_b c) = (k_b^T q) . c, so queries are multiplied instead of keys, and sums of c instead of values (arXiv
2405.04434).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix, vector, with_scales

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_k_b attn_v_b",
    "self_attn.o_proj": "attn_output", "self_attn.embed_q": "attn_k_b", "self_attn.unembed_out": "attn_v_b",
}
"""Names of modules in a checkpoint and in GGUF, which has each head's keys as columns, and its values apart, as MLX's
`embed_q` and `unembed_out` are."""

SIZES = {
    "q_rank": "attention.q_lora_rank", "kv_rank": "attention.kv_lora_rank", "key": "attention.key_length_mla",
    "value": "attention.value_length_mla",
}
"""Fields of whole numbers, by their names in `Latent`."""


@dataclass(frozen=True, kw_only=True)
class Latent(Hyperparams):
    """Sizes of latent attention; the cache's one head is kv_rank and rope's dimensions long.

    q_rank       of queries, 0 where they come from the width
    kv_rank      of the short vector
    key, value   lengths of a head's keys, the turned part among them, and values
    query_scale  what scores are multiplied by
    """

    q_rank: int
    kv_rank: int
    key: int
    value: int
    query_scale: float

    @property
    def n_caches(self) -> int:
        """Keys are values too."""
        return 1

    @property
    def plain(self) -> int:
        """Of a head's keys, the values that are not turned."""
        return self.key - self.rope.dims


def _checks(hp: Hyperparams, sizes: Mapping[str, int]) -> dict[str, tuple[bool, str]]:
    """Of each size whether it fits the hyperparameters that all architectures have, and what would."""
    one_head = sizes["kv_rank"] + hp.rope.dims == hp.head_dim and hp.n_head_kv == 1
    return {
        "kv_rank": (one_head, "the key length less rope's dimensions, with one head of keys"),
        "key": (sizes["key"] > hp.rope.dims, "over the dimensions of rope"),
        "value": (sizes["value"] > 0, "over 0"),
    }


def read_sizes(r: HyperparamReader, hp: Hyperparams) -> dict[str, int]:
    """The sizes of `SIZES`. Raises ModelError naming the key that does not fit."""
    sizes = {name: r.whole(field, 0, LIMITS["embedding_length"]) for name, field in SIZES.items()}
    for name, (fits, allowed) in _checks(hp, sizes).items():
        if not fits:
            raise r.error(SIZES[name], f"{sizes[name]} does not fit", allowed)
    return sizes


def attention_tensors(hp: Latent) -> Tensors:
    heads = hp.n_head
    norms = {"attn_norm.weight": vector(hp.n_embd), "attn_kv_a_norm.weight": vector(hp.kv_rank)}
    products = {
        "attn_kv_a_mqa.weight": matrix(hp.head_dim, hp.n_embd),
        "attn_k_b.weight": Expected((heads, hp.kv_rank, hp.plain)),
        "attn_v_b.weight": Expected((heads, hp.value, hp.kv_rank)),
        "attn_output.weight": matrix(hp.n_embd, heads * hp.value),
    }
    if hp.q_rank:
        norms["attn_q_a_norm.weight"] = vector(hp.q_rank)
        products["attn_q_a.weight"] = matrix(hp.q_rank, hp.n_embd)
        products["attn_q_b.weight"] = matrix(heads * hp.key, hp.q_rank)
    else:
        products["attn_q.weight"] = matrix(heads * hp.key, hp.n_embd)
    return norms | with_scales(products)


def attend(
    g: GraphBuilder, hp: Latent, b: Weights, h: Node, layer: int, rope: layers.RotaryFn,
    scaled: Callable[[Node], Node] = lambda q: q,
) -> Node:
    """[T, n_embd] normed -> [T, n_embd]; `scaled` multiplies queries."""
    numbers = g.numbers(hp.n_head)
    q, k = scaled(_queries(g, hp, b, h, numbers, rope)), _keys(g, hp, b, h, rope)
    sums = g.split_heads(g.attention(q, k, None, layer, hp.query_scale, value_dim=hp.kv_rank), hp.n_head)
    y = layers.experts(g, b, "attn_v_b", sums, numbers)
    return layers.linear(g, b, "attn_output", g.join_of_heads(y))


def _queries(g: GraphBuilder, hp: Latent, b: Weights, h: Node, numbers: Node, rope: layers.RotaryFn) -> Node:
    """[T, heads, kv_rank + rope's]: to be multiplied with what the cache has."""
    if hp.q_rank:
        h = g.rms_norm(layers.linear(g, b, "attn_q_a", h), b["attn_q_a_norm"], hp.eps)
    q = g.split_heads(layers.linear(g, b, "attn_q_b" if hp.q_rank else "attn_q", h), hp.n_head)
    short = layers.experts(g, b, "attn_k_b", g.slice_heads(q, 0, hp.plain), numbers)
    return g.join_heads(short, rope(g.slice_heads(q, hp.plain, hp.rope.dims)))


def _keys(g: GraphBuilder, hp: Latent, b: Weights, h: Node, rope: layers.RotaryFn) -> Node:
    """[T, 1, kv_rank + rope's]: the short vector, and the part of keys that is turned."""
    short, turned = g.columns(layers.linear(g, b, "attn_kv_a_mqa", h), hp.kv_rank, hp.rope.dims)
    short = g.rms_norm(short, b["attn_kv_a_norm"], hp.eps)
    return g.join_heads(g.as_one_row(short), rope(g.as_one_row(turned)))


def config_keys(config: Config) -> Keys:
    """The sizes, and the cache's one head in place of all heads of keys and values."""
    most = LIMITS["embedding_length"]
    rank, turned = config.size("kv_lora_rank", most, 512), config.size("qk_rope_head_dim", most, 64)
    keys: Keys = {
        "attention.head_count_kv": 1, "attention.key_length": rank + turned, "attention.value_length": rank,
        SIZES["kv_rank"]: rank, SIZES["key"]: config.size("qk_nope_head_dim", most, 128) + turned,
        SIZES["value"]: config.size("v_head_dim", most, 128), "rope.dimension_count": turned,
    }
    if config.values.get("q_lora_rank") is not None:
        keys[SIZES["q_rank"]] = config.size("q_lora_rank", most)
    return keys
