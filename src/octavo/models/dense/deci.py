"""DeciLM and Nemotron made of Llama 3: layers of other heads of keys and widths, without one of their parts or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, matrix, vector, with_scales

HEADS, KV_HEADS, WIDTH = "attention.head_count", "attention.head_count_kv", "feed_forward_length"
MULTIPLE = 256
"""What widths are rounded up to a multiple of, which config.json says as two thirds of so many times the model's."""


@dataclass(frozen=True, kw_only=True)
class Deci(Hyperparams):
    """What each layer has.

    heads   of queries, 0 where it has no attention
    keys    heads of keys, 0 where it has no attention, or a matrix in place of it
    widths  of the feed-forward, 0 where it has none
    """

    heads: tuple[int, ...]
    keys: tuple[int, ...]
    widths: tuple[int, ...]

    def kv_heads(self, layer: int) -> tuple[int, int]:
        return self.keys[layer], self.head_dim

    def rope_heads(self, layer: int) -> dict[str, int]:
        return {"attn_q": self.heads[layer], "attn_k": self.keys[layer]}

    def at(self, layer: int) -> Hyperparams:
        """The sizes of a layer."""
        return replace(self, n_head_kv=self.keys[layer], n_ff=self.widths[layer])


def hparams(r: HyperparamReader) -> Deci:
    hp = read_shared(r, interleaved=True, has_experts=False, by_layer=True, some_lack=True)
    heads = r.sizes(HEADS, hp.n_layer, some=True)
    keys = r.sizes(KV_HEADS, hp.n_layer, some=True) if r.has(KV_HEADS) else heads
    for layer, (n, n_kv) in enumerate(zip(heads, keys, strict=True)):
        if n_kv and (not n or n % n_kv):
            raise r.error(KV_HEADS, f"{n_kv} of layer {layer} does not divide its {n} heads")
    return hp.extended(Deci, heads=heads, keys=keys, widths=r.sizes(WIDTH, hp.n_layer, some=True))


def tensors(hp: Deci) -> Tensors:
    return layers.model_tensors(hp, lambda i: _attention_tensors(hp, i) | _feed_forward_tensors(hp, i))


def _attention_tensors(hp: Deci, layer: int) -> Tensors:
    if hp.keys[layer]:
        return layers.attention_tensors(hp.at(layer), output_bias=True)
    if not hp.heads[layer]:
        return {}
    norm = {"attn_norm.weight": vector(hp.n_embd), "attn_output.bias": vector(hp.n_embd, optional=True)}
    return norm | with_scales({"attn_output.weight": matrix(hp.n_embd, hp.n_embd)})


def _feed_forward_tensors(hp: Deci, layer: int) -> Tensors:
    return layers.ffn_tensors(hp.at(layer), bias=True) if hp.widths[layer] else {}


def build(g: GraphBuilder, hp: Deci, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        if hp.heads[i]:
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            if hp.keys[i]:
                q, k, v = layers.qkv(g, hp.at(i), b, h)
                h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
            x = g.add(x, layers.linear(g, b, "attn_output", h))
        if hp.widths[i]:
            x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """What each layer has, by `block_configs`, or heads of keys alone by `num_key_value_heads_per_layer`.

    Raises ModelError for a part of a layer that is neither as usual nor left out, nor a matrix in place of attention.
    """
    n = config.size("num_hidden_layers", LIMITS["block_count"])
    heads = config.size("num_attention_heads", LIMITS[HEADS])
    blocks, keys = config.values.get("block_configs"), config.values.get("num_key_value_heads_per_layer")
    if blocks is None:
        if keys is not None and not (isinstance(keys, list) and len(keys) == n and all(type(k) is int for k in keys)):
            raise config.error("num_key_value_heads_per_layer", f"is {brief(keys)}", f"{n} numbers of heads")
        return {} if keys is None else {KV_HEADS: keys}
    if not isinstance(blocks, list) or len(blocks) != n:
        raise config.error("block_configs", "is no list of all layers", f"{n} objects")
    found = [(*_heads(config, block, i, heads), _width(config, block, i)) for i, block in enumerate(blocks)]
    return {field: [layer[which] for layer in found] for which, field in enumerate((HEADS, KV_HEADS, WIDTH))}


def _part(config: Config, block: Any, layer: int, name: str, sizes: str) -> Mapping[str, Any]:
    """A part of a layer, which may have a size and be left out or replaced, and nothing else."""
    part = block.get(name) if isinstance(block, dict) else None
    if not isinstance(part, dict):
        raise config.error(f"block_configs[{layer}].{name}", "is missing or no object")
    for key, value in part.items():
        if key not in (sizes, "no_op", "replace_with_linear") and value not in (None, False):
            raise config.error(f"block_configs[{layer}].{name}.{key}", f"is {brief(value)}", "null or false")
    return part


def _heads(config: Config, block: Any, layer: int, heads: int) -> tuple[int, int]:
    """Heads of queries and of keys."""
    part = _part(config, block, layer, "attention", "n_heads_in_group")
    if part.get("no_op"):
        return 0, 0
    if part.get("replace_with_linear"):
        return heads, 0
    group = part.get("n_heads_in_group")
    if type(group) is not int or not 1 <= group <= heads or heads % group:
        problem = f"is {brief(group)}"
        raise config.error(f"block_configs[{layer}].attention.n_heads_in_group", problem, f"a divisor of {heads} heads")
    return heads, heads // group


def _width(config: Config, block: Any, layer: int) -> int:
    part = _part(config, block, layer, "ffn", "ffn_mult")
    if part.get("no_op"):
        return 0
    if part.get("replace_with_linear"):
        raise config.error(f"block_configs[{layer}].ffn.replace_with_linear", "is true", "false")
    times = Config(part, config.file).real("ffn_mult")
    width = int(2 * times * config.size("hidden_size", LIMITS["embedding_length"]) / 3)
    return -(-width // MULTIPLE) * MULTIPLE


def why_unwritten(hp: Deci) -> str:
    """A matrix in place of attention has a name of its own in folders."""
    layers_with = [i for i, (heads, keys) in enumerate(zip(hp.heads, hp.keys, strict=True)) if heads and not keys]
    return f"layer {layers_with[0]} has a matrix in place of attention" if layers_with else ""


ARCH = Architecture(
    name="deci",
    hparams=hparams,
    tensors=tensors,
    build=build,
    classes={"DeciLMForCausalLM": config_keys},
    names=names.LLAMA | {"self_attn.linear_attn": "attn_output"},
    why_unwritten=why_unwritten,
    ropes=("default", "linear", "llama3"),
    writable=False,
)
