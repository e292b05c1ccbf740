"""Granite 4: layers of Mamba-2 in place of most attention, with or without experts."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import granite
from octavo.models.dense.granite import DENSE, HYBRID, ROPE, SHARED_WIDTH, Granite
from octavo.models.shared import layers, names, ssd
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, read_shared
from octavo.models.shared.ssd import Mamba2
from octavo.models.shared.weights import Tensors, Weights, vector

KV_HEADS, WIDTH = "attention.head_count_kv", "feed_forward_length"
WORDS = {
    "taps": "mamba_d_conv", "keys": "mamba_d_state", "heads": "mamba_n_heads", "scan_groups": "mamba_n_groups",
    "size": "mamba_d_head", "limit": "time_step_limit",
}


@dataclass(frozen=True, kw_only=True)
class GraniteHybrid(Mamba2, Granite):
    """Whether attention has rope, beside what both kinds of layers have."""

    turns: bool


def hparams(r: HyperparamReader) -> GraniteHybrid:
    """Layers without heads of keys scan."""
    hp = read_shared(r, interleaved=True, some_attend=True)
    attends = tuple(n > 0 for n in r.sizes(KV_HEADS, hp.n_layer, some=True))
    width = r.whole(SHARED_WIDTH, 0, LIMITS[SHARED_WIDTH])
    if not hp.n_expert and width not in (0, hp.n_ff):
        raise r.error(SHARED_WIDTH, f"{width} contradicts {WIDTH} of a model without experts", f"0 or {hp.n_ff}")
    return hp.extended(
        GraniteHybrid,
        **granite.scales(r, hp),
        **ssd.read_sizes(r),
        n_ff_shared=width if hp.n_expert else 0,
        attends=attends,
        scans=tuple(not attend for attend in attends),
        turns=r.metadata.get_bool(r.key(ROPE), default=True),
    )


def tensors(hp: GraniteHybrid) -> Tensors:
    scan = {"attn_norm.weight": vector(hp.n_embd), **ssd.tensors(hp)}
    attention, feed_forward = layers.attention_tensors(hp, output_bias=True), granite.feed_forward_tensors(hp)
    return layers.model_tensors(hp, lambda i: (attention if hp.attends[i] else scan) | feed_forward)


def build(g: GraphBuilder, hp: GraniteHybrid, w: Weights) -> Node:
    turn = layers.rotary(g, hp.rope, w) if hp.turns else None
    x = layers.scaled(g, g.get_rows(w["token_embd"], g.tokens), hp.embedding_scale)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        h = _attend(g, hp, b, h, i, turn) if hp.attends[i] else ssd.scan(g, hp, b, h, i)
        x = g.add(x, layers.scaled(g, h, hp.residual_scale))
        x = g.add(x, layers.scaled(g, granite.feed_forward(g, hp, b, x), hp.residual_scale))
    return layers.scaled(g, layers.logits(g, hp, w, x), hp.logit_scale)


def _attend(g: GraphBuilder, hp: GraniteHybrid, b: Weights, h: Node, layer: int, turn: layers.RotaryFn | None) -> Node:
    q, k, v = layers.qkv(g, hp, b, h)
    q, k = (q, k) if turn is None else (turn(q), turn(k))
    return layers.linear(g, b, "attn_output", g.attention(q, k, v, layer=layer, scale=hp.query_scale))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases of matrices of a scan, and for kinds of layers and of positions that are unknown."""
    config.only_flags({"mamba_proj_bias": False})
    n = config.size("num_hidden_layers", LIMITS["block_count"])
    kinds = {"mamba": "scan", "linear_attention": "scan", "attention": "attend", "full_attention": "attend"}
    found = ssd.layer_kinds(config, "layer_types", kinds) or ["scan"] * n
    if len(found) != n:
        raise config.error("layer_types", f"has {len(found)} values", f"one for each of {n} layers")
    positions = config.values.get("position_embedding_type")
    if positions not in (None, "nope", "rope"):
        raise config.error("position_embedding_type", f"is {positions}", "nope or rope")
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    heads = config.size("num_key_value_heads", LIMITS[KV_HEADS], heads)
    shared = config.size("shared_intermediate_size", LIMITS[WIDTH])
    return granite.config_keys(config) | _scan_keys(config) | {
        KV_HEADS: [heads * (kind == "attend") for kind in found], ROPE: positions == "rope",
        SHARED_WIDTH: shared, WIDTH: shared,
    }


def _scan_keys(config: Config) -> Keys:
    """Sizes of the scan. Raises ModelError for heads that are not as long as the width and its expansion say."""
    width = config.size("hidden_size", ssd.MOST) * config.size("mamba_expand", 64, 2)
    return ssd.config_keys(ssd.with_head_size(config, WORDS, width), WORDS)


def with_experts(config: Config) -> Keys:
    width = config.size("intermediate_size", LIMITS[WIDTH])
    return config_keys(config) | expert_keys(config, "num_local_experts") | {WIDTH: width}


EXPERTS = {
    "block_sparse_moe.router.layer": "ffn_gate_inp", "block_sparse_moe.input_linear": names.GATE_UP,
    "block_sparse_moe.output_linear": "ffn_down_exps", **names.stacked("block_sparse_moe"),
    **names.switch("block_sparse_moe.switch_mlp"),
    "shared_mlp.input_linear": names.SHARED_GATE_UP, "shared_mlp.output_linear": "ffn_down_shexp",
}

ARCH = Architecture(
    name="granitehybrid",
    hparams=hparams,
    keys=granite.KEYS | ssd.KEYS,
    tensors=tensors,
    build=build,
    classes={HYBRID: config_keys, f"{HYBRID} with num_local_experts": with_experts},
    names=names.NORMS | names.ATTENTION | ssd.names("mamba.") | EXPERTS,
    class_names={HYBRID: DENSE},
    remade=ssd.remade,
    ropes=("default", "linear", "yarn", "llama3"),
    writable=False,
)
