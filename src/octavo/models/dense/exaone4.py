"""EXAONE 4: norms behind attention and feed-forward only, norms of q and k, rope only with a window if any have one."""

from __future__ import annotations

from dataclasses import replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, window_keys
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed

PERIOD = 4
"""The last of so many layers has neither window nor rope, where a file with a window does not say which ones have."""


def hparams(r: HyperparamReader) -> Hyperparams:
    hp = read_shared(r, has_experts=False)
    return replace(hp, windowed=read_windowed(r, hp, PERIOD))


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp, qk_norm=True) | layers.ffn_tensors(hp)
    del block["attn_norm.weight"], block["ffn_norm.weight"]
    norms = {f"{part}_norm.weight": vector(hp.n_embd) for part in ("post_attention", "post_ffw")}
    return layers.model_tensors(hp, block | norms)


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.normed_qkv(g, hp, b, x)
        if hp.n_window is None or hp.windowed[i]:
            q, k = rope(q), rope(k)
        h = g.attention(q, k, v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        x = g.add(x, g.rms_norm(layers.linear(g, b, "attn_output", h), b["post_attention_norm"], hp.eps))
        x = g.add(x, g.rms_norm(layers.ffn(g, b, x), b["post_ffw_norm"], hp.eps))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a pattern of windows in letters beside no list, and for a window that no layer has."""
    if not window_keys(config, 0):
        return {}
    pattern = config.values.get("sliding_window_pattern")
    if isinstance(pattern, str):
        period = len(pattern)
        if config.values.get("layer_types") is None and pattern != "L" * (period - 1) + "G":
            raise config.error("sliding_window_pattern", f"is {brief(pattern)}", "L and at last G, or layer_types")
        config = config.replaced({**config.values, "sliding_window_pattern": period})
    keys = layer_window_keys(config, PERIOD)
    if not keys:
        raise config.error("sliding_window", "is not null, though layer_types has none", "null")
    return keys


ARCH = Architecture(
    name="exaone4",
    hparams=hparams,
    keys=frozenset({PATTERN}),
    tensors=tensors,
    build=build,
    classes={"Exaone4ForCausalLM": config_keys},
    names=names.ATTENTION | names.QK_NORMS | names.BEHIND | names.FFN,
    ropes=("default", "linear", "yarn", "llama3"),
    writable=False,
)
