"""ARWKV: a Qwen 2.5 whose attention is RWKV-7's time mixing, in some models without its gate or its norm of heads.

arXiv 2501.15570. In hybrids some layers have attention; those are not computed here.
"""

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.recurrent import rwkv7
from octavo.models.recurrent.rwkv7 import COPIED, HEAD, MIXED, RANKS, SHIFTS, Rwkv7
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Modules, Sizes, TensorLayout, Unwritten
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import columns_as_rows, flat, in_shape
from octavo.models.shared.decoder import CustomNetwork, FeedForward
from octavo.models.shared.hparams import CONTEXT, NO_ATTENTION, Key
from octavo.models.shared.reader import FF_WIDTH, LIMITS, MetadataReader, brief
from octavo.models.shared.weights import Tensors, Weights

CLASS, GATE, NORM, NORMED = "RwkvHybridForCausalLM", "wkv_has_gate", "wkv_has_group_norm", "wkv_norm_rows"
RANK = {"w": 64, "a": 64, "v": 32, "g": 128}
"""Ranks that the class has, whatever config.json says."""
FIRST = "blk.0.time_mix_ln.weight"
"""A tensor that models have whose heads are normed."""
FACTORS = tuple(f"time_mix_{name}{part}.weight" for name in RANKS for part in (1, 2))


def complete(r: MetadataReader, hp: Rwkv7) -> Rwkv7:
    return rwkv7.with_ranks(r, hp, shifts=1, plain=True, normed=FIRST in r.shapes)


def tensors(hp: Rwkv7) -> Tensors:
    norms, ffn = layers.norms(hp.n_embd, "attn_norm", "ffn_norm"), FeedForward().tensors(hp, 0)
    return layers.model_tensors(hp, lambda i: norms | rwkv7.mixing_tensors(hp, i) | ffn)


def build(g: GraphBuilder, hp: Rwkv7, w: Weights) -> Node:
    x, first = g.get_rows(w["token_embd"], g.tokens), None
    for i in range(hp.n_layer):
        b = w.block(i)
        y, first = rwkv7.mix_time(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps), i, first)
        x = g.add(x, y)
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for attention in some layers, and heads that do not make up the width."""
    if (found := config.values.get("wkv_layers")) not in (None, "full") and not _all_layers(config, found):
        raise config.error("wkv_layers", f"is {brief(found)}", "full")
    width = config.width
    size = config.size("head_size", width, 64)
    if config.size("num_wkv_heads", width, max(1, width // size)) * size != width:
        raise config.error("num_wkv_heads", f"{config.values['num_wkv_heads']} heads of {size} do not make {width}")
    gate = RANK["g"] * config.flag(GATE, True)
    return dict.fromkeys(NO_ATTENTION, 0) | {
        "context_length": CONTEXT, FF_WIDTH: config.size("intermediate_size", LIMITS[FF_WIDTH]), HEAD: size, SHIFTS: 1,
        **{RANKS[name]: rank for name, rank in (RANK | {"g": gate}).items()},
    }


def _all_layers(config: Config, listed: object) -> bool:
    return isinstance(listed, list) and listed == list(range(config.n_layer))


def usual_config(config: Config) -> Config:
    """config.json with a word for the rows of the norm of heads, if there is one."""
    rows = {NORMED: 1} if config.flag(NORM, True) else {}
    return config.replaced({**config.values, **rows})


def converted(name: str, tensor: LazyTensor, hp: Rwkv7) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: outputs of low-rank matrices as rows, and vectors without axes of 1."""
    if name.endswith(FACTORS) and len(tensor.shape) == 2:
        return columns_as_rows(tensor)
    if name.endswith(".time_mix_r_k.weight") and tensor.shape == (hp.heads, hp.size):
        return flat(tensor)
    return in_shape(tensor, (hp.n_embd,)) if ".time_mix_" in name and len(tensor.shape) == 3 else tensor


MIXER = "self_attn.time_mixer."

ARCH = Architecture(
    name="arwkv7",
    network=CustomNetwork(tensors, build),
    keys=(Key("size", HEAD, default=0, limit=rwkv7.MOST), SHIFTS, *RANKS.values()),
    sizes=Sizes(kind=Rwkv7, complete=complete, attention=False, feed_forward=True),
    only={"wkv_version": 7, "head_size_divisor": 8},
    classes={CLASS: config_keys, f"{CLASS} with {GATE}": config_keys},
    names=names.NORMS | names.FFN | {
        **{f"{MIXER}x_{n}": f"time_mix_lerp_fused/{i}" for i, n in enumerate(MIXED)},
        **{f"{MIXER}{n}": f"time_mix_{n}" for n in ("k_k", "k_a", "r_k", "receptance", "key", "value", "output")},
        **{f"{MIXER}{n}{i}": f"time_mix_{n}{i}" for n in RANKS for i in range(3) if (n, i) != ("g", 0)},
        f"{MIXER}ln_x": "time_mix_ln",
    },
    modules=Modules(
        by_class={CLASS: {f"{MIXER}x_g": ""}}, rows={FIRST: NORMED}, copies=COPIED,
        ignored=tuple(f"layers.0.{MIXER}v{i}" for i in range(3)),
    ),
    usual_config=usual_config,
    ropes=("default",),
    layout=TensorLayout(converted=converted),
    unwritten=Unwritten(why=lambda hp: rwkv7.WHY_UNWRITTEN),
)
