"""Command R and Aya: attention and feed-forward side by side behind one layer norm, logits that are scaled."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import cohere2
from octavo.models.dense.cohere2 import Cohere2
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, HyperparamReader, read_shared
from octavo.models.shared.weights import Weights


def hparams(r: HyperparamReader) -> Cohere2:
    hp = read_shared(r, interleaved=True, has_experts=False, eps=LAYER_NORM_EPS)
    return hp.extended(Cohere2, logit_scale=r.positive("logit_scale") or 1.0)


def build(g: GraphBuilder, hp: Cohere2, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = layers.layer_norm(g, hp, b, "attn_norm", x)
        q, k, v = layers.qkv(g, hp, b, h)
        y = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", y))
        x = g.add(x, layers.ffn(g, b, h))
    return layers.scaled(g, layers.logits(g, hp, w, x, around_mean=True), hp.logit_scale)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for norms of q and k, as Command R+ has one for each head, and for biases."""
    config.only_flags({"use_qk_norm": False, "attention_bias": False})
    return layer_norm_keys(config, "layer_norm_eps") | {"logit_scale": config.real("logit_scale", 0.0625)}


ARCH = Architecture(
    name="command-r",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, "logit_scale"}),
    tensors=cohere2.tensors,
    build=build,
    classes={"CohereForCausalLM": config_keys},
    names=cohere2.ARCH.names,
    ropes=("default", "linear"),
    tied=True,
    reordered=False,
    writable=False,
)
