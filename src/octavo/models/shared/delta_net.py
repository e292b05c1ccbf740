"""What Qwen3-Next and Qwen3.5 share: attention whose output is gated, and layers of the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers, names
from octavo.models.shared.config import Config, Keys, nextn_keys
from octavo.models.shared.conversion import of_scan, of_values
from octavo.models.shared.decoder import Attention, ByLayer, CustomPart, Decoder, LayerPart, NormNames
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import LIMITS, NEXTN, MetadataReader, brief
from octavo.models.shared.states import Hybrid, taps_of
from octavo.models.shared.weights import Tensors, Weights, matrix, vector
from octavo.models.shared.windows import periodic

RECURRENT, INTERVAL, INNER = "attention.recurrent_layers", "full_attention_interval", "ssm.inner_size"
HEADS, VALUE_HEAD, MOST = "ssm.time_step_rank", "linear_value_head_dim", LIMITS["embedding_length"]
KEYS = (
    Key("taps", "ssm.conv_kernel", "linear_conv_kernel_dim", default=0, least=2, limit=64),
    Key("keys", "ssm.state_size", "linear_key_head_dim", default=0, least=1, limit=MOST),
    Key("key_heads", "ssm.group_count", "linear_num_key_heads", default=0, least=1, limit=MOST),
    Key("heads", HEADS, "linear_num_value_heads", default=0, least=1, limit=MOST),
    Key("inner", INNER, default=0, least=1, limit=MOST),
    RECURRENT, INTERVAL,
)
NORM_EPS = 1e-6
"""Added to the sum of squares of q and of k, whatever the other norms add."""

Gates = Callable[[GraphBuilder, "DeltaNet", Weights, Node], tuple[Node, Node]]
"""Alpha and beta, [T, heads] each, of a layer's weights and tokens."""


@dataclass(frozen=True, kw_only=True)
class DeltaNet(Hybrid):
    """Sizes of the layers of the delta rule.

    taps       values of a channel that a convolution sees
    keys       numbers of a key
    key_heads  heads of q and k
    heads      heads of values
    inner      numbers of the values of all heads
    """

    taps: int = 0
    keys: int = 0
    key_heads: int = 0
    heads: int = 0
    inner: int = 0

    @property
    def channels(self) -> int:
        """Of the convolution: q, k and v of all heads."""
        return 2 * self.key_heads * self.keys + self.inner

    @property
    def layer_state(self) -> int:
        return (self.taps - 1) * self.channels + self.keys * self.inner


def complete(r: MetadataReader, hp: DeltaNet) -> DeltaNet:
    """Which layers have attention. Raises ModelError naming the key that is wrong."""
    fits = (HEADS, hp.heads, hp.key_heads, "key heads"), (INNER, hp.inner, hp.heads, "heads")
    for field, number, divisor, of in fits:
        if number % divisor:
            raise r.error(field, f"{number} does not fit", f"a multiple of {of}")
    return replace(hp, attends=_attends(r, hp.n_layer + hp.n_next)[: hp.n_layer])


def _attends(r: MetadataReader, n: int) -> tuple[bool, ...]:
    """Whether each layer has attention, including layers that guess tokens."""
    if r.has(RECURRENT):
        flags = tuple(not flag for flag in r.metadata.get_bools(r.key(RECURRENT)))
        if len(flags) != n:
            raise r.error(RECURRENT, f"has {len(flags)} values", f"one for each of {n} layers")
        return flags
    interval = r.size(INTERVAL, LIMITS["block_count"], 4)
    return tuple((i + 1) % interval == 0 for i in range(n))


def decoder(
    feed_forward: LayerPart, gates: Gates, rows: Callable[[DeltaNet], Mapping[str, int]], *, tiled: bool
) -> Decoder:
    """A model with these gates of the delta rule, made by matrices that have these rows.

    tiled  heads of keys are taken in turn, see op `gated_delta_rule`
    """
    def delta(g: GraphBuilder, hp: DeltaNet, b: Weights, h: Node, layer: int) -> Node:
        values = _delta(g, hp, b, h, layer, gates(g, hp, b, h), tiled=tiled)
        return layers.linear(g, b, "ssm_out", values)

    recurrent = CustomPart(lambda hp, layer: delta_tensors(hp, rows(hp)), delta)
    attends = CustomPart(attention_tensors, attention)
    mixer = ByLayer(lambda hp, i: i >= hp.n_layer or hp.attends[i], attends, recurrent)
    return Decoder(mixer=mixer, feed_forward=feed_forward, norms=NormNames(feed_forward="post_attention_norm"))


def attention_tensors(hp: DeltaNet, layer: int) -> Tensors:
    found = Attention(bias=False, qk_norm="heads").tensors(hp, layer)
    return found | {"attn_q.weight": matrix(2 * hp.n_head * hp.head_dim, hp.n_embd)}


def attention(g: GraphBuilder, hp: DeltaNet, b: Weights, h: Node, layer: int) -> Node:
    """Attention whose output is multiplied by a sigmoid of what lies behind each head's query."""
    counts = {"attn_q": hp.n_head, "attn_k": hp.n_head_kv, "attn_v": hp.n_head_kv}
    both, k, v = (g.split_heads(layers.linear(g, b, name, h), heads) for name, heads in counts.items())
    q, gate = g.slice_heads(both, 0, hp.head_dim), g.slice_heads(both, hp.head_dim, hp.head_dim)
    q, k, rope = *layers.norm_heads(g, hp, b, q, k), layers.rotary(g, hp, b, layer)
    h = g.attention(rope(q), rope(k), v, layer=layer, scale=hp.attention_scale)
    return layers.linear(g, b, "attn_output", g.mul(h, g.sigmoid(g.join_of_heads(gate))))


def delta_tensors(hp: DeltaNet, gates: Mapping[str, int]) -> Tensors:
    """`gates` are rows of the matrices that alpha and beta come from."""
    rows = {"attn_qkv": hp.channels, "attn_gate": hp.inner, **gates}
    return layers.products({name: (n, hp.n_embd) for name, n in rows.items()} | {"ssm_out": (hp.n_embd, hp.inner)}) | {
        "ssm_conv1d.weight": matrix(hp.channels, hp.taps),
        "ssm_dt.bias": vector(hp.heads),
        "ssm_a": vector(hp.heads),
        "ssm_norm.weight": vector(hp.inner // hp.heads),
    }


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
    """Raises ModelError for kinds of layers that are not known."""
    inner, guessing = config.size("linear_num_value_heads", MOST) * config.size(VALUE_HEAD, MOST), nextn_keys(config)
    return {INNER: inner} | guessing | _layer_keys(config, guessing.get(NEXTN, 0))


def _layer_keys(config: Config, guessing: int) -> Keys:
    """Which layers have attention: the last of each period, or as a list says, and those that guess tokens."""
    n, kinds = config.n_layer, "layer_types"
    if (found := config.values.get(kinds)) is None:
        return {INTERVAL: config.size(INTERVAL, LIMITS["block_count"], 4)}
    if not isinstance(found, list) or len(found) != n or set(map(str, found)) - {"linear_attention", "full_attention"}:
        raise config.error(kinds, f"is {brief(found)}", f"{n} of linear_attention, full_attention")
    recurrent = [kind == "linear_attention" for kind in found]
    interval = recurrent.index(False) + 1 if False in recurrent else n + 1
    regular = recurrent == periodic(n, interval)
    return {INTERVAL: interval} if regular else {RECURRENT: recurrent + [False] * guessing}


def converted(name: str, tensor: LazyTensor, hp: DeltaNet) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: norms ready to multiply with, rates, and convolutions [C, K]."""
    if name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
        return of_values(tensor, lambda values: values + np.float32(1))
    return of_scan(name, tensor)


NAMES = names.LATE_NORMS | names.ATTENTION | names.QK_NORMS | names.NEXTN | {
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a",
    "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}
