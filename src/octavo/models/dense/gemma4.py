"""Gemma 4, text: heads of two sizes, layers that read the cache of another, an embedding for each layer, experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from octavo.formats import dequantize
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models.shared import layers, names, per_layer
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys, expert_keys, local_rope
from octavo.models.shared.decoder import GEGLU, SANDWICH_NORMS, Attention, CustomPart, Decoder
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.reader import ANY, FF_WIDTH, KV_HEADS, LIMITS, WINDOW, MetadataReader, brief
from octavo.models.shared.rope import Rope
from octavo.models.shared.weights import Tensors, Weights, vector
from octavo.models.shared.windows import PATTERN, Windows, windowed_layers

PERIOD = 6
"""The last layer of each period has no window, where config.json does not say which ones have."""
LOCAL, READERS = "attention.key_length_swa", "attention.shared_kv_layers"
LOCAL_VALUE, LOCAL_DIMS, LOCAL_BASE = "attention.value_length_swa", "rope.dimension_count_swa", "rope.freq_base_swa"
LOGIT_CAP = "final_logit_softcapping"
DIFFERS = {KV_HEADS: ANY, FF_WIDTH: ANY}


@dataclass(frozen=True, kw_only=True)
class Gemma4(Hyperparams):
    """Heads of layers with a window have dim_local values.

    layer_kv, layer_ff  heads of keys and width of the feed-forward, by layer
    n_reader  last layers that read the cache of the last other one that has a window, or has none, as they do
    n_each    values of a token's embedding for each layer, 0 for none
    joined_experts  gate and up of experts are one tensor
    """

    dim_local: int = 0
    layer_kv: tuple[int, ...] = ()
    layer_ff: tuple[int, ...] = ()
    n_reader: int = 0
    n_each: int = 0
    joined_experts: bool = False

    def at(self, layer: int) -> Gemma4:
        """The sizes of one layer as if all were like it."""
        dim = self.dim_local if self.windowed[layer] else self.head_dim
        return replace(self, head_dim=dim, n_head_kv=self.layer_kv[layer], n_ff=self.layer_ff[layer])

    def source(self, layer: int) -> int:
        """The layer whose cache a layer reads."""
        own = self.n_layer - self.n_reader
        return layer if layer < own else max(i for i in range(own) if self.windowed[i] == self.windowed[layer])

    def kv_heads(self, layer: int) -> tuple[int, int]:
        here = self.at(layer)
        return here.n_head_kv if self.source(layer) == layer else 0, here.head_dim


def complete(r: MetadataReader, hp: Gemma4) -> Gemma4:
    if hp.n_window is None:
        r.size(WINDOW, LIMITS[WINDOW])
    dim = r.size(LOCAL, LIMITS[LOCAL])
    if (length := r.integer(LOCAL_VALUE, dim)) != dim:
        raise r.error(LOCAL_VALUE, f"{length} differs from the key length", str(dim))
    rotary = r.count(LOCAL_DIMS, dim, dim)
    if rotary < 2 or rotary % 2:
        raise r.error(LOCAL_DIMS, f"{rotary} is out of range", f"an even number up to {dim}")
    kv = r.sizes(KV_HEADS, hp.n_layer)
    if wrong := [n for n in kv if hp.n_head % n]:
        raise r.error(KV_HEADS, f"{wrong[0]} does not divide {hp.n_head} heads")
    return replace(
        hp, rope_local=Rope(rotary, r.real(LOCAL_BASE, 10000.0, 1.0), interleaved=False), dim_local=dim, layer_kv=kv,
        layer_ff=r.sizes(FF_WIDTH, hp.n_layer), n_reader=readers_of(r, hp.windowed, 0),
        joined_experts="blk.0.ffn_gate_up_exps.weight" in r.shapes,
    )


def readers_of(r: MetadataReader, windowed: tuple[bool, ...], default: int) -> int:
    """How many last layers read the cache of another. Raises ModelError where there is none for them."""
    readers = r.count(READERS, len(windowed) - 1, default)
    if set(windowed) != set(windowed[: len(windowed) - readers]):
        raise r.error(READERS, f"is {readers}, which leaves layers without one to read from")
    return readers


def attention_tensors(hp: Gemma4, layer: int) -> Tensors:
    """Of a layer that reads another's cache, those of keys and values may be there unused."""
    block = Attention(qk_norm="heads").tensors(hp.at(layer), layer)
    unread = ("attn_k", "attn_v") if hp.source(layer) != layer else () if hp.windowed[layer] else ("attn_v",)
    return block | {name: replace(want, optional=True) for name, want in block.items() if name.startswith(unread)}


def attention(g: GraphBuilder, hp: Gemma4, b: Weights, h: Node, layer: int) -> Node:
    """Where a layer has no projection of values, its keys are values too, before they are normed and rotated."""
    here, source, window, rope = hp.at(layer), hp.source(layer), hp.window(layer), layers.rotary(g, hp, b, layer)
    q = g.split_heads(layers.linear(g, b, "attn_q", h), hp.n_head)
    q = rope(g.rms_norm(q, b["attn_q_norm"], hp.eps))
    if source != layer:
        return layers.linear(g, b, "attn_output", g.attention_to(source, q, layer, scale=1.0, window=window))
    k = g.split_heads(layers.linear(g, b, "attn_k", h), here.n_head_kv)
    has_values = b.get("attn_v") is not None
    v = g.split_heads(layers.linear(g, b, "attn_v", h), here.n_head_kv) if has_values else k
    v = g.rms_norm(v, constant(np.ones(here.head_dim, np.float32), "ones"), hp.eps)
    k = rope(g.rms_norm(k, b["attn_k_norm"], hp.eps))
    return layers.linear(g, b, "attn_output", g.attention(q, k, v, layer, scale=1.0, window=window))


ATTENTION = CustomPart(attention_tensors, attention)


class Gemma4Decoder(Decoder):
    """Layers with embeddings of their own, and experts beside the feed-forward."""

    def tensors(self, hp: Gemma4) -> Tensors:
        return super().tensors(hp) | (per_layer.tensors(hp, hp.n_each) if hp.n_each else {})

    def layer_tensors(self, hp: Gemma4, layer: int) -> Tensors:
        block = super().layer_tensors(hp.at(layer), layer) | {"layer_output_scale.weight": vector(1, optional=True)}
        block |= per_layer.layer_tensors(hp, hp.n_each) if hp.n_each else {}
        if hp.n_expert:
            block |= layers.moe_tensors(hp, joined=hp.joined_experts) | {"ffn_gate_inp.scale": vector(hp.n_embd)}
            block |= layers.norms(hp.n_embd, "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
        return block

    def build(self, g: GraphBuilder, hp: Gemma4, w: Weights) -> Node:
        x = self.embedded(g, hp, w)
        given = per_layer.embeddings(g, hp, w, x, hp.n_each) if hp.n_each else []
        for i in range(hp.n_layer):
            b = w.block(i)
            h = attention(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps), i)
            x = g.add(x, g.rms_norm(h, b["post_attention_norm"], hp.eps))
            h = GEGLU.build(g, hp, b, g.rms_norm(x, b["ffn_norm"], hp.eps), i)
            if hp.n_expert:
                h = g.add(g.rms_norm(h, b["post_ffw_norm_1"], hp.eps), _experts(g, hp, b, x))
            x = g.add(x, g.rms_norm(h, b["post_ffw_norm"], hp.eps))
            if given:
                x = g.add(x, per_layer.gated(g, hp, b, x, given[i]))
            if (scale := b.get("layer_output_scale")) is not None:
                x = layers.scaled(g, x, float(dequantize(scale.tensor)[0]))
        return self.output(g, hp, w, x)


def _experts(g: GraphBuilder, hp: Gemma4, b: Weights, x: Node) -> Node:
    """Tokens through their experts, chosen by what the feed-forward is given, normed otherwise."""
    scale = b["ffn_gate_inp.scale"].tensor
    chooses = constant(dequantize(scale) * np.float32(hp.n_embd**-0.5), f"{x.name}.scale")
    router = g.mul_mat(b["ffn_gate_inp"], g.rms_norm(x, chooses, hp.eps))
    ids = g.top_k(router, hp.n_expert_used)
    h, weights = g.rms_norm(x, b["pre_ffw_norm_2"], hp.eps), g.soft_max(g.gather(router, ids))
    return g.rms_norm(layers.through_experts(g, b, h, ids, weights, g.geglu), b["post_ffw_norm_2"], hp.eps)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for attention that looks ahead in a text, and for what GGUF has no words for."""
    if (ahead := config.values.get("use_bidirectional_attention")) not in (None, "vision"):  # pictures' tokens only
        raise config.error("use_bidirectional_attention", f"is {brief(ahead)}", "null or vision")
    n, most = config.n_layer, LIMITS["attention.key_length"]
    windowed = [*windowed_layers(config, PERIOD)[:-1], False]
    dim, (full, kv) = config.size("head_dim", most, 256), _without_window(config, windowed)
    readers, ff = config.count("num_kv_shared_layers", n - 1), config.size("intermediate_size", LIMITS[FF_WIDTH])
    wider = 2 if config.flag("use_double_wide_mlp", False) else 1
    keys: Keys = {
        WINDOW: config.size("sliding_window", LIMITS[WINDOW]),
        "attention.key_length": full, "attention.value_length": full, "rope.dimension_count": full,
        LOCAL: dim, LOCAL_VALUE: dim, LOCAL_DIMS: dim, LOCAL_BASE: _local_base(config),
        KV_HEADS: [config.size("num_key_value_heads", LIMITS[KV_HEADS], 4) if local else kv for local in windowed],
        FF_WIDTH: [ff] * (n - readers) + [wider * ff] * readers,
        PATTERN: windowed, READERS: readers,
    }
    if config.flag("enable_moe_block", False):
        keys |= expert_keys(config, "num_experts", width="moe_intermediate_size")
    return keys


def _without_window(config: Config, windowed: list[bool]) -> tuple[int, int]:
    """Values of a head, and heads of keys, of layers without a window: by layer, or in older files for all of them."""
    usual, found = config.size("num_key_value_heads", LIMITS[KV_HEADS], 4), config.values.get("per_layer_config")
    if found is None:
        kv = config.flag("attention_k_eq_v", False) and config.values.get("num_global_key_value_heads") is not None
        heads = config.size("num_global_key_value_heads", LIMITS[KV_HEADS]) if kv else usual
        return config.size("global_head_dim", LIMITS["attention.key_length"], 512), heads
    one = next(iter(found.values()), None) if isinstance(found, dict) else None
    full = {str(i): one for i, local in enumerate(windowed) if not local}
    if not isinstance(one, dict) or found != full or set(one) - {"head_dim", "num_key_value_heads"}:
        allowed = "head_dim and num_key_value_heads of the layers without a window, all alike"
        raise config.error("per_layer_config", f"is {brief(found)}", allowed)
    inner = Config({"num_key_value_heads": usual, "head_dim": config.values.get("head_dim", 256), **one}, config.file)
    return inner.size("head_dim", LIMITS["attention.key_length"]), inner.size("num_key_value_heads", LIMITS[KV_HEADS])


def _local_base(config: Config) -> float:
    """The base of the rope of layers with a window. Raises ModelError where that is scaled."""
    found = config.values.get("rope_parameters")
    local = local_rope(config)
    if local is None or not isinstance(found, dict) or "full_attention" not in found:
        raise config.error("rope_parameters", f"is {brief(found)}", "full_attention, and sliding_attention unscaled")
    return config.real("rope_theta", 1e4, of=local)


ARCH = Architecture(
    name="gemma4",
    network=Gemma4Decoder(mixer=ATTENTION, feed_forward=GEGLU, norms=SANDWICH_NORMS, scaled_by_width=True),
    keys=(
        Key("n_each", per_layer.LENGTH, "hidden_size_per_layer_input", default=0, usual=0,
            limit=LIMITS["embedding_length"]),
        Key("logit_cap", LOGIT_CAP, LOGIT_CAP, default=0.0), READERS, LOCAL, LOCAL_VALUE, LOCAL_DIMS, LOCAL_BASE,
    ),
    windows=Windows(listed=True),
    sizes=Sizes(kind=Gemma4, complete=complete, differs=DIFFERS),
    experts=None,
    classes=dict.fromkeys(("Gemma4ForCausalLM", "Gemma4UnifiedForCausalLM"), config_keys),
    names=names.SANDWICH_NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | per_layer.NAMES | {
        "layer_scalar": "layer_output_scale.weight", "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "router.proj": "ffn_gate_inp", "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": names.GATE_UP, "experts.down_proj": "ffn_down_exps", **names.ffn("experts.*", "_exps"),
    },
    outer=names.OUTER | per_layer.OUTER,
    key_aliases={"top_k_experts": "num_experts_per_tok"},
    ropes=("default", "proportional"),
    activation="gelu_pytorch_tanh",
    tied=True,
)
