"""DeciLM and Nemotron made of Llama 3: layers of other heads of keys and widths, without one of their parts or both."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Sizes, Unwritten
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder, FeedForward, NormNames
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import ANY_OR_NONE, FF_WIDTH, HEADS, KV_HEADS, OR_NONE, MetadataReader, brief
from octavo.models.shared.weights import Tensors, Weights

MULTIPLE = 256
"""What widths are rounded up to a multiple of, which config.json says as two thirds of a multiple of the model's."""


@dataclass(frozen=True, kw_only=True)
class Deci(Hyperparams):
    """What each layer has.

    heads   of queries, 0 where it has no attention
    keys    heads of keys, 0 where it has no attention, or a matrix in place of it
    widths  of the feed-forward, 0 where it has none
    """

    heads: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()

    def kv_heads(self, layer: int) -> tuple[int, int]:
        return self.keys[layer], self.head_dim

    def rope_heads(self, layer: int) -> dict[str, int]:
        return {"attn_q": self.heads[layer], "attn_k": self.keys[layer]}

    def at(self, layer: int) -> Hyperparams:
        """The sizes of a layer."""
        return replace(self, n_head_kv=self.keys[layer], n_ff=self.widths[layer])


def complete(r: MetadataReader, hp: Deci) -> Deci:
    heads = r.sizes(HEADS, hp.n_layer, some=True)
    keys = r.sizes(KV_HEADS, hp.n_layer, some=True) if r.has(KV_HEADS) else heads
    for layer, (n, n_kv) in enumerate(zip(heads, keys, strict=True)):
        if n_kv and (not n or n % n_kv):
            raise r.error(KV_HEADS, f"{n_kv} of layer {layer} does not divide its {n} heads")
    return replace(hp, heads=heads, keys=keys, widths=r.sizes(FF_WIDTH, hp.n_layer, some=True))


ATTENTION, FEED_FORWARD, NORMS = Attention(output_bias=None), FeedForward(bias=None), NormNames()


class DeciDecoder(Decoder):
    """Layers have neither the norm nor the tensors of a part that they lack."""

    def layer_tensors(self, hp: Deci, layer: int) -> Tensors:
        at, found = hp.at(layer), Tensors()
        if hp.heads[layer]:
            found |= layers.norms(hp.n_embd, NORMS.mixer) | (ATTENTION.tensors(at, layer) if hp.keys[layer] else
                layers.products({"attn_output": (hp.n_embd, hp.n_embd)}, bias=None))
        if hp.widths[layer]:
            found |= layers.norms(hp.n_embd, NORMS.feed_forward) | FEED_FORWARD.tensors(at, layer)
        return found

    def build_layer(self, g: GraphBuilder, hp: Deci, b: Weights, x: Node, i: int) -> Node:
        at = hp.at(i)
        if hp.heads[i]:
            h = layers.norm(g, hp, b, NORMS.mixer, x)
            x = g.add(x, ATTENTION.build(g, at, b, h, i) if hp.keys[i] else layers.linear(g, b, "attn_output", h))
        if hp.widths[i]:
            x = g.add(x, FEED_FORWARD.build(g, at, b, layers.norm(g, hp, b, NORMS.feed_forward, x), i))
        return x


def config_keys(config: Config) -> Keys:
    """What each layer has, by `block_configs`, or heads of keys alone by `num_key_value_heads_per_layer`.

    Raises ModelError for a part of a layer that is neither as usual nor left out, nor a matrix in place of attention.
    """
    n = config.n_layer
    heads = config.n_head
    blocks, keys = config.values.get("block_configs"), config.values.get("num_key_value_heads_per_layer")
    if blocks is None:
        if keys is not None and not (isinstance(keys, list) and len(keys) == n and all(type(k) is int for k in keys)):
            raise config.error("num_key_value_heads_per_layer", f"is {brief(keys)}", f"{n} numbers of heads")
        return {} if keys is None else {KV_HEADS: keys}
    if not isinstance(blocks, list) or len(blocks) != n:
        raise config.error("block_configs", "is not a list of all layers", f"{n} objects")
    found = [(*_heads(config, block, i, heads), _width(config, block, i)) for i, block in enumerate(blocks)]
    return {field: [layer[which] for layer in found] for which, field in enumerate((HEADS, KV_HEADS, FF_WIDTH))}


def _part(config: Config, block: Any, layer: int, name: str, sizes: str) -> Mapping[str, Any]:
    """A part of a layer, which may have a size and be left out or replaced, and nothing else."""
    part = block.get(name) if isinstance(block, dict) else None
    if not isinstance(part, dict):
        raise config.error(f"block_configs[{layer}].{name}", "is missing or not an object")
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
    width = int(2 * times * config.width / 3)
    return -(-width // MULTIPLE) * MULTIPLE


def why_unwritten(hp: Deci) -> str:
    """A matrix in place of attention has a name of its own in folders."""
    layers_with = [i for i, (heads, keys) in enumerate(zip(hp.heads, hp.keys, strict=True)) if heads and not keys]
    return f"layer {layers_with[0]} has a matrix in place of attention" if layers_with else ""


ARCH = Architecture(
    name="deci",
    network=DeciDecoder(),
    sizes=Sizes(
        kind=Deci, complete=complete, differs={HEADS: OR_NONE, KV_HEADS: ANY_OR_NONE, FF_WIDTH: ANY_OR_NONE}
    ),
    interleaved=True,
    classes={"DeciLMForCausalLM": config_keys},
    names=names.LLAMA | {"self_attn.linear_attn": "attn_output"},
    unwritten=Unwritten(why=why_unwritten),
    ropes=("default", "linear", "llama3"),
)
