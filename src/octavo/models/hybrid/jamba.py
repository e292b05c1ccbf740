"""Jamba: Mamba's scans with norms, in few layers attention without rope, in some experts (arXiv 2403.19887)."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.recurrent import mamba
from octavo.models.recurrent.mamba import SPLIT, Mamba
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector

KV_HEADS, WIDTH = "attention.head_count_kv", "expert_feed_forward_length"
ROUTER = "ffn_gate_inp"
WORDS = {"taps": "mamba_d_conv", "keys": "mamba_d_state", "rank": "mamba_dt_rank"}
PERIODS = {"attn": (8, 4), "expert": (2, 1)}
"""Every how many layers there is one with attention or with experts, and the first, where config.json does not say."""


@dataclass(frozen=True, kw_only=True)
class Jamba(Mamba):
    """Whether each layer has experts, beside what those that scan have."""

    routes: tuple[bool, ...]


def hparams(r: HyperparamReader) -> Jamba:
    """Layers without heads of keys scan."""
    hp = read_shared(r, some_attend=True, some_route=True)
    attends = tuple(n > 0 for n in r.sizes(KV_HEADS, hp.n_layer, some=True))
    return hp.extended(Jamba, **mamba.read_sizes(r), attends=attends, norm_eps=hp.eps, routes=_routes(r, hp.n_layer))


def _routes(r: HyperparamReader, n_layer: int) -> tuple[bool, ...]:
    """Whether each layer has experts, as widths of these by layer say, or its router in files that have none."""
    if r.is_array(WIDTH):
        return tuple(n > 0 for n in r.sizes(WIDTH, n_layer, some=True))
    return tuple(f"blk.{i}.{ROUTER}.weight" in r.shapes for i in range(n_layer))


def tensors(hp: Jamba) -> Tensors:
    attention, dense = layers.attention_tensors(hp), layers.ffn_tensors(hp)
    sizes = dict(zip(SPLIT, (hp.rank, hp.keys, hp.keys), strict=True))
    norms = {f"ssm_{name}_norm.weight": vector(size) for name, size in sizes.items()}
    scan = {"attn_norm.weight": vector(hp.n_embd), **mamba.scan_tensors(hp), **norms}
    experts = layers.moe_tensors(hp) if any(hp.routes) else {}
    return layers.model_tensors(
        hp, lambda i: (attention if hp.attends[i] else scan) | (experts if hp.routes[i] else dense)
    )


def build(g: GraphBuilder, hp: Jamba, w: Weights) -> Node:
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        x = g.add(x, _attend(g, hp, b, h, i) if hp.attends[i] else mamba.scan(g, hp, b, h, i))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        x = g.add(x, layers.moe(g, hp, b, h, normalized=False) if hp.routes[i] else layers.ffn(g, b, h))
    return layers.logits(g, hp, w, x)


def _attend(g: GraphBuilder, hp: Jamba, b: Weights, h: Node, layer: int) -> Node:
    q, k, v = layers.qkv(g, hp, b, h)
    return layers.linear(g, b, "attn_output", g.attention(q, k, v, layer=layer, scale=hp.attention_scale))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases of a scan's matrices, for scans without norms, and for windows."""
    config.only_flags({"mamba_proj_bias": False, "mamba_inner_layernorms": True})
    config.only({"sliding_window": None})
    n = config.size("num_hidden_layers", LIMITS["block_count"])
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    heads = config.size("num_key_value_heads", LIMITS[KV_HEADS], heads)
    width = config.size("hidden_size", LIMITS["embedding_length"])
    return mamba.scan_keys(config, WORDS, width * config.size("mamba_expand", 64, 2)) | _expert_keys(config, n) | {
        KV_HEADS: [heads * attends for attends in _layers_of(config, "attn", n)]
    }


def _expert_keys(config: Config, n: int) -> Keys:
    """Experts and their widths by layer; nothing where each layer has but one."""
    if config.size("num_experts", LIMITS["expert_count"], 16) == 1:
        return {}
    width = config.size("intermediate_size", LIMITS[WIDTH])
    widths = [width * routes for routes in _layers_of(config, "expert", n)]
    return expert_keys(config, "num_experts") | {WIDTH: widths} if any(widths) else {}


def _layers_of(config: Config, kind: str, n: int) -> list[bool]:
    """Which of n layers are of a kind of PERIODS. Raises ModelError for a first one that is beyond a period."""
    word, (period, first) = f"{kind}_layer_offset", PERIODS[kind]
    period = config.size(f"{kind}_layer_period", LIMITS["block_count"], period)
    first = first if config.values.get(word) is None else config.count(word, LIMITS["block_count"])
    if first >= period:
        raise config.error(word, f"is {first}", f"0 to {period - 1}")
    return [i % period == first for i in range(n)]


FEED = "feed_forward"
EXPERTS = {
    module: name for module, name in names.moe(FEED, "gate_proj", "up_proj", "down_proj").items() if name != ROUTER
}

ARCH = Architecture(
    name="jamba",
    hparams=hparams,
    keys=mamba.KEYS - {mamba.NORMED},
    tensors=tensors,
    build=build,
    classes={"JambaForCausalLM": config_keys},
    names={
        "input_layernorm": "attn_norm", "pre_ff_layernorm": "ffn_norm", **names.ATTENTION, **mamba.names("mamba."),
        **{f"mamba.{name}_layernorm": f"ssm_{name}_norm" for name in SPLIT},
        **{f"{FEED}.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
        f"{FEED}.router": ROUTER, **EXPERTS,
    },
    outer={
        "embed_tokens.weight": "token_embd.weight", "final_layernorm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    remade=mamba.remade,
    writable=False,
)
