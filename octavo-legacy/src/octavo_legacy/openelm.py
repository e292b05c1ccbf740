"""OpenELM: Qwen 3 whose layers have other numbers of heads and other widths; q, k and v in one matrix."""

from dataclasses import dataclass, replace
from typing import Any

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import ANY, FF_WIDTH, HEADS, KV_HEADS, LIMITS, MetadataReader, brief
from octavo.models.shared.weights import Tensors, Weights


@dataclass(frozen=True, kw_only=True)
class OpenElm(Hyperparams):
    """Of each layer heads of queries and of keys, and the width of the feed-forward."""

    heads: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()

    def kv_heads(self, layer: int) -> tuple[int, int]:
        return self.keys[layer], self.head_dim

    def at(self, layer: int) -> Hyperparams:
        """The sizes of a layer."""
        return replace(self, n_head=self.heads[layer], n_head_kv=self.keys[layer], n_ff=self.widths[layer])


def complete(r: MetadataReader, hp: OpenElm) -> OpenElm:
    heads, keys = r.sizes(HEADS, hp.n_layer), r.sizes(KV_HEADS, hp.n_layer)
    for layer, (n, n_kv) in enumerate(zip(heads, keys, strict=True)):
        if n % n_kv:
            raise r.error(KV_HEADS, f"{n_kv} of layer {layer} does not divide its {n} heads")
    return replace(hp, heads=heads, keys=keys, widths=r.sizes(FF_WIDTH, hp.n_layer))


class ElmDecoder(Decoder):
    """Layers of sizes of their own."""

    def layer_tensors(self, hp: OpenElm, layer: int) -> Tensors:
        return super().layer_tensors(hp.at(layer), layer)

    def build_layer(self, g: GraphBuilder, hp: OpenElm, b: Weights, x: Node, i: int) -> Node:
        return super().build_layer(g, hp.at(i), b, x, i)


def config_keys(config: Config) -> Keys:
    width = config.width
    divisor = config.size("ffn_dim_divisor", LIMITS[FF_WIDTH], 256)
    times = _by_layer(config, "ffn_multipliers", (int, float))
    head = config.size("head_dim", LIMITS["attention.key_length"])
    return {
        HEADS: _by_layer(config, "num_query_heads", (int,)), KV_HEADS: _by_layer(config, "num_kv_heads", (int,)),
        FF_WIDTH: [_rounded(n * width, divisor) for n in times],
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), head),
    }


def _by_layer(config: Config, word: str, kinds: tuple[type, ...]) -> list[Any]:
    n, found = config.n_layer, config.values.get(word)
    if not isinstance(found, list) or len(found) != n or not all(type(x) in kinds and x > 0 for x in found):
        raise config.error(word, f"is {brief(found)}", f"{n} numbers over 0, one a layer")
    return found


def _rounded(width: float, divisor: int) -> int:
    """The nearest multiple, but not less than nine tenths."""
    nearest = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * width else nearest


ARCH = Architecture(
    name="openelm",
    network=ElmDecoder(mixer=Attention(joined=True, bias=False, qk_norm="heads")),
    sizes=Sizes(kind=OpenElm, complete=complete, differs={HEADS: ANY, KV_HEADS: ANY, FF_WIDTH: ANY}),
    only={
        "ffn_with_glu": True, "normalize_qk_projections": True, "share_input_output_layers": True,
        "activation_fn_name": "swish",
    },
    classes={"OpenELMForCausalLM": config_keys},
    base="transformer.",
    names={
        "attn_norm": "attn_norm", "attn.qkv_proj": "attn_qkv", "attn.q_norm": "attn_q_norm",
        "attn.k_norm": "attn_k_norm", "attn.out_proj": "attn_output", "ffn_norm": "ffn_norm",
        "ffn.proj_1": "ffn_gate ffn_up", "ffn.proj_2": "ffn_down",
    },
    outer=names.outer("token_embeddings"),
    key_aliases={
        "model_dim": "hidden_size", "num_transformer_layers": "num_hidden_layers",
        "max_context_length": "max_position_embeddings", "rope_freq_constant": "rope_theta",
    },
    ropes=("default",),
    tied=True,
)
