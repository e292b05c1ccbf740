"""Latent attention: heads' keys and values are products of one short vector a token, all that the cache keeps.

q . (k_b c) = (k_b^T q) . c, so queries are multiplied instead of keys, and sums of c instead of values (arXiv
2405.04434).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.reader import LIMITS, MetadataReader
from octavo.models.shared.weights import Expected, Tensors, Weights, with_scales

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
KEYS = tuple(Key(name, field, default=0, limit=LIMITS["embedding_length"]) for name, field in SIZES.items())


@dataclass(frozen=True, kw_only=True)
class Latent(Hyperparams):
    """Sizes of latent attention; the cache's one head is kv_rank and rope's dimensions long.

    q_rank       of queries, 0 where they come from the width
    kv_rank      of the short vector
    key, value   lengths of a head's keys, the rotary part among them, and values
    """

    q_rank: int = 0
    kv_rank: int = 0
    key: int = 0
    value: int = 0

    @property
    def n_caches(self) -> int:
        """Keys are values too."""
        return 1

    @property
    def plain(self) -> int:
        """Of a head's keys, the values without rope."""
        return self.key - self.rope.dims


def check(r: MetadataReader, hp: Latent) -> None:
    """Raises ModelError naming the size that does not fit the others."""
    checks: Mapping[str, tuple[bool, str]] = {
        "kv_rank": (
            hp.kv_rank + hp.rope.dims == hp.head_dim and hp.n_head_kv == 1,
            "the key length less rope's dimensions, with one head of keys",
        ),
        "key": (hp.key > hp.rope.dims, "over the dimensions of rope"),
        "value": (hp.value > 0, "over 0"),
    }
    for name, (fits, allowed) in checks.items():
        if not fits:
            raise r.error(SIZES[name], f"{getattr(hp, name)} does not fit", allowed)


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """The part of a layer; in some models without rope."""

    rope: bool = True

    def tensors(self, hp: Latent, layer: int) -> Tensors:
        heads, norms = hp.n_head, layers.norms(hp.kv_rank, "attn_kv_a_norm")
        shapes = {"attn_kv_a_mqa": (hp.head_dim, hp.n_embd), "attn_output": (hp.n_embd, heads * hp.value)}
        if hp.q_rank:
            norms |= layers.norms(hp.q_rank, "attn_q_a_norm")
            shapes |= {"attn_q_a": (hp.q_rank, hp.n_embd), "attn_q_b": (heads * hp.key, hp.q_rank)}
        else:
            shapes["attn_q"] = heads * hp.key, hp.n_embd
        return norms | layers.products(shapes) | with_scales({
            "attn_k_b.weight": Expected((heads, hp.kv_rank, hp.plain)),
            "attn_v_b.weight": Expected((heads, hp.value, hp.kv_rank)),
        })

    def build(self, g: GraphBuilder, hp: Latent, b: Weights, h: Node, layer: int) -> Node:
        rope: layers.RotaryFn = layers.rotary(g, hp, b, layer) if self.rope else lambda part: part
        numbers = g.numbers(hp.n_head)
        q, k = _queries(g, hp, b, h, numbers, rope), _keys(g, hp, b, h, rope)
        if hp.temperature:
            q = g.scale_by_position(q, hp.temperature_length or hp.rope.n_ctx_original, hp.temperature, offset=0)
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
    """[T, 1, kv_rank + rope's]: the short vector, and the rotary part of keys."""
    short, rotary = g.columns(layers.linear(g, b, "attn_kv_a_mqa", h), hp.kv_rank, hp.rope.dims)
    short = g.rms_norm(short, b["attn_kv_a_norm"], hp.eps)
    return g.join_heads(g.as_one_row(short), rope(g.as_one_row(rotary)))


def config_keys(config: Config) -> Keys:
    """The sizes, and the cache's one head in place of all heads of keys and values."""
    most = LIMITS["embedding_length"]
    rank, rotary = config.size("kv_lora_rank", most, 512), config.size("qk_rope_head_dim", most, 64)
    keys: Keys = {
        "attention.head_count_kv": 1, "attention.key_length": rank + rotary, "attention.value_length": rank,
        SIZES["kv_rank"]: rank, SIZES["key"]: config.size("qk_nope_head_dim", most, 128) + rotary,
        SIZES["value"]: config.size("v_head_dim", most, 128), "rope.dimension_count": rotary,
    }
    if config.values.get("q_lora_rank") is not None:
        keys[SIZES["q_rank"]] = config.size("q_lora_rank", most)
    return keys
