"""What Qwen3-Next and Qwen3.5 share: attention whose output is gated, and layers of the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers, names
from octavo.models.shared.config import Config, Keys, brief, rotary_keys
from octavo.models.shared.hparams import LIMITS, NEXTN, HyperparamReader, Hyperparams
from octavo.models.shared.states import Hybrid, of_values, taps_of, without_middle
from octavo.models.shared.weights import BIAS, Tensors, Weights, matrix, vector, with_scales
from octavo.models.shared.windows import periodic

RECURRENT, INTERVAL = "attention.recurrent_layers", "full_attention_interval"
SIZES = {
    "taps": "ssm.conv_kernel", "keys": "ssm.state_size", "key_heads": "ssm.group_count", "heads": "ssm.time_step_rank",
    "inner": "ssm.inner_size",
}
WORDS = {"taps": "conv_kernel_dim", "keys": "key_head_dim", "key_heads": "num_key_heads", "heads": "num_value_heads"}
"""Keys of config.json without the "linear_" that comes before each."""
KEYS = frozenset({RECURRENT, INTERVAL, NEXTN, *SIZES.values()})
NORM_EPS = 1e-6
"""Added to the sum of squares of q and of k, whatever the other norms add."""

Gates = Callable[[GraphBuilder, Weights, Node], tuple[Node, Node]]
"""Alpha and beta, [T, heads] each, of a layer's weights and tokens."""
FeedForward = Callable[[GraphBuilder, Weights, Node], Node]


@dataclass(frozen=True, kw_only=True)
class DeltaNet(Hybrid):
    """Sizes of the layers of the delta rule.

    taps       values of a channel that a convolution sees
    keys       numbers of a key
    key_heads  heads of q and k
    heads      heads of values
    inner      numbers of the values of all heads
    """

    taps: int
    keys: int
    key_heads: int
    heads: int
    inner: int

    @property
    def channels(self) -> int:
        """Of the convolution: q, k and v of all heads."""
        return 2 * self.key_heads * self.keys + self.inner

    @property
    def layer_state(self) -> int:
        return (self.taps - 1) * self.channels + self.keys * self.inner


def read(r: HyperparamReader, hp: Hyperparams) -> dict[str, Any]:
    """The fields of `DeltaNet`. Raises ModelError naming the key that is wrong."""
    sizes = {name: r.whole(field, 0, LIMITS["embedding_length"]) for name, field in SIZES.items()}
    checks = {
        "taps": (2 <= sizes["taps"] <= 64, "2 to 64"),
        "keys": (sizes["keys"] > 0, "at least 1"),
        "key_heads": (sizes["key_heads"] > 0, "at least 1"),
        "heads": (sizes["heads"] > 0 and sizes["heads"] % max(1, sizes["key_heads"]) == 0, "a multiple of key heads"),
        "inner": (sizes["inner"] > 0 and sizes["inner"] % max(1, sizes["heads"]) == 0, "a multiple of heads"),
    }
    for name, (fits, allowed) in checks.items():
        if not fits:
            raise r.error(SIZES[name], f"{sizes[name]} does not fit", allowed)
    return {**sizes, "attends": _attends(r, hp.n_layer + hp.n_next)[: hp.n_layer]}


def _attends(r: HyperparamReader, n: int) -> tuple[bool, ...]:
    """Whether each layer has attention, of those that guess tokens too."""
    if r.has(RECURRENT):
        flags = tuple(not flag for flag in r.metadata.get_bools(r.key(RECURRENT)))
        if len(flags) != n:
            raise r.error(RECURRENT, f"has {len(flags)} values", f"one for each of {n} layers")
        return flags
    interval = r.integer(INTERVAL, 4)
    if not 1 <= interval <= LIMITS["block_count"]:
        raise r.error(INTERVAL, f"{interval} is out of range", f"1 to {LIMITS['block_count']}")
    return tuple((i + 1) % interval == 0 for i in range(n))


def mixer_tensors(hp: DeltaNet, layer: int, gates: dict[str, int]) -> Tensors:
    """What a layer has before its feed-forward; `gates` are rows of the matrices that alpha and beta come from."""
    norms = {name: vector(hp.n_embd) for name in ("attn_norm.weight", "post_attention_norm.weight")}
    if layer >= hp.n_layer or hp.attends[layer]:
        attention = layers.attention_tensors(hp, qk_norm=True) | norms
        attention["attn_q.weight"] = matrix(2 * hp.n_head * hp.head_dim, hp.n_embd)
        return {name: want for name, want in attention.items() if not name.endswith(BIAS)}
    products = {
        "attn_qkv.weight": matrix(hp.channels, hp.n_embd),
        "attn_gate.weight": matrix(hp.inner, hp.n_embd),
        **{f"{name}.weight": matrix(rows, hp.n_embd) for name, rows in gates.items()},
        "ssm_out.weight": matrix(hp.n_embd, hp.inner),
    }
    return norms | with_scales(products) | {
        "ssm_conv1d.weight": matrix(hp.channels, hp.taps),
        "ssm_dt.bias": vector(hp.heads),
        "ssm_a": vector(hp.heads),
        "ssm_norm.weight": vector(hp.inner // hp.heads),
    }


def graph(
    g: GraphBuilder, hp: DeltaNet, w: Weights, feed_forward: FeedForward, gates: Gates, *, tiled: bool
) -> Node:
    """The graph of a model; `tiled` is whether heads of keys are taken in turn, see op `gated_delta_rule`."""
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        if hp.attends[i]:
            x = g.add(x, _attend(g, hp, b, h, i, rope))
        else:
            x = g.add(x, layers.linear(g, b, "ssm_out", _delta(g, hp, b, h, i, gates(g, b, h), tiled=tiled)))
        x = g.add(x, feed_forward(g, b, g.rms_norm(x, b["post_attention_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def _attend(g: GraphBuilder, hp: DeltaNet, b: Weights, h: Node, i: int, rope: layers.RotaryFn) -> Node:
    """Attention whose output is multiplied by a sigmoid of what lies behind each head's query."""
    both, k, v = (linear_heads(g, b, name, h, n) for name, n in
                  (("attn_q", hp.n_head), ("attn_k", hp.n_head_kv), ("attn_v", hp.n_head_kv)))
    q, gate = g.slice_heads(both, 0, hp.head_dim), g.slice_heads(both, hp.head_dim, hp.head_dim)
    q, k = g.rms_norm(q, b["attn_q_norm"], hp.eps), g.rms_norm(k, b["attn_k_norm"], hp.eps)
    h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
    return layers.linear(g, b, "attn_output", g.mul(h, g.sigmoid(g.join_of_heads(gate))))


def linear_heads(g: GraphBuilder, b: Weights, name: str, h: Node, heads: int) -> Node:
    return g.split_heads(layers.linear(g, b, name, h), heads)


def _delta(
    g: GraphBuilder, hp: DeltaNet, b: Weights, h: Node, i: int, gates: tuple[Node, Node], *, tiled: bool
) -> Node:
    """The values of all heads, [T, inner], normed and gated."""
    of_keys, gate = hp.key_heads * hp.keys, layers.linear(g, b, "attn_gate", h)
    mixed = g.causal_conv(layers.linear(g, b, "attn_qkv", h), taps_of(b["ssm_conv1d"]), i, silu=True)
    q, k, v = g.columns(mixed, of_keys, of_keys, hp.inner)
    q, k = (g.split_heads(x, hp.key_heads) for x in (q, k))
    q = of_length(g, q, hp.keys**-0.5, f"blk.{i}.q_length")
    k = of_length(g, k, 1.0, f"blk.{i}.k_length")
    v, ssm_a, dt_bias = g.split_heads(v, hp.heads), b["ssm_a"], b["ssm_dt.bias"]
    y = g.gated_delta_rule(q, k, v, *gates, ssm_a=ssm_a, dt_bias=dt_bias, layer=i, tiled=tiled)
    y = g.rms_norm(g.split_heads(y, hp.heads), b["ssm_norm"], hp.eps)
    return g.swiglu(gate, g.join_of_heads(y))


def of_length(g: GraphBuilder, x: Node, length: float, name: str) -> Node:
    """x [T, H, K] with vectors of a length, each divided by the root of its sum of squares."""
    size = x.shape[2]
    assert isinstance(size, int)
    return g.rms_norm(x, constant(np.full(size, length * size**-0.5, np.float32), name), NORM_EPS / size)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases of attention, and kinds of layers that are not known."""
    config.only_flags({"attention_bias": False})
    most = LIMITS["embedding_length"]
    words = {
        "taps": "conv_kernel_dim",
        "keys": "key_head_dim",
        "key_heads": "num_key_heads",
        "heads": "num_value_heads",
    }
    keys: Keys = {SIZES[name]: config.size(f"linear_{word}", most) for name, word in words.items()}
    keys[SIZES["inner"]] = keys[SIZES["heads"]] * config.size("linear_value_head_dim", most)
    return keys | rotary_keys(config, 0.25) | _layer_keys(config)


def _layer_keys(config: Config) -> Keys:
    """Which layers have attention: the last of each so many, or as a list says."""
    n, kinds = config.size("num_hidden_layers", LIMITS["block_count"]), "layer_types"
    if (found := config.values.get(kinds)) is None:
        return {INTERVAL: config.size(INTERVAL, LIMITS["block_count"], 4)}
    if not isinstance(found, list) or len(found) != n or set(map(str, found)) - {"linear_attention", "full_attention"}:
        raise config.error(kinds, f"is {brief(found)}", f"{n} of linear_attention, full_attention")
    recurrent = [kind == "linear_attention" for kind in found]
    interval = recurrent.index(False) + 1 if False in recurrent else n + 1
    return {INTERVAL: interval} if recurrent == periodic(n, interval) else {RECURRENT: recurrent}


def remade(name: str, tensor: LazyTensor, hp: DeltaNet) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: norms ready to multiply with, A, and convolutions [C, K]."""
    if name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
        return of_values(tensor, lambda values: values + np.float32(1))
    if name.endswith("ssm_a"):
        return of_values(tensor, lambda values: -np.exp(values))
    if name.endswith("ssm_conv1d.weight") and len(tensor.shape) == 3:
        return without_middle(tensor)
    return tensor


NAMES = names.ATTENTION | names.QK_NORMS | {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a",
    "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}
