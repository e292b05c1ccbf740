"""K-EXAONE: norms of q and k, rope only with a window if any layer has one, DeepSeek's experts chosen by sigmoids."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import exaone4
from octavo.models.dense.exaone4 import PERIOD
from octavo.models.shared import layers, names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import NEXTN, HyperparamReader, read_shared
from octavo.models.shared.routed import SIGMOID, Routed
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import PATTERN, read_windowed


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, has_experts=True)
    return hp.extended(Routed, **routed.read(r, hp, SIGMOID), windowed=read_windowed(r, hp, PERIOD))


def tensors(hp: Routed) -> Tensors:
    attention = layers.attention_tensors(hp, qk_norm=True)
    return layers.model_tensors(hp, lambda i: attention | routed.feed_forward_tensors(hp, i))


def build(g: GraphBuilder, hp: Routed, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.normed_qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        if hp.n_window is None or hp.windowed[i]:
            q, k = rope(q), rope(k)
        h = g.attention(q, k, v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, routed.feed_forward(g, hp, b, g.rms_norm(x, b["ffn_norm"], hp.eps), i))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    keys = routed.config_keys(config, SIGMOID, normalized=True) | routed.group_keys(config)
    return keys | exaone4.config_keys(config)


ARCH = Architecture(
    name="exaone-moe",
    hparams=hparams,
    keys=routed.KEYS | {PATTERN, NEXTN},
    tensors=tensors,
    build=build,
    classes={"ExaoneMoeForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | names.ROUTED | {
        "mlp.e_score_correction_bias": "exp_probs_b.bias",
    },
    key_aliases={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
    ropes=("default", "linear", "yarn", "llama3"),
    unused=("mtp.",),
    writable=False,
)
