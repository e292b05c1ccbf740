"""OLMo 2 and 3: norms behind attention and feed-forward only, q and k normed as whole rows; windows in OLMo 3."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, local_rope
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.rope import Rope
from octavo.models.shared.weights import Tensors, Weights, vector
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed

PERIOD = 4
"""The last of so many layers has no window, where a file with a window does not say which ones have."""
YARN_FACTOR = "rope.scaling.yarn_attn_factor"


@dataclass(frozen=True, kw_only=True)
class Olmo2(Hyperparams):
    """rope_local is that of layers with a window, which is never stretched."""

    rope_local: Rope


def hparams(r: HyperparamReader) -> Olmo2:
    hp = read_shared(r, has_experts=False)
    usual = 1 + 0.1 * math.log(max(1.0, hp.rope.factor))
    if not math.isclose(factor := r.real(YARN_FACTOR, usual), usual, rel_tol=1e-5):
        raise r.error(YARN_FACTOR, f"is {factor:g}", f"{usual:g}, which is yarn's own")
    rope_local = Rope(hp.rope.dims, r.real("rope.freq_base_swa", hp.rope.base, 1.0), interleaved=False)
    return hp.extended(Olmo2, rope_local=rope_local, windowed=read_windowed(r, hp, PERIOD))


def tensors(hp: Olmo2) -> Tensors:
    block = layers.attention_tensors(hp) | layers.ffn_tensors(hp)
    del block["attn_norm.weight"], block["ffn_norm.weight"]
    norms = {f"{part}_norm.weight": vector(hp.n_embd) for part in ("post_attention", "post_ffw")}
    return layers.model_tensors(hp, block | layers.row_norm_tensors(hp) | norms)


def build(g: GraphBuilder, hp: Olmo2, w: Weights) -> Node:
    rope_global, rope_local = layers.rotary(g, hp.rope, w), layers.rotary(g, hp.rope_local, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        rope = rope_local if hp.windowed[i] else rope_global
        q, k, v = layers.qkv_of_rows(g, hp, b, x)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        x = g.add(x, g.rms_norm(layers.linear(g, b, "attn_output", h), b["post_attention_norm"], hp.eps))
        x = g.add(x, g.rms_norm(layers.ffn(g, b, x), b["post_ffw_norm"], hp.eps))
    return layers.logits(g, hp, w, x)


def olmo3(config: Config) -> Keys:
    """The windows. Raises ModelError for layers of a window whose rope is not that of the others, unstretched."""
    if (local := local_rope(config)) is None:
        return layer_window_keys(config, PERIOD)
    return layer_window_keys(config, PERIOD) | {"rope.freq_base_swa": config.real("rope_theta", 10000.0, of=local)}


ARCH = Architecture(
    name="olmo2",
    hparams=hparams,
    keys=frozenset({PATTERN, "rope.freq_base_swa", YARN_FACTOR}),
    tensors=tensors,
    build=build,
    classes={"Olmo2ForCausalLM": lambda config: {}, "Olmo3ForCausalLM": olmo3},
    names=names.ATTENTION | names.QK_NORMS | names.BEHIND | names.FFN,
    writable=False,
)
