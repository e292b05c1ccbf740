"""Kimi Linear: layers of the delta rule with a decay for each channel of keys, latent attention without rope between.

Kimi Delta Attention is arXiv 2510.26692.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from octavo.formats import dequantize
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import delta_net, experts, layers, names
from octavo.models.shared import latent_attention as latent
from octavo.models.shared.architecture import Architecture, Modules, Sizes, TensorLayout, VocabularyFile
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import in_shape
from octavo.models.shared.decoder import ByLayer, CustomPart, Decoder
from octavo.models.shared.experts import SIGMOID
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import HEADS, KV_HEADS, LIMITS, OR_NONE, MetadataReader, brief
from octavo.models.shared.ssd import as_vector
from octavo.models.shared.states import Hybrid
from octavo.models.shared.weights import Expected, Tensors, Weights, vector

CLASS, MOST_TAPS = "KimiLinearForCausalLM", 64
KINDS = {"linear_attention": False, "full_attention": True}
"""Whether a layer of a kind has attention."""
LISTS = {"kda_layers": False, "full_attn_layers": True}
"""The same of lists of layers in `linear_attn_config`, which count from 1."""
WORDS = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads",
         "short_conv_kernel_size": "linear_conv_kernel_dim"}
"""Keys of `linear_attn_config`, and those of config.json that say the same."""


@dataclass(frozen=True, kw_only=True)
class KimiLinear(Hybrid, latent.Latent, experts.Routed):
    """Sizes of the layers of the delta rule, which have as many heads as attention.

    taps  values of a channel that each of a layer's three convolutions sees
    size  numbers of a head's query, key and value
    """

    taps: int = 0
    size: int = 0

    @property
    def inner(self) -> int:
        """Numbers of the queries, of the keys or of the values of all heads."""
        return self.n_head * self.size

    @property
    def layer_state(self) -> int:
        return (3 * (self.taps - 1) + self.size) * self.inner


def complete(r: MetadataReader, hp: KimiLinear) -> KimiLinear:
    """Layers without heads of keys have the delta rule."""
    latent.check(r, hp)
    attends = tuple(n > 0 for n in r.sizes(KV_HEADS, hp.n_layer, some=True))
    found = experts.read(r, hp, SIGMOID, normalized=True)
    return replace(hp, **found, query_scale=1 / math.sqrt(hp.key), attends=attends)


def delta_tensors(hp: KimiLinear, layer: int) -> Tensors:
    """What a layer of the delta rule has before its feed-forward. llama.cpp's files have axes of 1 in some."""
    rows = {
        "attn_q": hp.inner, "attn_k": hp.inner, "attn_v": hp.inner, "ssm_f_a": hp.size, "ssm_g_a": hp.size,
        "ssm_beta": hp.n_head,
    }
    shapes = {name: (n, hp.n_embd) for name, n in rows.items()}
    shapes |= {f"ssm_{n}_b": (hp.inner, hp.size) for n in "fg"} | {"attn_output": (hp.n_embd, hp.inner)}
    taps = Expected((hp.inner, 1, hp.taps), ones=True)
    return layers.products(shapes) | {
        **{f"ssm_conv1d_{n}.weight": taps for n in "qkv"},
        "ssm_a": Expected((hp.n_head, 1), ones=True),
        "ssm_dt.bias": vector(hp.inner),
        "ssm_norm.weight": vector(hp.size),
    }


def delta(g: GraphBuilder, hp: KimiLinear, b: Weights, h: Node, i: int) -> Node:
    """[T, n_embd] normed -> [T, n_embd]."""
    q, k, v = (_convolved(g, hp, b, h, i, n) for n in "qkv")
    q = delta_net.of_length(g, q, hp.size**-0.5, f"blk.{i}.q_length")
    k = delta_net.of_length(g, k, 1.0, f"blk.{i}.k_length")
    decay, gate = (layers.linear(g, b, f"ssm_{n}_b", layers.linear(g, b, f"ssm_{n}_a", h)) for n in "fg")
    beta, ssm_a, dt_bias = layers.linear(g, b, "ssm_beta", h), as_vector(b["ssm_a"]), b["ssm_dt.bias"]
    y = g.gated_delta_rule(q, k, v, decay, beta, ssm_a=ssm_a, dt_bias=dt_bias, layer=i, tiled=False)
    y = g.join_of_heads(g.rms_norm(g.split_heads(y, hp.n_head), b["ssm_norm"], hp.eps))
    return layers.linear(g, b, "attn_output", g.mul(y, g.sigmoid(gate)))


def _convolved(g: GraphBuilder, hp: KimiLinear, b: Weights, h: Node, i: int, part: str) -> Node:
    """The queries, keys or values of all heads, [T, heads, size]."""
    taps = dequantize(b[f"ssm_conv1d_{part}"].tensor).reshape(hp.inner, hp.taps).T
    x = g.causal_conv(layers.linear(g, b, f"attn_{part}", h), taps, i, silu=True, part=f"_{part}")
    return g.split_heads(x, hp.n_head)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for heads of the delta rule that are not as many as attention has."""
    heads = config.n_head
    if config.size("linear_num_heads", LIMITS[HEADS], heads) != heads:
        raise config.error("linear_num_heads", f"is {config.values['linear_num_heads']}", f"{heads}, as attention has")
    chosen = experts.config_keys(config, SIGMOID, normalized=True) | experts.group_keys(config)
    return latent.config_keys(config) | chosen | {
        KV_HEADS: [int(attends) for attends in _attends(config)],
    }


def usual_config(config: Config) -> Config:
    """config.json with what `linear_attn_config` says, but for lists of layers, in words of its own.

    Raises ModelError for a key of it that is not known.
    """
    own = _own(config)
    if unknown := [key for key in own if key not in WORDS and key not in LISTS]:
        raise config.error(f"linear_attn_config.{unknown[0]}", "is not computed with", ", ".join((*WORDS, *LISTS)))
    return config.replaced({**config.values, **{WORDS[key]: value for key, value in own.items() if key in WORDS}})


def _own(config: Config) -> dict[str, object]:
    key = "linear_attn_config"
    own = config.values.get(key)
    if not isinstance(own, dict | None):
        raise config.error(key, f"is {brief(own)}", "an object")
    return own or {}


def _attends(config: Config) -> list[bool]:
    """Whether each layer has attention: as lists of layers say, or the kinds of all."""
    n, own = config.n_layer, _own(config)
    if any(key in own for key in LISTS):
        return _listed(config, own, n)
    kinds = config.values.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != n or not all(str(kind) in KINDS for kind in kinds):
        raise config.error("layer_types", f"is {brief(kinds)}", f"{n} of {', '.join(KINDS)}")
    return [KINDS[kind] for kind in kinds]


def _listed(config: Config, own: dict[str, object], n: int) -> list[bool]:
    found: dict[int, bool] = {}
    for key, attends in LISTS.items():
        listed = own.get(key)
        if not isinstance(listed, list) or any(type(i) is not int or not 1 <= i <= n or i in found for i in listed):
            allowed = f"numbers of layers, 1 to {n}, that are in one list only"
            raise config.error(f"linear_attn_config.{key}", f"is {brief(listed)}", allowed)
        found |= dict.fromkeys(listed, attends)
    if missing := [i for i in range(1, n + 1) if i not in found]:
        raise config.error("linear_attn_config", f"does not list layer {missing[0]}", f"all of 1 to {n}")
    return [found[i] for i in range(1, n + 1)]


def converted(name: str, tensor: LazyTensor, hp: KimiLinear) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: convolutions [C, 1, K] and rates [heads, 1] in F32."""
    if name.endswith(".ssm_a"):
        return in_shape(tensor, (hp.n_head, 1), lambda values: -np.exp(values))
    return in_shape(tensor, (hp.inner, 1, hp.taps)) if ".ssm_conv1d_" in name else tensor


EXPERTS = names.moe("block_sparse_moe", "w1", "w3", "w2") | names.ffn("block_sparse_moe.shared_experts", "_shexp") | {
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
}
DELTA = {
    **{f"self_attn.{n}_conv1d": f"ssm_conv1d_{n}" for n in "qkv"},
    **{f"self_attn.{n}_{part}_proj": f"ssm_{n}_{part}" for n in "fg" for part in "ab"},
    "self_attn.b_proj": "ssm_beta", "self_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm": "ssm_norm",
}
RESAVED = names.ffn("block_sparse_moe")
"""Dense layers as transformers writes them, which published folders have under `mlp`."""
ALIASES = {
    "num_experts": "n_routed_experts", "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts", "moe_renormalize": "norm_topk_prob", "num_expert_group": "n_group",
    "model_max_length": "max_position_embeddings",
}

ARCH = Architecture(
    name="kimi-linear",
    network=Decoder(
        mixer=ByLayer(
            lambda hp, i: hp.attends[i], latent.LatentAttention(rope=False), CustomPart(delta_tensors, delta)
        ),
        feed_forward=experts.FEED_FORWARD,
    ),
    keys=(
        *latent.KEYS, *experts.KEYS,
        Key("taps", "ssm.conv_kernel", "linear_conv_kernel_dim", default=0, usual=4, least=2, limit=MOST_TAPS),
        Key("size", "kda.head_dim", "linear_head_dim", default=0, least=1, limit=LIMITS["attention.key_length"]),
    ),
    sizes=Sizes(kind=KimiLinear, complete=complete, equal_lengths=False, differs={KV_HEADS: OR_NONE}),
    experts=True,
    classes={CLASS: config_keys},
    only={
        "mla_use_nope": True, "attention_bias": False, "use_grouped_topk": True, "num_nextn_predict_layers": 0,
        "moe_router_activation_func": "sigmoid",
    },
    names=names.NORMS | names.FFN | names.ATTENTION | latent.NAMES | names.ROUTED | EXPERTS | DELTA,
    modules=Modules(by_class={CLASS: RESAVED}),
    key_aliases=ALIASES,
    usual_config=usual_config,
    vocabulary=VocabularyFile(file="tiktoken.model", pre="kimi-k2"),
    ropes=("default",),
    layout=TensorLayout(permuted=False, converted=converted),
)
