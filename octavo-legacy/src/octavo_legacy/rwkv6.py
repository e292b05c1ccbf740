"""RWKV-6 "Finch": a state of each head with decays of its own for each token, which is mixed with the one before it.

arXiv 2404.05892. How much of the token before is taken depends on the token, by a low-rank matrix.
"""

from dataclasses import dataclass, replace

import numpy as np

from octavo.formats import by_name, dequantize, quantize_reference
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.recurrent import rwkv7
from octavo.models.recurrent.rwkv7 import HEAD, NORM_EPS, SHIFTS, WHY_UNWRITTEN, numbers, shifted, tanh
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, Sizes, TensorLayout, Unwritten, VocabularyFile
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import columns_as_rows, in_shape, of_values
from octavo.models.shared.decoder import CustomNetwork
from octavo.models.shared.hparams import CONTEXT, NO_ATTENTION, Key
from octavo.models.shared.reader import FF_WIDTH, LIMITS, MetadataReader
from octavo.models.shared.states import Hybrid
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix

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
    rank        of what weights of the token before are made of
    decay_rank  of what decays are made of
    rescale     layers after which, each time, the residual stream is halved, 0 for none
    fused       these weights are one tensor
    """

    size: int = 0
    rank: int = 0
    decay_rank: int = 0
    rescale: int = 0
    fused: bool = True

    @property
    def heads(self) -> int:
        return self.n_embd // self.size

    @property
    def layer_state(self) -> int:
        return (2 + self.size) * self.n_embd


def complete(r: MetadataReader, hp: Rwkv6) -> Rwkv6:
    rwkv7.require_heads(r, hp, hp.size)
    rwkv7.require_shifts(r, 2)
    return replace(hp, attends=(False,) * hp.n_layer, fused=f"blk.0.{APART[0]}.weight" not in r.shapes)


def tensors(hp: Rwkv6) -> Tensors:
    n, one = hp.n_embd, Expected((hp.n_embd,), ones=True)
    shapes = {f"time_mix_{name}": (n, n) for name in ("receptance", "key", "value", "gate", "output")} | {
        "time_mix_w1": (len(MIXED) * hp.rank, n), "time_mix_decay_w1": (hp.decay_rank, n),
        "time_mix_decay_w2": (n, hp.decay_rank), "channel_mix_key": (hp.n_ff, n),
        "channel_mix_value": (n, hp.n_ff), "channel_mix_receptance": (n, n),
    }
    lerp = {f"{name}.weight": one for name in APART}
    lerp = {f"{TOGETHER}.weight": Expected((len(MIXED), 1, 1, n), ones=True)} if hp.fused else lerp
    norms = layers.norms(n, "attn_norm", "attn_norm_2", "time_mix_ln", bias=True)
    block = norms | layers.products(shapes) | lerp | {
        "time_mix_w2.weight": Expected((len(MIXED), n, hp.rank)), "time_mix_lerp_x.weight": one,
        "time_mix_first.weight": matrix(hp.heads, hp.size), "time_mix_decay.weight": one,
        "channel_mix_lerp_k.weight": one, "channel_mix_lerp_r.weight": one,
    }
    return layers.model_tensors(hp, block) | layers.norms(n, "token_embd_norm", "output_norm", bias=True)


def build(g: GraphBuilder, hp: Rwkv6, w: Weights) -> Node:
    x = layers.norm(g, hp, w, "token_embd_norm", g.get_rows(w["token_embd"], g.tokens))
    for i in range(hp.n_layer):
        b = w.block(i)
        x = g.add(x, _mix_time(g, hp, b, layers.norm(g, hp, b, "attn_norm", x), i))
        x = g.add(x, _mix_channels(g, hp, b, layers.norm(g, hp, b, "attn_norm_2", x), i))
        x = layers.scaled(g, x, 0.5) if hp.rescale and (i + 1) % hp.rescale == 0 else x
    return layers.logits(g, hp, w, x)


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
    """h mixed with the token before it for each of MIXED: h + (before - h) * lerp, [T, n_embd] each."""
    lerp = numbers(b["time_mix_lerp_x"])
    both = g.causal_conv(
        h, np.stack([[lerp, np.ones_like(lerp)], [1 - lerp, -np.ones_like(lerp)]]), i, part="_time"
    )
    mixed, apart = g.columns(both, hp.n_embd, hp.n_embd)
    of_token, ids = tanh(g, layers.linear(g, b, "time_mix_w1", mixed)), g.numbers(len(MIXED))
    mixes = g.mul_mat_id(b["time_mix_w2"], g.split_heads(of_token, len(MIXED)), ids)  # [T, 5, n_embd]
    own = [numbers(b[name]) for name in ((TOGETHER,) if hp.fused else APART)]
    mixes = g.add_rows(mixes, constant(np.concatenate(own), f"blk.{i}.mixes"), ids)
    parts = g.columns(g.join_of_heads(mixes), *(hp.n_embd,) * len(MIXED))
    return [g.add(h, g.mul(apart, part)) for part in parts]


def _mix_channels(g: GraphBuilder, hp: Rwkv6, b: Weights, h: Node, i: int) -> Node:
    lerp = np.concatenate([numbers(b[f"channel_mix_lerp_{name}"]) for name in "kr"])
    k, r = g.columns(shifted(g, h, lerp, i, "_ffn"), hp.n_embd, hp.n_embd)
    k = layers.linear(g, b, "channel_mix_value", g.relu_squared(layers.linear(g, b, "channel_mix_key", k)))
    return g.mul(k, g.sigmoid(layers.linear(g, b, "channel_mix_receptance", r)))


def config_keys(config: Config) -> Keys:
    """Ranks are those that the class has. Raises ModelError for heads of another width."""
    width = config.width
    if (inner := config.size("attention_hidden_size", LIMITS["embedding_length"], width)) != width:
        raise config.error("attention_hidden_size", f"is {inner}", str(width))
    most, times = LIMITS[FF_WIDTH], 2 if width == WIDE else 1
    return dict.fromkeys(NO_ATTENTION, 0) | {
        "context_length": CONTEXT, HEAD: config.size("head_size", width, 64), RANK: 32 * times, DECAY_RANK: 64 * times,
        FF_WIDTH: config.size("intermediate_size", most, max(1, min(int(width * 3.5) // 32 * 32, most))),
    }


def converted(name: str, tensor: LazyTensor, hp: Rwkv6) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: outputs of low-rank matrices as rows, and vectors without axes of 1."""
    if name.endswith((".time_mix_w1.weight", ".time_mix_decay_w1.weight", ".time_mix_decay_w2.weight")):
        return columns_as_rows(tensor) if len(tensor.shape) == 2 else tensor
    if name.endswith(".time_mix_w2.weight") and len(tensor.shape) == 3:
        return _with_rows(tensor)
    if name.endswith(".time_mix_first.weight"):
        return of_values(tensor)
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
    network=CustomNetwork(tensors, build),
    keys=(
        Key("size", HEAD, default=0, limit=rwkv7.MOST), SHIFTS,
        Key("rank", RANK, default=0, least=1, limit=rwkv7.MOST),
        Key("decay_rank", DECAY_RANK, default=0, least=1, limit=rwkv7.MOST),
        Key("rescale", RESCALE, default=0, limit=LIMITS["block_count"]),
    ),
    sizes=Sizes(kind=Rwkv6, complete=complete, attention=False, feed_forward=True),
    layer_norms="layer_norm_epsilon",
    only={"head_size_divisor": 8},
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
    vocabulary=VocabularyFile(file="rwkv_vocab_v20230424.txt", pre="default"),
    layout=TensorLayout(converted=converted),
    unwritten=Unwritten(why=lambda hp: WHY_UNWRITTEN),
)
