"""Nemotron-H and Nemotron Nano 2: each layer is a scan of Mamba-2, or attention without rope, or a feed-forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names, ssd
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, RMS_EPS, HyperparamReader, read_shared
from octavo.models.shared.ssd import Mamba2
from octavo.models.shared.weights import Tensors, Weights, vector

KV_HEADS, WIDTH = "attention.head_count_kv", "feed_forward_length"
SCAN, ATTEND, FEED, EXPERTS = "scan", "attend", "feed", "experts"
PATTERN, KINDS = "hybrid_override_pattern", "layers_block_type"
LETTERS = {"M": SCAN, "*": ATTEND, "-": FEED, "E": EXPERTS}
OF_KINDS = {
    "mamba": SCAN, "linear_attention": SCAN, "attention": ATTEND, "full_attention": ATTEND, "mlp": FEED, "moe": EXPERTS,
}
WORDS = {
    "taps": "conv_kernel", "keys": "ssm_state_size", "heads": "mamba_num_heads", "scan_groups": "n_groups",
    "size": "mamba_head_dim", "limit": "time_step_limit",
}
FIELDS = ssd.KEYS | {LAYER_NORM_EPS}
"""Some files say what norms add by the one key, and others by both."""
FeedForward = Callable[[GraphBuilder, Weights, Node], Node]


@dataclass(frozen=True, kw_only=True)
class NemotronH(Mamba2):
    """Layers that neither attend nor scan have a feed-forward."""


def hparams(r: HyperparamReader) -> NemotronH:
    return read(r, has_experts=False)


def read(r: HyperparamReader, *, has_experts: bool) -> NemotronH:
    """Layers with heads of keys attend, those with a width have a feed-forward, and the others scan."""
    hp = read_shared(r, has_experts=has_experts, some_lack=True, eps=RMS_EPS if r.has(RMS_EPS) else LAYER_NORM_EPS)
    keys, widths = (r.sizes(field, hp.n_layer, some=True) for field in (KV_HEADS, WIDTH))
    both = next((i for i, (n, width) in enumerate(zip(keys, widths, strict=True)) if n and width), None)
    if both is not None:
        raise r.error(WIDTH, f"{widths[both]} of layer {both}, which has attention", "0 in layers with heads of keys")
    scans = tuple(not n and not width for n, width in zip(keys, widths, strict=True))
    return hp.extended(NemotronH, **ssd.read_sizes(r), attends=tuple(n > 0 for n in keys), scans=scans)


def tensors(hp: NemotronH) -> Tensors:
    return model_tensors(hp, _without_norm(layers.plain_ffn_tensors(hp, bias=True)))


def model_tensors(hp: NemotronH, feed_forward: Tensors) -> Tensors:
    """A model's tensors, with these of a layer that has a feed-forward."""
    attention, scan, norm = layers.attention_tensors(hp, output_bias=True), ssd.tensors(hp), vector(hp.n_embd)

    def block(i: int) -> Tensors:
        return {"attn_norm.weight": norm} | (attention if hp.attends[i] else scan if hp.scans[i] else feed_forward)

    return layers.model_tensors(hp, block)


def _without_norm(feed_forward: Tensors) -> Tensors:
    return {name: want for name, want in feed_forward.items() if name != "ffn_norm.weight"}


def build(g: GraphBuilder, hp: NemotronH, w: Weights) -> Node:
    return graph(g, hp, w, lambda g, b, h: layers.plain_ffn(g, b, h, g.relu_squared))


def graph(g: GraphBuilder, hp: NemotronH, w: Weights, feed_forward: FeedForward) -> Node:
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        if hp.attends[i]:
            q, k, v = layers.qkv(g, hp, b, h)
            h = layers.linear(g, b, "attn_output", g.attention(q, k, v, layer=i, scale=hp.attention_scale))
        else:
            h = ssd.scan(g, hp, b, h, i) if hp.scans[i] else feed_forward(g, b, h)
        x = g.add(x, h)
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for experts, which are another architecture's."""
    return layer_keys(config, FEED, config.size("intermediate_size", LIMITS[WIDTH]))


def layer_keys(config: Config, kind: str, width: int) -> Keys:
    """What each layer is, where those of a `kind` have a feed-forward of a width, and the sizes of the scan.

    Raises ModelError for another kind of feed-forward, and for what has no computation here.
    """
    config.only_flags({"use_bias": False, "mamba_proj_bias": False})
    config.only({"mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "sliding_window": None})
    word = KINDS if config.values.get(KINDS) is not None else PATTERN
    found = ssd.layer_kinds(config, word, OF_KINDS if word == KINDS else LETTERS)
    if found is None:
        raise config.error(KINDS, "is missing", "what each layer is")
    other = {FEED, EXPERTS} - {kind}
    if other & set(found):
        raise config.error(word, "has layers with experts and others with one feed-forward", "one of the two")
    n, said = len(found), config.values.get("num_hidden_layers")
    if said not in (None, n):
        raise config.error(word, f"has {n} layers", f"{said}, as num_hidden_layers says")
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    heads = config.size("num_key_value_heads", LIMITS[KV_HEADS], heads)
    eps = config.real("rms_norm_eps", 1e-5)
    return ssd.config_keys(config, WORDS) | {
        "block_count": n, RMS_EPS: eps, LAYER_NORM_EPS: eps, KV_HEADS: [heads * (each == ATTEND) for each in found],
        WIDTH: [width * (each == kind) for each in found],
    }


NAMES = {"norm": "attn_norm", **ssd.names("mixer."), "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down"} | {
    module.replace("self_attn", "mixer"): name for module, name in names.ATTENTION.items()
}
OUTER = {
    "embeddings.weight": "token_embd.weight", "norm_f.weight": "output_norm.weight", "lm_head.weight": "output.weight",
}
OTHER_WORDS = {"layer_norm_epsilon": "rms_norm_eps", "attention_head_dim": "head_dim"}
CLASS = "NemotronHForCausalLM"

ARCH = Architecture(
    name="nemotron_h",
    hparams=hparams,
    keys=FIELDS,
    tensors=tensors,
    build=build,
    classes={CLASS: config_keys},
    names=NAMES,
    base="backbone.",
    other_bases=("model.",),
    outer=OUTER,
    unused=("mtp.",),
    key_aliases=OTHER_WORDS,
    remade=ssd.remade,
    writable=False,
)
