"""Llama 4, text: attention in chunks, layers without rope or chunks, one expert chosen by sigmoid and one for all."""

from dataclasses import dataclass, replace

import numpy as np

from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, ByLayer, CustomPart, Decoder, FeedForward
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.reader import EXPERT_WIDTH, FF_WIDTH, LIMITS, WINDOW, MetadataReader, brief
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import Windows, periodic

PERIOD = 4
"""Each layer of this number has neither rope nor chunks; its scores grow with the position instead."""
CHUNK, SPAN, TEMPERATURE = 8192, 8192, 0.1
"""What files mean that do not say: positions of a chunk, of what makes scores grow, and by how much."""
STEP, SPAN_KEY, SCALE_KEY = "interleave_moe_layer_step", "attention.temperature_length", "attention.temperature_scale"


@dataclass(frozen=True, kw_only=True)
class Llama4(Hyperparams):
    """The last of each `step` layers has experts; q and k are normed where they have rope, if at all."""

    step: int = 1
    qk_norm: bool = False


def complete(r: MetadataReader, hp: Llama4) -> Llama4:
    """That q and k are normed no key says."""
    if hp.n_expert_used != 1:
        raise r.error("expert_used_count", f"is {hp.n_expert_used}", "1")
    if not hp.n_window:
        raise r.error(WINDOW, "is 0, attention without chunks", "1 or more")
    span = max(1, hp.temperature_length)
    return replace(hp, step=max(1, hp.step), temperature_length=span, qk_norm=hp.n_expert != 128)


def attention(g: GraphBuilder, hp: Llama4, b: Weights, h: Node, layer: int) -> Node:
    q, k, v = layers.qkv(g, hp, b, h)
    if (layer + 1) % PERIOD == 0:
        if hp.temperature:
            q = g.scale_by_position(q, hp.temperature_length, hp.temperature, offset=1)
    else:  # a norm without weights is the same before rope and behind it
        rope, ones = layers.rotary(g, hp, b, layer), b.constant("ones", lambda: _ones(hp))
        q, k = (rope(g.rms_norm(y, ones, hp.eps) if hp.qk_norm else y) for y in (q, k))
    y = g.attention(q, k, v, layer=layer, scale=hp.attention_scale, window=-hp.window(layer))
    return layers.linear(g, b, "attn_output", y)


def _ones(hp: Llama4) -> Node:
    return constant(np.ones(hp.head_dim, np.float32), "ones")


def expert_tensors(hp: Llama4, layer: int) -> Tensors:
    return layers.moe_tensors(hp) | layers.shared_expert_tensors(hp, hp.n_ff_expert)


def expert(g: GraphBuilder, hp: Llama4, b: Weights, h: Node, layer: int) -> Node:
    """What goes into the chosen expert, not what comes out of it, is multiplied by its weight."""
    router = g.mul_mat(b["ffn_gate_inp"], h)
    ids = g.top_k(router, 1)
    given = g.mul(g.as_one_row(h), g.sigmoid(g.gather(router, ids)))
    gate, up = (layers.experts(g, b, f"ffn_{n}_exps", given, ids) for n in ("gate", "up"))
    y = layers.experts(g, b, "ffn_down_exps", g.swiglu(gate, up), ids)
    return g.add(g.join_of_heads(y), layers.ffn(g, b, h, "_shexp"))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for what GGUF has no words for: other layers without rope or with experts, norms of q and k."""
    n = config.n_layer
    step, experts = config.size("interleave_moe_layer_step", n, 1), config.size("num_local_experts", 1 << 16)
    has_rope = periodic(n, PERIOD)
    kinds = ["chunked_attention" if rope else "full_attention" for rope in has_rope]
    usual = {
        "no_rope_layers": [int(rope) for rope in has_rope], "layer_types": kinds, "attention_bias": False,
        "moe_layers": list(range(step - 1, n, step)), "use_qk_norm": experts != 128, "num_experts_per_tok": 1,
    }
    for key, allowed in usual.items():
        if (value := config.values.get(key)) not in (None, [], allowed):
            raise config.error(key, f"is {brief(value)}", str(allowed))
    most, context, tuned = LIMITS[FF_WIDTH], LIMITS["context_length"], "attn_temperature_tuning"
    said = {
        WINDOW: (config.size("attention_chunk_size", context), CHUNK),
        SPAN_KEY: (config.size("floor_scale", context, SPAN), SPAN),
        SCALE_KEY: (config.real("attn_scale", TEMPERATURE) if config.flag(tuned, True) else 0.0, TEMPERATURE),
    }
    return {field: value for field, (value, known) in said.items() if value != known} | {
        EXPERT_WIDTH: config.size("intermediate_size", most),
        FF_WIDTH: config.size("intermediate_size_mlp", most),
        "expert_count": experts, "expert_used_count": 1, STEP: step,
    }


ARCH = Architecture(
    name="llama4",
    network=Decoder(
        mixer=CustomPart(Attention().tensors, attention),
        feed_forward=ByLayer(lambda hp, i: (i + 1) % hp.step == 0, CustomPart(expert_tensors, expert), FeedForward()),
    ),
    keys=(
        Key("step", STEP, default=1, limit=LIMITS["block_count"]),
        Key("temperature_length", SPAN_KEY, default=SPAN, limit=LIMITS["context_length"]),
        Key("temperature", SCALE_KEY, default=TEMPERATURE, zero="value"),
    ),
    windows=Windows(PERIOD, tokens=CHUNK),
    sizes=Sizes(kind=Llama4, complete=complete),
    interleaved=True,
    experts=True,
    classes={"Llama4ForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | names.ffn("feed_forward") | names.stacked("feed_forward") | {
        "feed_forward.router": "ffn_gate_inp", **names.ffn("feed_forward.experts.*", "_exps"),
        **names.ffn("feed_forward.shared_expert", "_shexp"),
    },
    ropes=("default", "llama3"),
    layout=TensorLayout(permuted=False, columns="halves"),
)
