"""RWKV-7 "Goose": the generalized delta rule in every layer, and tokens that are mixed with the one before them.

arXiv 2503.14456. Checkpoint folders are those of flash-linear-attention.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, Modules, Sizes, TensorLayout, Unwritten, VocabularyFile
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import flat, in_shape
from octavo.models.shared.decoder import CustomNetwork
from octavo.models.shared.hparams import CONTEXT, NO_ATTENTION, Hyperparams, Key
from octavo.models.shared.reader import FF_WIDTH, LIMITS, MetadataReader, brief
from octavo.models.shared.states import Hybrid
from octavo.models.shared.weights import Expected, Tensors, Weights, vector

HEAD, SHIFTS, MOST = "wkv.head_size", "token_shift_count", LIMITS["embedding_length"]
RANKS = {
    "w": "attention.decay_lora_rank", "a": "attention.iclr_lora_rank", "v": "attention.value_residual_mix_lora_rank",
    "g": "attention.gate_lora_rank",
}
"""Ranks of the matrices of the decay, of the in-context learning rate, of the mix with the first layer's values, and of
the gate."""
WORDS = {"w": ("decay_low_rank_dim", 64), "a": ("a_low_rank_dim", 64), "v": ("v_low_rank_dim", 16),
         "g": ("gate_low_rank_dim", 128)}
"""Their keys in config.json, and what the class has where that does not say."""
MIXED = "rwkvag"
"""What tokens are mixed with the one before them for, in the order of the file."""
VECTORS, NORM = ("w0", "a0", "k_k", "k_a", "r_k"), ("time_mix_ln", "time_mix_ln.bias")
"""What a layer's vectors are called behind "time_mix_", and its norm of heads, in the order of op `wkv7`."""
WHY_UNWRITTEN = "what a layer mixes tokens by is one tensor in GGUF, and several in folders"
NORM_EPS = 64e-5
"""What the norm of heads adds to the variance, for which there is no key."""


@dataclass(frozen=True, kw_only=True)
class Rwkv7(Hybrid):
    """Sizes of time mixing.

    size    numbers of a head
    ranks   of matrices of two factors, by letter, see RANKS; that of g is 0 where there is no gate
    shifts  what of a layer is mixed with the token before
    normed  heads are normed
    """

    size: int = 0
    ranks: Mapping[str, int] = field(default_factory=dict)
    shifts: int = 2
    normed: bool = True

    @property
    def heads(self) -> int:
        return self.n_embd // self.size

    @property
    def mixed(self) -> str:
        """Those of MIXED that there are."""
        return MIXED if self.ranks["g"] else MIXED.removesuffix("g")

    @property
    def layer_state(self) -> int:
        return (self.shifts + self.size) * self.n_embd


def complete(r: MetadataReader, hp: Rwkv7) -> Rwkv7:
    return with_ranks(r, hp, shifts=2)


def with_ranks(r: MetadataReader, hp: Rwkv7, *, shifts: int, plain: bool = False, normed: bool = True) -> Rwkv7:
    """With ranks, and how much of a layer is mixed with the token before; `plain` ones may have no gate.

    Raises ModelError naming the key that is wrong.
    """
    require_heads(r, hp, hp.size)
    ranks = {n: r.count(f, MOST) for n, f in RANKS.items()}
    for name, rank in ranks.items():
        if not rank and not (plain and name == "g"):
            raise r.error(RANKS[name], "0 does not fit", "at least 1")
    require_shifts(r, shifts)
    return replace(hp, attends=(False,) * hp.n_layer, ranks=ranks, shifts=shifts, normed=normed)


def require_heads(r: MetadataReader, hp: Hyperparams, size: int) -> None:
    """Raise ModelError for a size of heads that does not divide the width."""
    if not size or hp.n_embd % size:
        raise r.error(HEAD, f"{size} does not fit", f"a divisor of {hp.n_embd}")


def require_shifts(r: MetadataReader, shifts: int) -> None:
    """Raise ModelError unless this much of a layer is mixed with the token before."""
    if (found := r.integer(SHIFTS, shifts)) != shifts:
        raise r.error(SHIFTS, f"is {found}", str(shifts))


def tensors(hp: Rwkv7) -> Tensors:
    outer = layers.model_tensors(hp, lambda i: _layer_tensors(hp, i))
    return outer | layers.norms(hp.n_embd, "token_embd_norm", "output_norm", bias=True)


def _layer_tensors(hp: Rwkv7, layer: int) -> Tensors:
    shapes = {"channel_mix_key": (hp.n_ff, hp.n_embd), "channel_mix_value": (hp.n_embd, hp.n_ff)}
    norms = layers.norms(hp.n_embd, "attn_norm", "attn_norm_2", bias=True)
    return norms | layers.products(shapes) | mixing_tensors(hp, layer) | {
        "channel_mix_lerp_k.weight": Expected((hp.n_embd,), ones=True),
    }


def mixing_tensors(hp: Rwkv7, layer: int) -> Tensors:
    """Those of time mixing."""
    n = hp.n_embd
    shapes = {f"time_mix_{name}": (n, n) for name in ("receptance", "key", "value", "output")}
    others = {f"time_mix_{name}.weight": vector(n) for name in VECTORS}
    others |= layers.norms(n, NORM[0], bias=True) if hp.normed else {}
    for name, rank in hp.ranks.items():
        shapes |= _factors(hp, name, rank) if rank and (layer > 0 or name != "v") else {}
    if layer > 0:
        others["time_mix_v0.weight"] = vector(n)
    else:  # there is no value to mix with: llama.cpp wants these, and computes nothing with them
        unused = {f"{name}.weight": Expected(shape, True) for name, shape in _factors(hp, "v", hp.ranks["a"]).items()}
        others |= unused | {"time_mix_v0.weight": vector(n, optional=True)}
    return layers.products(shapes) | others | {
        "time_mix_lerp_fused.weight": Expected((len(hp.mixed), 1, 1, n), ones=True)
    }


def _factors(hp: Rwkv7, name: str, rank: int) -> dict[str, tuple[int, int]]:
    return {f"time_mix_{name}1": (rank, hp.n_embd), f"time_mix_{name}2": (hp.n_embd, rank)}


def build(g: GraphBuilder, hp: Rwkv7, w: Weights) -> Node:
    x, first = layers.norm(g, hp, w, "token_embd_norm", g.get_rows(w["token_embd"], g.tokens)), None
    for i in range(hp.n_layer):
        b = w.block(i)
        y, first = mix_time(g, hp, b, layers.norm(g, hp, b, "attn_norm", x), i, first)
        x = g.add(x, y)
        h = shifted(g, layers.norm(g, hp, b, "attn_norm_2", x), numbers(b["channel_mix_lerp_k"]), i, "_ffn")
        h = g.relu_squared(layers.linear(g, b, "channel_mix_key", h))
        x = g.add(x, layers.linear(g, b, "channel_mix_value", h))
    return layers.logits(g, hp, w, x)


def mix_time(g: GraphBuilder, hp: Rwkv7, b: Weights, h: Node, i: int, first: Node | None) -> tuple[Node, Node]:
    """[T, n_embd] normed -> [T, n_embd], and the values of the first layer, which is this one where there are none."""
    mixed = shifted(g, h, numbers(b["time_mix_lerp_fused"]), i, "_time")
    r, w, k, v, a, *gate = g.columns(mixed, *(hp.n_embd,) * len(hp.mixed))
    w = layers.linear(g, b, "time_mix_w2", tanh(g, layers.linear(g, b, "time_mix_w1", w)))
    lerp = None if first is None else _low_rank(g, b, "v", v)
    r, k, v = (layers.linear(g, b, f"time_mix_{n}", x) for n, x in (("receptance", r), ("key", k), ("value", v)))
    taken = None if first is None or lerp is None else (first, lerp)
    vectors = [numbers(b[f"time_mix_{name}"]) for name in VECTORS]
    vectors += [numbers(b[name]) for name in NORM] if hp.normed else [np.zeros(hp.n_embd, np.float32)] * 2
    vectors += [numbers(b["time_mix_v0"])] if taken else []
    eps = NORM_EPS if hp.normed else None
    y = g.wkv7(r, w, k, v, _low_rank(g, b, "a", a), np.stack(vectors), i, hp.heads, eps, taken)
    if gate:
        y = g.mul(y, layers.linear(g, b, "time_mix_g2", g.sigmoid(layers.linear(g, b, "time_mix_g1", gate[0]))))
    return layers.linear(g, b, "time_mix_output", y), v if first is None else first


def tanh(g: GraphBuilder, x: Node) -> Node:
    return g.soft_cap(x, 1.0)


def _low_rank(g: GraphBuilder, b: Weights, name: str, x: Node) -> Node:
    return layers.linear(g, b, f"time_mix_{name}2", layers.linear(g, b, f"time_mix_{name}1", x))


def shifted(g: GraphBuilder, x: Node, lerp: F32, i: int, part: str) -> Node:
    """x [T, C] mixed with the token before: x + lerp * (before - x) for lerp [F * C], F of them side by side."""
    return g.causal_conv(x, np.stack([lerp, 1 - lerp]), i, part=part)


def numbers(weight: Node) -> F32:
    """The values of a small tensor, end to end."""
    values: F32 = dequantize(weight.tensor).reshape(-1)
    return values


def config_keys(config: Config) -> Keys:
    """Raises ModelError for norms that add something else, and other widths of values."""
    width = config.width
    heads = config.size("num_heads", width, 1)
    size = config.size("head_dim", width, width // heads if config.values.get("num_heads") else 64)
    if config.values.get("num_heads") is not None and heads * size != width:
        raise config.error("num_heads", f"{heads} heads of {size} do not make {width}", str(width // size))
    if (values := config.values.get("value_dim")) not in (None, width) and set(_listed(values)) != {width}:
        raise config.error("value_dim", f"is {brief(values)}", f"{width} in all layers")
    eps = config.real("norm_eps", 1e-5)
    if not math.isclose(size * eps, NORM_EPS, rel_tol=1e-6):
        problem = f"{eps:g} makes {size * eps:g} for the norm of heads of {size}"
        raise config.error("norm_eps", problem, f"{NORM_EPS:g}, which GGUF has no key for")
    return dict.fromkeys(NO_ATTENTION, 0) | {
        "context_length": CONTEXT, FF_WIDTH: _inner(config, width), HEAD: size,
        **{RANKS[name]: config.size(word, MOST, usual) for name, (word, usual) in WORDS.items()},
    }


def _listed(values: object) -> list[object]:
    return values if isinstance(values, list) else [values]


def _inner(config: Config, width: int) -> int:
    """The width of channel mixing: a multiple of the model's, in whole 32, where config.json does not say."""
    ratio = config.real("hidden_ratio", 4.0)
    return config.size("intermediate_size", LIMITS[FF_WIDTH], min(-(-int(width * ratio) // 32) * 32, LIMITS[FF_WIDTH]))


def converted(name: str, tensor: LazyTensor, hp: Rwkv7) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: vectors of heads as one, and what tokens are mixed by with axes of 1."""
    if name.endswith(".time_mix_lerp_fused.weight"):
        return in_shape(tensor, (len(MIXED), 1, 1, hp.n_embd))
    if name.endswith(".time_mix_r_k.weight") and tensor.shape == (hp.heads, hp.size):
        return flat(tensor)
    return tensor


FACTORS = {f"attn.{n}_lora.lora.{layer}": f"time_mix_{n}{part}" for n in RANKS for layer, part in ((0, 1), (2, 2))}
BASES = {f"attn.{n}_lora.lora.2.bias": f"time_mix_{n}0" for n in RANKS if n != "g"}
COPIED = {f"blk.0.time_mix_v{n}.weight": f"blk.0.time_mix_a{n}.weight" for n in range(3)}
"""What llama.cpp wants of the first layer and computes nothing with, as its converter writes it."""

ARCH = Architecture(
    name="rwkv7",
    network=CustomNetwork(tensors, build),
    keys=(Key("size", HEAD, default=0, limit=MOST), SHIFTS, *RANKS.values()),
    sizes=Sizes(kind=Rwkv7, complete=complete, attention=False, feed_forward=True),
    layer_norms="norm_eps",
    classes={"RWKV7ForCausalLM": config_keys},
    only={"norm_first": True, "norm_bias": True, "attn": None},
    names=FACTORS | BASES | {
        "attn_norm": "attn_norm", "ffn_norm": "attn_norm_2", "attn.x_x": "time_mix_lerp_fused",
        **{f"attn.x_{n}": f"time_mix_lerp_fused/{i}" for i, n in enumerate(MIXED)},
        **{f"attn.{n}": f"time_mix_{n}" for n in ("k_k", "k_a", "r_k")},
        "attn.r_proj": "time_mix_receptance", "attn.k_proj": "time_mix_key", "attn.v_proj": "time_mix_value",
        "attn.g_norm": "time_mix_ln", "attn.o_proj": "time_mix_output",
        "ffn.x_k": "channel_mix_lerp_k", "ffn.key": "channel_mix_key", "ffn.value": "channel_mix_value",
    },
    outer={
        "embeddings.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "norm.bias": "output_norm.bias",
        "lm_head.weight": "output.weight",
        **{f"layers.0.pre_norm.{part}": f"token_embd_norm.{part}" for part in ("weight", "bias")},
    },
    modules=Modules(copies=COPIED),
    activation="sqrelu",
    vocabulary=VocabularyFile(file="rwkv_vocab_v20230424.txt", pre="default"),
    layout=TensorLayout(converted=converted),
    unwritten=Unwritten(why=lambda hp: WHY_UNWRITTEN),
)
