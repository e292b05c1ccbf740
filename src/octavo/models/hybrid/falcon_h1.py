"""Falcon-H1: attention and a scan of Mamba-2 side by side in each layer, and numbers that weights are multiplied by."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from octavo.formats.spec import F32
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.hybrid.granitehybrid import WORDS
from octavo.models.shared import layers, names, ssd
from octavo.models.shared.architecture import Architecture, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder, FeedForward, NormNames
from octavo.models.shared.reader import MetadataReader, brief
from octavo.models.shared.ssd import INNER, Mamba2
from octavo.models.shared.weights import Tensors, Weights

SCAN_NORM, NORM = "ssm_norm.weight", "ffn_norm."
"""The latter without ".weight", as converters write it."""


def complete(r: MetadataReader, hp: Mamba2) -> Mamba2:
    ssd.check(r, hp)
    all_of_them = (True,) * hp.n_layer
    return replace(hp, attends=all_of_them, scans=all_of_them)


class FalconDecoder(Decoder):
    """Attention and a scan are given the same."""

    def layer_tensors(self, hp: Mamba2, layer: int) -> Tensors:
        scan = ssd.tensors(hp, layer)
        scan[SCAN_NORM] = replace(scan[SCAN_NORM], optional=True)
        return super().layer_tensors(hp, layer) | scan

    def build_layer(self, g: GraphBuilder, hp: Mamba2, b: Weights, x: Node, i: int) -> Node:
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        x = g.add(g.add(x, self.mixer.build(g, hp, b, h, i)), ssd.scan(g, hp, b, h, i))
        return g.add(x, layers.ffn(g, b, g.rms_norm(x, b[NORM], hp.eps)))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a norm before the scan's gate."""
    if config.flag("mamba_rms_norm", False) and config.flag("mamba_norm_before_gate", True):
        raise config.error("mamba_norm_before_gate", "is true", "false where there is a norm")
    expanded = config.width * config.size("mamba_expand", 64, 2)
    width = config.size("mamba_d_ssm", ssd.MOST, expanded)
    return ssd.config_keys(ssd.with_head_size(config, WORDS, width), WORDS)


def factors(config: Config) -> Mapping[str, float | F32]:
    """What tensors are multiplied by, as llama.cpp's converter does, so that the graph has nothing to multiply.

    A tied embedding is that of tokens; the last norm makes up for what logits want instead.
    """

    def number(word: str) -> float:
        return config.real(word, 1.0)

    def several(word: str, count: int) -> list[float]:
        found = config.values.get(word)
        found = [1.0] * count if found is None else found
        fits = isinstance(found, list) and len(found) == count
        if not fits or not all(type(x) in (int, float) and math.isfinite(x) and x != 0 for x in found):
            raise config.error(word, f"is {brief(found)}", f"{count} numbers other than 0")
        return found

    inner = config_keys(config)[INNER]
    of_groups, heads = (math.prod(config.size(WORDS[name], ssd.MOST) for name in each)
                        for each in (("scan_groups", "keys"), ("heads",)))
    given, taken = number("attention_in_multiplier"), number("attention_out_multiplier")
    gate, down = several("mlp_multipliers", 2)
    parts = several("ssm_multipliers", 5)  # of the gate, x, B, C and the steps
    rows = np.repeat(parts, [inner, inner, of_groups, of_groups, heads])
    embedding, output = number("embedding_multiplier"), number("lm_head_multiplier")
    key = number("key_multiplier")
    tied = config.flag("tie_word_embeddings", False)
    return {
        "token_embd.weight": embedding, **({"output_norm.weight": output / embedding} if tied else {}),
        "output.weight": output, "attn_q.weight": given, "attn_k.weight": given * key, "attn_k.bias": key,
        "attn_v.weight": given, "attn_output.weight": taken, "attn_output.bias": taken,
        "ssm_in.weight": (rows * number("ssm_in_multiplier")).astype(np.float32),
        "ssm_out.weight": number("ssm_out_multiplier"),
        "ffn_gate.weight": gate, "ffn_gate.bias": gate, "ffn_down.weight": down, "ffn_down.bias": down,
    }


ARCH = Architecture(
    name="falcon-h1",
    network=FalconDecoder(
        mixer=Attention(output_bias=None), feed_forward=FeedForward(bias=None), norms=NormNames(feed_forward=NORM)
    ),
    keys=ssd.keys_of(WORDS),
    sizes=Sizes(kind=Mamba2, complete=complete),
    only={"mamba_proj_bias": False, "projectors_bias": False},
    classes={"FalconH1ForCausalLM": config_keys},
    names=names.ATTENTION | ssd.names("mamba.") | names.ffn("feed_forward") | {
        "input_layernorm": "attn_norm", "pre_ff_layernorm.weight": "ffn_norm",
    },
    outer=names.outer("embed_tokens", "final_layernorm"),
    layout=TensorLayout(converted=ssd.converted, factors=factors),
    ropes=("default", "linear", "yarn", "llama3"),
)
