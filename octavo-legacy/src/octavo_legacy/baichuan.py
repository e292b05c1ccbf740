"""Baichuan 1 and 2: Llama, whose larger models have attention that falls with the distance (ALiBi) in place of rope."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.remaking import parted_qkv
from octavo.models.shared.weights import Tensors, Weights

MOST, USUAL = "attention.max_alibi_bias", 8.0
BY_LAYERS = {32: 0.0, 40: USUAL}
"""What slopes of heads are made of, by the layers of the published models: files of other converters don't say."""
SECOND_VOCABULARY = 125696
"""Tokens of Baichuan 2, in whose checkpoints rows of the output matrix have any length, and are to have one of 1."""


@dataclass(frozen=True, kw_only=True)
class Baichuan(Hyperparams):
    """What the slopes of heads are made of, 0 where there is rope."""

    alibi: float


def hparams(r: HyperparamReader) -> Baichuan:
    hp = read_shared(r, interleaved=True, has_experts=False)
    if not r.has(MOST) and hp.n_layer not in BY_LAYERS:
        problem = f"{hp.n_layer} does not tell whether there is rope, and there is no {r.key(MOST)}"
        raise r.error("block_count", problem, "32 (rope) or 40 (ALiBi)")
    return hp.extended(Baichuan, alibi=(r.positive(MOST) or 0.0) if r.has(MOST) else BY_LAYERS[hp.n_layer])


def tensors(hp: Baichuan) -> Tensors:
    return layers.model_tensors(hp, layers.attention_tensors(hp) | layers.ffn_tensors(hp))


def build(g: GraphBuilder, hp: Baichuan, w: Weights) -> Node:
    rope: layers.RotaryFn = (lambda x: x) if hp.alibi else layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale, alibi=hp.alibi)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Models with rope say how many positions there are, the others how long a text they were made for."""
    placed = config.values.get("max_position_embeddings") is not None
    length = config.size("max_position_embeddings" if placed else "model_max_length", LIMITS["context_length"])
    return {"context_length": length, MOST: 0.0 if placed else USUAL}


def unit_output(config: Config) -> int | None:
    return 1 if config.values.get("vocab_size") == SECOND_VOCABULARY else None


ARCH = Architecture(
    name="baichuan",
    hparams=hparams,
    keys=frozenset({MOST}),
    tensors=tensors,
    build=build,
    classes={"BaichuanForCausalLM": config_keys, "BaiChuanForCausalLM": config_keys},
    names=names.LLAMA | {"self_attn.W_pack": "attn_q attn_k attn_v"},
    remade=partial(parted_qkv, turned=True),
    unwritten_classes=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    unit_output=unit_output,
    ropes=("default", "linear"),
    reordered=False,
    writable=False,
)
