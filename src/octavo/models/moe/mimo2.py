"""MiMo-V2: heads whose values are shorter than keys, a window with sinks in most layers, DeepSeek's experts.

Layers with a window have a rope and heads of keys of their own.
"""

from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import experts, layers, names
from octavo.models.shared.architecture import Architecture, NextLayer, Sizes
from octavo.models.shared.config import Config, Keys, local_rope, nextn_keys, rope_parameters
from octavo.models.shared.decoder import ByLayer, CustomPart, Decoder, FeedForward
from octavo.models.shared.experts import SIGMOID, Routed
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import ANY, KV_HEADS, LIMITS, NEXTN, WINDOW, MetadataReader, brief
from octavo.models.shared.weights import Expected, Tensors, Weights
from octavo.models.shared.windows import PATTERN, Windows, windowed_layers

VALUE_SCALE, LOCAL_BASE = "attention.value_scale", "rope.freq_base_swa"
USUAL_SCALE = 0.707
"""What MiMo-V2-Flash multiplies values by; files from before there was a key don't say it."""


@dataclass(frozen=True, kw_only=True)
class Mimo2(Routed):
    """
    value_dim    values of a head, at most as many as keys
    value_scale  what they are multiplied by
    layer_kv     heads of keys by layer, those that guess tokens among them
    """

    value_dim: int = 0
    value_scale: float = USUAL_SCALE
    layer_kv: tuple[int, ...] = ()

    def kv_heads(self, layer: int) -> tuple[int, int]:
        return self.layer_kv[layer], self.head_dim


def complete(r: MetadataReader, hp: Mimo2) -> Mimo2:
    value = r.integer("attention.value_length", hp.head_dim)
    if not 1 <= value <= hp.head_dim:
        raise r.error("attention.value_length", f"{value} is out of range", f"1 to {hp.head_dim}, the key length")
    kv = r.sizes(KV_HEADS, hp.n_layer + hp.n_next)
    if wrong := [n for n in kv if hp.n_head % n]:
        raise r.error(KV_HEADS, f"{wrong[0]} does not divide {hp.n_head} heads")
    found = experts.read(r, hp, SIGMOID, normalized=True)
    if not r.has(experts.N_DENSE):  # which llama.cpp's files don't say
        found["n_dense"] = next((i for i in range(hp.n_layer) if f"blk.{i}.ffn_gate_inp.weight" in r.shapes), 0)
    local = replace(hp.rope, base=r.real(LOCAL_BASE, hp.rope.base, 1.0))
    windowed = hp.next_windowed or (True,) * hp.n_next
    return replace(hp, **found, rope_local=local, value_dim=value, layer_kv=kv, next_windowed=windowed)


def attention_tensors(hp: Mimo2, layer: int) -> Tensors:
    q, k, v = _rows(hp, layer)
    parts = {"qkv": q + k + v} if hp.joined else {"q": q, "k": k, "v": v}
    shapes = {f"attn_{name}": (rows, hp.n_embd) for name, rows in parts.items()}
    has_window = layer < hp.n_layer and hp.windowed[layer]
    sinks = Expected((hp.n_head,), optional=not has_window)
    return layers.products(shapes | {"attn_output": (hp.n_embd, hp.n_head * hp.value_dim)}) | {
        "attn_sinks.weight": sinks
    }


def _rows(hp: Mimo2, layer: int) -> tuple[int, int, int]:
    """Rows of q, k and v."""
    heads = hp.layer_kv[layer]
    return hp.n_head * hp.head_dim, heads * hp.head_dim, heads * hp.value_dim


def attention(g: GraphBuilder, hp: Mimo2, b: Weights, h: Node, layer: int) -> Node:
    """The cache has values as long as keys, with zeros at their ends."""
    if hp.joined:
        parts = g.columns(layers.linear(g, b, "attn_qkv", h), *_rows(hp, layer))
    else:
        parts = [layers.linear(g, b, f"attn_{n}", h) for n in "qkv"]
    q, k, v = map(g.split_heads, parts, (hp.n_head, hp.layer_kv[layer], hp.layer_kv[layer]))
    if missing := hp.head_dim - hp.value_dim:
        v = g.join_heads(v, g.clamp(g.slice_heads(k, 0, missing), 0.0, 0.0))
    rope, window, sinks = layers.rotary(g, hp, b, layer), hp.window(layer), b.get("attn_sinks")
    y = g.attention(rope(q), rope(k), v, layer, hp.attention_scale, window=window, sinks=sinks)
    y = g.join_of_heads(g.slice_heads(g.split_heads(y, hp.n_head), 0, hp.value_dim)) if missing else y
    return layers.scaled(g, layers.linear(g, b, "attn_output", y), hp.value_scale)


def next_tensors(hp: Mimo2, layer: int) -> Tensors:
    """Of a layer that guesses tokens, whose feed-forward is dense."""
    return FeedForward().tensors(hp, layer) | layers.norms(hp.n_embd, "layer_output_norm")


def config_keys(config: Config) -> Keys:
    """Raises ModelError for heads that differ in layers with a window by more than how many of keys there are."""
    config = _in_words_of_transformers(config)
    head, value = (config.size(word, LIMITS["attention.key_length"], usual)
                   for word, usual in (("head_dim", 192), ("v_head_dim", 128)))
    heads = config.n_head
    config.only({"swa_head_dim": head, "swa_v_head_dim": value, "swa_num_attention_heads": heads})
    kv = config.size("num_key_value_heads", heads, 4)
    local = config.size("swa_num_key_value_heads", heads, 2 * kv)
    guessing, width = nextn_keys(config), LIMITS[WINDOW]
    windowed = windowed_layers(config, 0) + [True] * guessing.get(NEXTN, 0)
    seen = config.values.get("sliding_window_size")  # of tokens before, in the authors' code
    window = config.size("sliding_window", width) if seen is None else 1 + config.size("sliding_window_size", width - 1)
    return {
        **experts.config_keys(config, SIGMOID, normalized=True), **experts.group_keys(config),
        **_rope_keys(config, head), **guessing,
        "attention.key_length": head, "attention.value_length": value, WINDOW: window,
        KV_HEADS: [local if here else kv for here in windowed], PATTERN: windowed,
        VALUE_SCALE: config.real("attention_value_scale", 1.0),
    }


def _in_words_of_transformers(config: Config) -> Config:
    """The same where the authors' lists of zeros and ones are lists of names."""
    kinds = (("hybrid_layer_pattern", "layer_types", ("full_attention", "sliding_attention")),
             ("moe_layer_freq", "mlp_layer_types", ("dense", "sparse")))
    values = config.copy()
    for theirs, word, of in kinds:
        flags = values.pop(theirs, None)
        if flags is None:
            continue
        if not isinstance(flags, list) or not all(flag in (0, 1) for flag in flags):
            raise config.error(theirs, f"is {brief(flags)}", "0 or 1 for each layer")
        values[word] = [of[flag] for flag in flags]
    return config.replaced(values)


def _rope_keys(config: Config, head: int) -> Keys:
    """The rotary part of a head, and the base of layers with a window."""
    local = local_rope(config)
    parts = [rope_parameters(config), local or {}]
    dims = {int(head * config.real("partial_rotary_factor", config.real("partial_rotary_factor", 0.334), of=part))
            for part in parts}
    if len(dims) > 1 or min(dims) > head:
        raise config.error("partial_rotary_factor", "differs from layer to layer", "one, up to 1")
    base = config.real("rope_theta", of=local) if local is not None else config.real("swa_rope_theta", 10000.0)
    return {"rope.dimension_count": dims.pop(), LOCAL_BASE: base}


ARCH = Architecture(
    name="mimo2",
    network=Decoder(
        mixer=CustomPart(attention_tensors, attention),
        feed_forward=ByLayer(
            lambda hp, layer: layer < hp.n_layer, experts.FEED_FORWARD,
            CustomPart(next_tensors, lambda g, hp, b, h, layer: layers.ffn(g, b, h)),
        ),
    ),
    keys=(*experts.KEYS, Key("value_scale", VALUE_SCALE, default=USUAL_SCALE), LOCAL_BASE),
    windows=Windows(listed=True),
    sizes=Sizes(kind=Mimo2, complete=complete, equal_lengths=False, differs={KV_HEADS: ANY}),
    experts=True,
    next_layer=NextLayer(
        reads_normed=False, gives_normed=False, norm="layer_output_norm", chained=False, apart=True,
    ),
    classes={"MiMoV2FlashForCausalLM": config_keys},
    only={
        "topk_method": "noaux_tc", "attention_bias": False, "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    },
    names=names.NORMS | names.ATTENTION | names.FFN | names.ROUTED | {
        "self_attn.sinks": "attn_sinks", "self_attn.attention_sink_bias": "attn_sinks", **names.NEXTN,
        "pre_mlp_layernorm": "ffn_norm", "final_layernorm": "layer_output_norm",
    },
    key_aliases={"layernorm_epsilon": "rms_norm_eps"},
    ropes=("default",),
)
