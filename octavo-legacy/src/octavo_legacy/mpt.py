"""MPT: layer norms, q, k and v in one matrix, attention that falls with the distance (ALiBi) in most, GELU."""

from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Decoder, FeedForward
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS, MetadataReader
from octavo.models.shared.weights import Tensors, Weights, matrix, vector
from octavo_legacy.shared import CLIP, Clipped, ClippedAttention

HEADS_OF = {"multihead_attention": None, "multiquery_attention": 1}
"""Kinds of attention that config.json names without a number of heads of keys, and that number, None for all."""
MOST = "attention.max_alibi_bias"


@dataclass(frozen=True, kw_only=True)
class Mpt(Clipped):
    """Whether there are vectors of positions."""

    has_positions: bool = False


def complete(r: MetadataReader, hp: Mpt) -> Mpt:
    placed = "position_embd.weight" in r.shapes
    if not hp.alibi and not placed:
        raise r.error(MOST, "is 0, and there is no tensor position_embd.weight", "over 0 without vectors of positions")
    return replace(hp, has_positions=placed)


class MptDecoder(Decoder):
    """The published models have no biases; a file may have some, and vectors of positions."""

    def tensors(self, hp: Mpt) -> Tensors:
        found = super().tensors(hp) | {"output_norm.bias": vector(hp.n_embd, optional=True)}
        return found | ({"position_embd.weight": matrix(hp.n_ctx_train, hp.n_embd)} if hp.has_positions else {})

    def layer_tensors(self, hp: Mpt, layer: int) -> Tensors:
        biases = {f"{name}.bias": vector(hp.n_embd, optional=True) for name in ("attn_norm", "ffn_norm")}
        return super().layer_tensors(hp, layer) | biases

    def embedded(self, g: GraphBuilder, hp: Mpt, w: Weights) -> Node:
        return replace(DECODER, positions=True).embedded(g, hp, w) if hp.has_positions else super().embedded(g, hp, w)


DECODER = Decoder()


def config_keys(config: Config) -> Keys:
    """Raises ModelError for norms of q and k, scores of another scale, and no ALiBi."""
    attention = config.values.get("attn_config")
    if not isinstance(attention, dict):
        raise config.error("attn_config", "is missing or not an object")
    inner = Config(attention, config.file)
    inner.only({"softmax_scale": None, "prefix_lm": False, "qk_ln": False, "alibi": True})
    kind = attention.get("attn_type", "multihead_attention")
    n_kv = inner.size("kv_n_heads", config.n_head, HEADS_OF.get(str(kind)) or config.n_head)
    clip = None if attention.get("clip_qkv") is None else inner.real("clip_qkv")
    times = config.size("expansion_ratio", LIMITS[FF_WIDTH] // config.width, 4)
    return {
        MOST: inner.real("alibi_bias_max", 8.0), CLIP.field: clip, KV_HEADS: n_kv,
        FF_WIDTH: times * config.width, "rope.freq_base": None, "rope.dimension_count": None,
    }


ARCH = Architecture(
    name="mpt",
    network=MptDecoder(
        mixer=ClippedAttention(joined=True, output_bias=None, rope="none"),
        feed_forward=FeedForward(activation="gelu_erf", plain=True, bias=None), freq_factors=False,
    ),
    keys=(Key("alibi", MOST, default=0.0), CLIP),
    sizes=Sizes(kind=Mpt, complete=complete),
    layer_norms="layer_norm_epsilon",
    only={"logit_scale": None, "no_bias": True},
    classes={"MptForCausalLM": config_keys, "MPTForCausalLM": config_keys},
    base="transformer.",
    layer="blocks",
    names={
        "norm_1": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm_2": "ffn_norm",
        "ffn.up_proj": "ffn_up", "ffn.down_proj": "ffn_down",
    },
    outer=names.outer("wte", "norm_f"),
    key_aliases={
        "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
        "max_seq_len": "max_position_embeddings",
    },
    ropes=("default",),
    tied=True,
)
