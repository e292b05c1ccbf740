"""PLaMo 3: norms before and behind attention and feed-forward, of q and k too, a window in most layers with its rope.

Both this and PLaMo 2 have what attends and what feeds forward under `mixer` and `mlp`, and norms whose weights a
checkpoint has less a number each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, Vocabulary
from octavo.models.shared.config import Config, Keys, brief, local_rope
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.rope import Rope
from octavo.models.shared.states import of_values
from octavo.models.shared.weights import Tensors, Weights, matrix, vector, with_scales
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed

PERIOD = 8
"""The last of so many layers has no window, where a file does not say which ones have."""
LOCAL_BASE = "rope.freq_base_swa"
"""The base of the rope of layers with a window."""
MIXED, FED = "post_attention_norm", "post_ffw_norm"
"""Norms behind the parts of a layer, whose names in a file have no end."""
SHIFTS = {"attn_norm": 1.0, MIXED: 1 / 5, "ffn_norm": 1.0, FED: 5**-1.5, "output_norm": 1.0}
"""What is added to the weights of norms, which GGUF has ready to multiply with."""
QK_SHIFTS = {"attn_q_norm": 1.0, "attn_k_norm": 1.0}
NAMES = {
    "pre_mixer_norm": "attn_norm", "post_mixer_norm.weight": MIXED, "pre_mlp_norm": "ffn_norm",
    "post_mlp_norm.weight": FED, "mixer.qkv_proj": "attn_qkv", "mixer.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
WHY_UNWRITTEN = "norms of its folders have other weights than those of GGUF files"
PLAIN = {"linear_type": "normal", "image_token_id": None, "fp8_accum_dtype": None}
"""Keys of config.json that have no computation here with other values: pictures, and matrices of another type."""


@dataclass(frozen=True, kw_only=True)
class Plamo3(Hyperparams):
    """rope_local is that of layers with a window."""

    rope_local: Rope


def hparams(r: HyperparamReader) -> Plamo3:
    hp = read_shared(r, has_experts=False)
    local = replace(hp.rope, base=r.real(LOCAL_BASE, hp.rope.base, 1.0), kind="none", attention_factor=1.0)
    return hp.extended(
        Plamo3,
        windowed=read_windowed(r, hp, PERIOD),
        rope=replace(hp.rope, whole_pairs=False),
        rope_local=local,
    )


def tensors(hp: Plamo3) -> Tensors:
    norms = {f"{name}.weight": vector(hp.head_dim) for name in QK_SHIFTS}
    return layers.model_tensors(hp, attention_tensors(hp) | norms | feed_forward_tensors(hp))


def attention_tensors(hp: Hyperparams) -> Tensors:
    """Those of attention, without norms."""
    found = layers.joined_qkv_tensors(hp)
    return {name: want for name, want in found.items() if not name.endswith((".bias", "attn_norm.weight"))}


def feed_forward_tensors(hp: Hyperparams) -> Tensors:
    """Those of a feed-forward, the gate's rows before those of up, and the norms of a layer."""
    products = {"ffn_up.weight": matrix(2 * hp.n_ff, hp.n_embd), "ffn_down.weight": matrix(hp.n_embd, hp.n_ff)}
    norms = {name: vector(hp.n_embd) for name in ("attn_norm.weight", MIXED, "ffn_norm.weight", FED)}
    return norms | with_scales(products)


def build(g: GraphBuilder, hp: Plamo3, w: Weights) -> Node:
    ropes = layers.rotary(g, hp.rope, w), layers.rotary(g, hp.rope_local, None)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b, rope = w.block(i), ropes[hp.windowed[i]]
        q, k, v = layers.joined_qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        q, k = (rope(g.rms_norm(x, b[f"attn_{n}_norm"], hp.eps)) for n, x in (("q", q), ("k", k)))
        h = g.attention(q, k, v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        x = with_feed_forward(g, hp, b, x, layers.linear(g, b, "attn_output", h))
    return layers.logits(g, hp, w, x)


def with_feed_forward(g: GraphBuilder, hp: Hyperparams, b: Weights, x: Node, mixed: Node) -> Node:
    """x [T, n_embd] with what a layer's first part, `mixed`, and its feed-forward add, each normed."""
    x = g.add(x, g.rms_norm(mixed, b.whole(MIXED), hp.eps))
    h = layers.linear(g, b, "ffn_up", g.rms_norm(x, b["ffn_norm"], hp.eps))
    h = layers.linear(g, b, "ffn_down", g.swiglu(*g.columns(h, hp.n_ff, hp.n_ff)))
    return g.add(x, g.rms_norm(h, b.whole(FED), hp.eps))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases, multiplied embeddings, pictures, and matrices of another type."""
    config.only(PLAIN)
    config.only_flags({"attention_bias": False, "scale_embedding": False})
    head = config.size("head_dim", LIMITS["attention.key_length"], 128)
    keys = dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), head)
    windows = layer_window_keys(config, PERIOD, 0)
    return keys | windows | ({LOCAL_BASE: config.real("rope_local_theta", 1e4)} if windows else {})


def usual_config(config: Config) -> Config:
    """config.json in the usual words: windows of older files, SwiGLU, and a rope that is stretched."""
    values = config.copy()
    if isinstance(listed := values.get("sliding_window"), list):
        values |= _windows(config, listed)
    if values.get("sliding_window") is None:
        values["sliding_window"] = values.get("window_size")
    if values.get("hidden_activation") == "swiglu":
        values["hidden_activation"] = "silu"
    if values.get("rope_theta") is None:
        values["rope_theta"] = values.get("rope_global_theta", 150000.0)
    if (local := local_rope(config)) is not None:
        values["rope_local_theta"] = local.get("rope_theta", values.get("rope_local_theta"))
    elif (factor := values.get("rope_scaling_factor")) not in (None, 1, 1.0):
        values["rope_parameters"] = {
            "rope_type": "yarn", "rope_theta": values["rope_theta"], "factor": factor, "truncate": False,
            "original_max_position_embeddings": values.get("initial_context_length"),
        }
    return config.replaced(values)


def _windows(config: Config, listed: list[Any]) -> dict[str, Any]:
    """A window for each layer, null for none, as one window and the layers that have it."""
    sizes = {size for size in listed if size is not None and type(size) is int}
    if len(sizes) != 1 or any(size is not None and size not in sizes for size in listed):
        raise config.error("sliding_window", f"is {brief(listed)}", "one window for those layers that have one")
    kinds = ["full_attention" if size is None else "sliding_attention" for size in listed]
    return {"sliding_window": sizes.pop(), "layer_types": kinds}


def shifted(name: str, tensor: LazyTensor, shifts: dict[str, float]) -> LazyTensor:
    """A norm's weights with what is added to them; other tensors as they are."""
    shift = shifts.get(name.removesuffix(".weight").rpartition(".")[2])
    return tensor if shift is None else of_values(tensor, lambda values: values + np.float32(shift))


ARCH = Architecture(
    name="plamo3",
    hparams=hparams,
    keys=frozenset({PATTERN, LOCAL_BASE}),
    tensors=tensors,
    build=build,
    classes={"Plamo3ForCausalLM": config_keys},
    usual_config=usual_config,
    layer="layers.layers",
    names=NAMES | {f"mixer.{n}_norm": f"attn_{n}_norm" for n in "qk"},
    remade=lambda name, tensor, hp: shifted(name, tensor, SHIFTS | QK_SHIFTS),
    ropes=("default", "yarn"),
    whole_pairs=False,
    tied=True,
    vocabulary=Vocabulary(file="tokenizer.jsonl", pre="default", breaks=True),
    why_unwritten=lambda hp: WHY_UNWRITTEN,
    writable=False,
)
