"""Step 3.5 and 3.7 Flash, text: heads with gates, more of them in layers with a window, DeepSeek's experts.

Layers without a window have rope on half of each head. Gates and projections of some layers' experts are clamped.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import experts, layers, names
from octavo.models.shared.architecture import Architecture, NextLayer, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys, local_rope, nextn_keys
from octavo.models.shared.decoder import Attention, CustomPart, Decoder
from octavo.models.shared.experts import SIGMOID, Routed
from octavo.models.shared.hparams import local_base
from octavo.models.shared.reader import ANY, FF_WIDTH, HEADS, KV_HEADS, LIMITS, NEXTN, WINDOW, MetadataReader, brief
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import PATTERN, Windows, windowed_layers

LOCAL_BASE = "rope.freq_base_swa"
CLAMPS = {"swiglu_limits": "swiglu_clamp_exp", "swiglu_limits_shared": "swiglu_clamp_shexp"}
"""Words of config.json, and fields, of what values in experts are clamped to, and in the one for all; 0: not."""
EVERY = "moe_every_n_layers"


@dataclass(frozen=True, kw_only=True)
class Step35(Routed):
    """
    layer_heads, layer_kv  heads of queries and keys by layer, those that guess tokens among them
    clamps, shared_clamps  by layer, 0 for none
    """

    layer_heads: tuple[int, ...] = ()
    layer_kv: tuple[int, ...] = ()
    clamps: tuple[float, ...] = ()
    shared_clamps: tuple[float, ...] = ()

    @property
    def freq_factor_pairs(self) -> int:
        """As many as those of layers with a window."""
        return self.rope.dims

    def kv_heads(self, layer: int) -> tuple[int, int]:
        return self.layer_kv[layer], self.head_dim


def complete(r: MetadataReader, hp: Step35) -> Step35:
    n = hp.n_layer + hp.n_next
    heads, kv = r.sizes(HEADS, n), r.sizes(KV_HEADS, n)
    for layer, (queries, keys) in enumerate(zip(heads, kv, strict=True)):
        if queries % keys:
            raise r.error(KV_HEADS, f"{keys} of layer {layer} does not divide its {queries} heads")
    if hp.rope.dims % 4:
        allowed = "a multiple of 4, half of which have rope"
        raise r.error("rope.dimension_count", f"{hp.rope.dims} is out of range", allowed)
    if (every := r.integer(EVERY, 1)) not in (0, 1):
        raise r.error(EVERY, f"is {every}", "1")
    clamps, shared_clamps = (_clamps(r, field, n) for field in CLAMPS.values())
    return replace(
        hp,
        **experts.read(r, hp, SIGMOID, normalized=True),
        rope=replace(hp.rope, dims=hp.rope.dims // 2),
        layer_heads=heads,
        layer_kv=kv,
        clamps=clamps,
        shared_clamps=shared_clamps,
    )


def _clamps(r: MetadataReader, field: str, n: int) -> tuple[float, ...]:
    """A number for each layer, 0 for none."""
    if not r.has(field):
        return (0.0,) * n
    key = r.key(field)
    values = r.metadata.get_floats(key).tolist() if r.is_array(field) else [r.metadata.get_float(key)] * n
    if len(values) != n:
        raise r.error(field, f"has {len(values)} values", f"one for each of {n} layers")
    if wrong := [value for value in values if not 0 <= value < math.inf]:
        raise r.error(field, f"has {wrong[0]}", "numbers from 0")
    return tuple(map(float, values))


def attention_tensors(hp: Step35, layer: int) -> Tensors:
    here = replace(hp, n_head=hp.layer_heads[layer], n_head_kv=hp.layer_kv[layer])
    gate = layers.products({"attn_gate": (here.n_head, hp.n_embd)})
    return Attention(qk_norm="heads").tensors(here, layer) | gate


def attention(g: GraphBuilder, hp: Step35, b: Weights, h: Node, layer: int) -> Node:
    """The output of each head is multiplied by its gate."""
    here, rope = replace(hp, n_head=hp.layer_heads[layer], n_head_kv=hp.layer_kv[layer]), layers.rotary(g, hp, b, layer)
    q, k, v = layers.qkv(g, here, b, h, "heads")
    y = g.attention(rope(q), rope(k), v, layer, hp.attention_scale, window=hp.window(layer))
    gate = g.sigmoid(layers.linear(g, b, "attn_gate", h))
    return layers.linear(g, b, "attn_output", g.join_of_heads(g.mul(g.split_heads(y, here.n_head), gate)))


def feed_forward_tensors(hp: Step35, layer: int) -> Tensors:
    return experts.dense_tensors(hp, layer) if layer >= hp.n_layer else experts.feed_forward_tensors(hp, layer)


def feed_forward(g: GraphBuilder, hp: Step35, b: Weights, h: Node, layer: int) -> Node:
    shared = _gated(g, hp.shared_clamps[layer])
    if layer < hp.n_dense or layer >= hp.n_layer:
        return layers.ffn(g, b, h, gated=shared)
    y = layers.through_experts(g, b, h, *experts.chosen(g, hp, b, h), _gated(g, hp.clamps[layer]))
    return g.add(y, layers.ffn(g, b, h, "_shexp", gated=shared)) if hp.n_ff_shared else y


def _gated(g: GraphBuilder, limit: float) -> Callable[[Node, Node], Node]:
    """SwiGLU; with a limit, silu(gate) and the other factor's magnitude are clamped to it."""
    if not limit:
        return g.swiglu
    return lambda gate, up: g.mul(
        g.clamp(g.mul(gate, g.sigmoid(gate)), -math.inf, limit), g.clamp(up, -limit, limit)
    )


def usual_config(config: Config) -> Config:
    """config.json where what the authors say by lists of all layers is said as transformers does."""
    values, n = config.copy(), config.n_layer
    kinds = _list(config, "layer_types", ["full_attention"] * n)
    values |= {"layer_types": kinds[:n], "mtp_layer_types": values.get("mtp_layer_types") or kinds[n:]}
    if (listed := values.pop("moe_layers_enum", None)) is not None:
        numbers = listed.split(",") if isinstance(listed, str) else listed
        if not isinstance(numbers, list) or not all(str(i).strip().isdecimal() for i in numbers):
            raise config.error("moe_layers_enum", f"is {brief(listed)}", "numbers of layers")
        sparse = set(map(int, numbers))
        values["mlp_layer_types"] = ["sparse" if i in sparse else "dense" for i in range(n)]
    if values.get("rope_parameters") is None:
        bases, parts = values.pop("rope_theta", 1e4), _list(config, "partial_rotary_factors", [1.0] * len(kinds))
        bases = bases if isinstance(bases, list) else [bases] * len(kinds)
        if min(len(bases), len(parts)) < n:
            raise config.error("rope_theta", f"has {len(bases)} values", f"one for each of {n} layers")
        found = {kind: {"rope_type": "default", "rope_theta": bases[i], "partial_rotary_factor": parts[i]}
                 for i, kind in reversed(list(enumerate(kinds[:n])))}
        if isinstance(scaled := values.pop("rope_scaling", None), dict) and "full_attention" in found:
            found["full_attention"] |= scaled
        values["rope_parameters"] = found
    return config.replaced(values)


def _list(config: Config, word: str, usual: list[Any]) -> list[Any]:
    found = config.values.get(word)
    if found is not None and (not isinstance(found, list) or len(found) < len(usual)):
        raise config.error(word, f"is {brief(found)}", f"one for each of {len(usual)} layers")
    return usual if found is None else found


def config_keys(config: Config) -> Keys:
    """Raises ModelError for other scores and gates, for heads of another size with a window, and for other ropes."""
    n, head = (config.size(word, LIMITS[field], usual) for word, field, usual in (
        ("num_hidden_layers", "block_count", None), ("head_dim", "attention.key_length", 128)))
    config.only({"query_pre_attn_scalar": head})
    heads = config.n_head
    kv = config.size("num_key_value_heads", heads, heads)
    said = config.values.get("attention_other_setting") or {}
    local = Config(said if isinstance(said, dict) else {}, config.file)
    local.only({"head_dim": head})
    local_heads = local.size("num_attention_heads", LIMITS[HEADS], heads)
    local_heads = config.size("num_sliding_attention_heads", LIMITS[HEADS], local_heads)
    local_kv = local.size("num_attention_groups", local_heads, kv)
    guessing = nextn_keys(config)
    last = [kind == "sliding_attention" for kind in _list(config, "mtp_layer_types", [])]
    last += [False] * guessing.get(NEXTN, 0)
    windowed = windowed_layers(config, 0) + last[: guessing.get(NEXTN, 0)]
    local_layers = {str(i): {"num_attention_heads": local_heads} for i, here in enumerate(windowed[:n]) if here}
    if (own := config.values.get("per_layer_config")) is not None and own != local_layers:
        raise config.error("per_layer_config", f"is {brief(own)}", f"{local_heads} heads in the layers with a window")
    keys: Keys = {
        **experts.config_keys(config, SIGMOID, normalized=True), **guessing, **_rope_keys(config),
        experts.SHARED_WIDTH: config.size("share_expert_dim", LIMITS[experts.SHARED_WIDTH], 1280),
        WINDOW: config.size("sliding_window", LIMITS[WINDOW]),
        HEADS: [local_heads if here else heads for here in windowed], PATTERN: windowed,
        KV_HEADS: [local_kv if here else kv for here in windowed], "attention.key_length": head,
        "attention.value_length": head, "rope.dimension_count": head,
    }
    for word, field in CLAMPS.items():
        limits = [0.0 if limit is None else limit for limit in _list(config, word, [0.0] * n)]
        if not all(isinstance(limit, int | float) and limit >= 0 for limit in limits):
            raise config.error(word, f"is {brief(limits)}", "numbers from 0, or null")
        keys[field] = [float(limit) for limit in (limits + [0.0] * len(windowed))[: len(windowed)]]
    return keys


def _rope_keys(config: Config) -> Keys:
    """The base of layers with a window. Raises ModelError where rope is on other parts of heads than files say."""
    found, local = config.values.get("rope_parameters"), local_rope(config)
    for kind, part in (("full_attention", 0.5), ("sliding_attention", 1.0)):
        said = found.get(kind) if isinstance(found, dict) else None
        if not isinstance(said, dict):
            continue
        if (found_part := said.get("partial_rotary_factor", 1.0)) != part:
            raise config.error("partial_rotary_factor", f"is {brief(found_part)} of {kind}", f"{part:g}")
    return {} if local is None else {LOCAL_BASE: config.real("rope_theta", of=local)}


ARCH = Architecture(
    name="step35",
    network=Decoder(
        mixer=CustomPart(attention_tensors, attention), feed_forward=CustomPart(feed_forward_tensors, feed_forward)
    ),
    keys=(*experts.KEYS, local_base(), EVERY, *CLAMPS.values()),
    windows=Windows(listed=True),
    sizes=Sizes(kind=Step35, complete=complete, differs={HEADS: ANY, KV_HEADS: ANY, FF_WIDTH: ANY}),
    experts=True,
    next_layer=NextLayer(reads_normed=False, gives_normed=False),
    only={
        "moe_router_activation": "sigmoid", "moe_every_n_layer": 1, "use_head_wise_attn_gate": True,
        "use_moe_router_bias": True, "attention_bias": False, "mlp_bias": False, "use_bidirectional_attention": False,
    },
    usual_config=usual_config,
    classes=dict.fromkeys(("Step3p7ForConditionalGeneration", "Step3p5ForCausalLM"), config_keys),
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | names.NEXTN | {
        "self_attn.g_proj": "attn_gate", "moe.gate": "ffn_gate_inp", "moe.router_bias": "exp_probs_b.bias",
        **names.ffn("moe", "_exps"), **names.ffn("share_expert", "_shexp"),
        "transformer.shared_head.norm": "nextn.shared_head_norm",
        "transformer.shared_head.output": "nextn.shared_head_head",
    },
    key_aliases={
        "num_attention_groups": "num_key_value_heads", "moe_num_experts": "n_routed_experts",
        "moe_top_k": "num_experts_per_tok", "moe_router_scaling_factor": "routed_scaling_factor",
        "norm_expert_weight": "norm_topk_prob",
    },
    ropes=("default", "llama3"),
    layout=TensorLayout(norm_shift=1.0),
)
