"""OpenELM: Qwen 3 whose layers have other numbers of heads and other widths; q, k and v in one matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector

HEADS, KV_HEADS, WIDTH = "attention.head_count", "attention.head_count_kv", "feed_forward_length"


@dataclass(frozen=True, kw_only=True)
class OpenElm(Hyperparams):
    """Of each layer heads of queries and of keys, and the width of the feed-forward."""

    heads: tuple[int, ...]
    keys: tuple[int, ...]
    widths: tuple[int, ...]

    def kv_heads(self, layer: int) -> tuple[int, int]:
        return self.keys[layer], self.head_dim

    def at(self, layer: int) -> Hyperparams:
        """The sizes of a layer."""
        return replace(self, n_head=self.heads[layer], n_head_kv=self.keys[layer], n_ff=self.widths[layer])


def hparams(r: HyperparamReader) -> OpenElm:
    hp = read_shared(r, has_experts=False, by_layer=True, unlike_heads=True)
    heads, keys = r.sizes(HEADS, hp.n_layer), r.sizes(KV_HEADS, hp.n_layer)
    for layer, (n, n_kv) in enumerate(zip(heads, keys, strict=True)):
        if n % n_kv:
            raise r.error(KV_HEADS, f"{n_kv} of layer {layer} does not divide its {n} heads")
    return hp.extended(OpenElm, heads=heads, keys=keys, widths=r.sizes(WIDTH, hp.n_layer))


def tensors(hp: OpenElm) -> Tensors:
    norms = {f"attn_{n}_norm.weight": vector(hp.head_dim) for n in "qk"}

    def block(layer: int) -> Tensors:
        here = hp.at(layer)
        found = layers.joined_qkv_tensors(here) | layers.ffn_tensors(here) | norms
        return {name: want for name, want in found.items() if not name.endswith(".bias")}

    return layers.model_tensors(hp, block)


def build(g: GraphBuilder, hp: OpenElm, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.joined_qkv(g, hp.at(i), b, g.rms_norm(x, b["attn_norm"], hp.eps))
        q, k = g.rms_norm(q, b["attn_q_norm"], hp.eps), g.rms_norm(k, b["attn_k_norm"], hp.eps)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a feed-forward of two matrices, heads without norms, and an output matrix of its own."""
    config.only_flags(dict.fromkeys(("ffn_with_glu", "normalize_qk_projections", "share_input_output_layers"), True))
    config.only({"activation_fn_name": "swish"})
    width = config.size("hidden_size", LIMITS["embedding_length"])
    divisor = config.size("ffn_dim_divisor", LIMITS[WIDTH], 256)
    times = _by_layer(config, "ffn_multipliers", (int, float))
    head = config.size("head_dim", LIMITS["attention.key_length"])
    return {
        HEADS: _by_layer(config, "num_query_heads", (int,)), KV_HEADS: _by_layer(config, "num_kv_heads", (int,)),
        WIDTH: [_rounded(n * width, divisor) for n in times],
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), head),
    }


def _by_layer(config: Config, word: str, kinds: tuple[type, ...]) -> list[Any]:
    n, found = config.size("num_hidden_layers", LIMITS["block_count"]), config.values.get(word)
    if not isinstance(found, list) or len(found) != n or not all(type(x) in kinds and x > 0 for x in found):
        raise config.error(word, f"is {brief(found)}", f"{n} numbers over 0, one a layer")
    return found


def _rounded(width: float, divisor: int) -> int:
    """The nearest multiple, but not less than nine tenths."""
    nearest = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * width else nearest


ARCH = Architecture(
    name="openelm",
    hparams=hparams,
    tensors=tensors,
    build=build,
    classes={"OpenELMForCausalLM": config_keys},
    base="transformer.",
    names={
        "attn_norm": "attn_norm", "attn.qkv_proj": "attn_qkv", "attn.q_norm": "attn_q_norm",
        "attn.k_norm": "attn_k_norm", "attn.out_proj": "attn_output", "ffn_norm": "ffn_norm",
        "ffn.proj_1": "ffn_gate ffn_up", "ffn.proj_2": "ffn_down",
    },
    outer={
        "token_embeddings.weight": "token_embd.weight", "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    key_aliases={
        "model_dim": "hidden_size", "num_transformer_layers": "num_hidden_layers",
        "max_context_length": "max_position_embeddings", "rope_freq_constant": "rope_theta",
    },
    ropes=("default",),
    tied=True,
    writable=False,
)
