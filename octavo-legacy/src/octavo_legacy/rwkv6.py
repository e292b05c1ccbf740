"""RWKV-6 "Finch": a state of each head with decays of its own for each token, which is mixed with the one before it.

arXiv 2404.05892. How much of the token before is taken depends on the token, by a low-rank matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.formats import by_name, dequantize, quantize_reference
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.recurrent import rwkv7
from octavo.models.recurrent.rwkv7 import (
    FF,
    HEAD,
    NORM_EPS,
    SHIFTS,
    WHY_UNWRITTEN,
    norm_tensors,
    numbers,
    shifted,
    tanh,
)
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, Vocabulary
from octavo.models.shared.config import Config, Keys, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader
from octavo.models.shared.remaking import columns_as_rows, in_f32
from octavo.models.shared.states import CONTEXT, NO_ATTENTION, Hybrid, in_shape, without_attention
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix, vector, with_scales

RANK, DECAY_RANK, RESCALE = "time_mix_extra_dim", "time_decay_extra_dim", "rescale_every_n_layers"
MIXED = "wkvrg"
"""What tokens are mixed with the one before them for, in the order of the file."""
APART, TOGETHER = tuple(f"time_mix_lerp_{name}" for name in MIXED), "time_mix_lerp_fused"
"""Their shares in older files, and in others."""
VECTORS = ("time_mix_decay", "time_mix_first", "time_mix_ln", "time_mix_ln.bias")
"""A layer's vectors in the order of op `wkv6`."""
WIDE = 4096
"""The width of a model whose ranks are twice those of others, see `config_keys`."""


@dataclass(frozen=True, kw_only=True)
class Rwkv6(Hybrid):
    """Sizes of time mixing.

    size        numbers of a head
    rank        of what shares of the token before are made of
    decay_rank  of what decays are made of
    rescale     layers after which, each time, the residual stream is halved, 0 for none
    fused       the shares of a layer are one tensor
    """

    size: int
    rank: int
    decay_rank: int
    rescale: int
    fused: bool

    @property
    def heads(self) -> int:
        return self.n_embd // self.size

    @property
    def layer_state(self) -> int:
        return (2 + self.size) * self.n_embd


def hparams(r: HyperparamReader) -> Rwkv6:
    hp = without_attention(r, ff=r.size(FF), eps=LAYER_NORM_EPS)
    size = rwkv7.head_size(r, hp)
    ranks = [r.whole(field, 0, LIMITS["embedding_length"]) for field in (RANK, DECAY_RANK)]
    for field, rank in zip((RANK, DECAY_RANK), ranks, strict=True):
        if not rank:
            raise r.error(field, "0 does not fit", "at least 1")
    rwkv7.require_shifts(r, 2)
    return hp.extended(
        Rwkv6, attends=(False,) * hp.n_layer, size=size, rank=ranks[0], decay_rank=ranks[1],
        rescale=r.whole(RESCALE, 0, LIMITS["block_count"]), fused=f"blk.0.{APART[0]}.weight" not in r.shapes,
    )


def tensors(hp: Rwkv6) -> Tensors:
    n, one = hp.n_embd, Expected((hp.n_embd,), ones=True)
    names = ("receptance", "key", "value", "gate", "output")
    products = {f"time_mix_{name}.weight": matrix(n, n) for name in names} | {
        "time_mix_w1.weight": matrix(len(MIXED) * hp.rank, n), "time_mix_decay_w1.weight": matrix(hp.decay_rank, n),
        "time_mix_decay_w2.weight": matrix(n, hp.decay_rank), "channel_mix_key.weight": matrix(hp.n_ff, n),
        "channel_mix_value.weight": matrix(n, hp.n_ff), "channel_mix_receptance.weight": matrix(n, n),
    }
    shares = {f"{name}.weight": one for name in APART}
    shares = {f"{TOGETHER}.weight": Expected((len(MIXED), 1, 1, n), ones=True)} if hp.fused else shares
    norms = [norm_tensors(n, name) for name in ("attn_norm", "attn_norm_2", "time_mix_ln")]
    block = norms[0] | norms[1] | norms[2] | with_scales(products) | shares | {
        "time_mix_w2.weight": Expected((len(MIXED), n, hp.rank)), "time_mix_lerp_x.weight": one,
        "time_mix_first.weight": matrix(hp.heads, hp.size), "time_mix_decay.weight": one,
        "channel_mix_lerp_k.weight": one, "channel_mix_lerp_r.weight": one,
    }
    return layers.model_tensors(hp, block) | norm_tensors(n, "token_embd_norm") | {"output_norm.bias": vector(n)}


def build(g: GraphBuilder, hp: Rwkv6, w: Weights) -> Node:
    x = layers.layer_norm(g, hp, w, "token_embd_norm", g.get_rows(w["token_embd"], g.tokens))
    for i in range(hp.n_layer):
        b = w.block(i)
        x = g.add(x, _mix_time(g, hp, b, layers.layer_norm(g, hp, b, "attn_norm", x), i))
        x = g.add(x, _mix_channels(g, hp, b, layers.layer_norm(g, hp, b, "attn_norm_2", x), i))
        x = layers.scaled(g, x, 0.5) if hp.rescale and (i + 1) % hp.rescale == 0 else x
    return layers.logits(g, hp, w, x, around_mean=True)


def _mix_time(g: GraphBuilder, hp: Rwkv6, b: Weights, h: Node, i: int) -> Node:
    """[T, n_embd] normed -> [T, n_embd]."""
    w, k, v, r, gate = _mixed(g, hp, b, h, i)
    r, k, v, gate = (
        layers.linear(g, b, f"time_mix_{name}", x)
        for name, x in (("receptance", r), ("key", k), ("value", v), ("gate", gate))
    )
    w = layers.linear(g, b, "time_mix_decay_w2", tanh(g, layers.linear(g, b, "time_mix_decay_w1", w)))
    y = g.wkv6(r, w, k, v, np.stack([numbers(b[name]) for name in VECTORS]), i, hp.heads, NORM_EPS)
    return layers.linear(g, b, "time_mix_output", g.swiglu(gate, y))


def _mixed(g: GraphBuilder, hp: Rwkv6, b: Weights, h: Node, i: int) -> list[Node]:
    """h mixed with the token before it for each of MIXED: h + (before - h) * share, [T, n_embd] each."""
    share = numbers(b["time_mix_lerp_x"])
    both = g.causal_conv(
        h, np.stack([[share, np.ones_like(share)], [1 - share, -np.ones_like(share)]]), i, part="_time"
    )
    mixed, apart = g.columns(both, hp.n_embd, hp.n_embd)
    of_token, ids = tanh(g, layers.linear(g, b, "time_mix_w1", mixed)), g.numbers(len(MIXED))
    shares = g.mul_mat_id(b["time_mix_w2"], g.split_heads(of_token, len(MIXED)), ids)  # [T, 5, n_embd]
    own = [numbers(b[name]) for name in ((TOGETHER,) if hp.fused else APART)]
    shares = g.add_rows(shares, constant(np.concatenate(own), f"blk.{i}.shares"), ids)
    parts = g.columns(g.join_of_heads(shares), *(hp.n_embd,) * len(MIXED))
    return [g.add(h, g.mul(apart, part)) for part in parts]


def _mix_channels(g: GraphBuilder, hp: Rwkv6, b: Weights, h: Node, i: int) -> Node:
    shares = np.concatenate([numbers(b[f"channel_mix_lerp_{name}"]) for name in "kr"])
    k, r = g.columns(shifted(g, h, shares, i, "_ffn"), hp.n_embd, hp.n_embd)
    k = layers.linear(g, b, "channel_mix_value", g.relu_squared(layers.linear(g, b, "channel_mix_key", k)))
    return g.mul(k, g.sigmoid(layers.linear(g, b, "channel_mix_receptance", r)))


def config_keys(config: Config) -> Keys:
    """Ranks are those that the class has. Raises ModelError for heads of another width, and another norm of them."""
    config.only({"head_size_divisor": 8})
    width = config.size("hidden_size", LIMITS["embedding_length"])
    if (inner := config.size("attention_hidden_size", LIMITS["embedding_length"], width)) != width:
        raise config.error("attention_hidden_size", f"is {inner}", str(width))
    times = 2 if width == WIDE else 1
    return dict.fromkeys(NO_ATTENTION, 0) | layer_norm_keys(config, "layer_norm_epsilon") | {
        "context_length": CONTEXT, HEAD: config.size("head_size", width, 64), RANK: 32 * times, DECAY_RANK: 64 * times,
        FF: config.size("intermediate_size", LIMITS[FF], max(1, min(int(width * 3.5) // 32 * 32, LIMITS[FF]))),
    }


def remade(name: str, tensor: LazyTensor, hp: Rwkv6) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: outputs of low-rank matrices as rows, and vectors without axes of 1."""
    if name.endswith((".time_mix_w1.weight", ".time_mix_decay_w1.weight", ".time_mix_decay_w2.weight")):
        return columns_as_rows(tensor) if len(tensor.shape) == 2 else tensor
    if name.endswith(".time_mix_w2.weight") and len(tensor.shape) == 3:
        return _with_rows(tensor)
    if name.endswith(".time_mix_first.weight"):
        return in_f32(tensor)
    return in_shape(tensor, (hp.n_embd,)) if "_mix_" in name and len(tensor.shape) == 3 else tensor


def _with_rows(tensor: LazyTensor) -> LazyTensor:
    """Matrices [E, K, N] as [E, N, K], in F32."""
    plain, (count, k, n) = by_name("F32"), tensor.shape

    return LazyTensor(
        tensor.name, plain, (count, n, k),
        lambda: quantize_reference(np.ascontiguousarray(dequantize(tensor.load()).swapaxes(1, 2)), plain, tensor.name),
    )


ATTENTION, FEED_FORWARD = "attention.", "feed_forward."
ARCH = Architecture(
    name="rwkv6",
    hparams=hparams,
    keys=frozenset({HEAD, SHIFTS, LAYER_NORM_EPS, RANK, DECAY_RANK, RESCALE}),
    tensors=tensors,
    build=build,
    classes={"Rwkv6ForCausalLM": config_keys},
    names={
        "ln1": "attn_norm", "ln2": "attn_norm_2",
        **{f"{ATTENTION}{n}": f"time_mix_{n}" for n in ("receptance", "key", "value", "gate", "output")},
        **{f"{ATTENTION}time_maa_{n}": f"time_mix_lerp_fused/{i}" for i, n in enumerate(MIXED)},
        f"{ATTENTION}time_maa_x": "time_mix_lerp_x", f"{ATTENTION}time_maa_w1": "time_mix_w1",
        f"{ATTENTION}time_maa_w2": "time_mix_w2", f"{ATTENTION}time_decay": "time_mix_decay",
        f"{ATTENTION}time_decay_w1": "time_mix_decay_w1", f"{ATTENTION}time_decay_w2": "time_mix_decay_w2",
        f"{ATTENTION}time_faaaa": "time_mix_first", f"{ATTENTION}ln_x": "time_mix_ln",
        **{f"{FEED_FORWARD}time_maa_{n}": f"channel_mix_lerp_{n}" for n in "kr"},
        **{f"{FEED_FORWARD}{n}": f"channel_mix_{n}" for n in ("key", "value", "receptance")},
    },
    base="rwkv.",
    layer="blocks",
    outer={
        "embeddings.weight": "token_embd.weight", "ln_out.weight": "output_norm.weight",
        "ln_out.bias": "output_norm.bias", "head.weight": "output.weight",
        **{f"blocks.0.pre_ln.{part}": f"token_embd_norm.{part}" for part in ("weight", "bias")},
    },
    vocabulary=Vocabulary(file="rwkv_vocab_v20230424.txt", pre="default"),
    remade=remade,
    why_unwritten=lambda hp: WHY_UNWRITTEN,
    writable=False,
)
