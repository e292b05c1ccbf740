"""LFM2: most layers have a short convolution in place of attention, whose input and output are gated."""

from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.conversion import without_middle
from octavo.models.shared.decoder import Attention, ByLayer, CustomPart, Decoder, FeedForward, LayerPart
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS, OR_NONE, MetadataReader, brief
from octavo.models.shared.states import Hybrid, taps_of
from octavo.models.shared.weights import Tensors, Weights, matrix

NORM = "token_embd_norm"
"""The last norm, which GGUF calls that of the embedding."""
MOST_TAPS = 64
TAPS = Key("taps", "shortconv.l_cache", "conv_L_cache", default=0, usual=3, least=2, limit=MOST_TAPS)


@dataclass(frozen=True, kw_only=True)
class Lfm2(Hybrid):
    """taps of a convolution: values of a channel that it sees."""

    taps: int = 0

    @property
    def layer_state(self) -> int:
        return (self.taps - 1) * self.n_embd


def complete(r: MetadataReader, hp: Lfm2) -> Lfm2:
    """Layers without heads of keys have a convolution. If there is a window, all layers of attention have it."""
    heads = r.sizes(KV_HEADS, hp.n_layer, some=True) if r.has(KV_HEADS) else (hp.n_head_kv,) * hp.n_layer
    attends = tuple(n > 0 for n in heads)
    return replace(hp, windowed=attends if hp.n_window else (), attends=attends)


def convolution_tensors(hp: Lfm2, layer: int) -> Tensors:
    shapes = {"shortconv.in_proj": (3 * hp.n_embd, hp.n_embd), "shortconv.out_proj": (hp.n_embd, hp.n_embd)}
    return layers.products(shapes) | {"shortconv.conv.weight": matrix(hp.n_embd, hp.taps)}


def convolution(g: GraphBuilder, hp: Lfm2, b: Weights, h: Node, layer: int) -> Node:
    gate, out_gate, x = g.columns(layers.linear(g, b, "shortconv.in_proj", h), *[hp.n_embd] * 3)
    y = g.causal_conv(g.mul(gate, x), taps_of(b["shortconv.conv"]), layer)
    return layers.linear(g, b, "shortconv.out_proj", g.mul(out_gate, y))


def decoder(feed_forward: LayerPart) -> Decoder:
    convolves = CustomPart(convolution_tensors, convolution)
    mixer = ByLayer(lambda hp, i: hp.attends[i], Attention(qk_norm="heads"), convolves)
    return Decoder(mixer=mixer, feed_forward=feed_forward, output_norm=NORM)


def config_keys(config: Config) -> Keys:
    width = config.size("intermediate_size", LIMITS[FF_WIDTH])
    if config.flag("block_auto_adjust_ff_dim", True):
        multiple = config.size("block_multiple_of", LIMITS[FF_WIDTH], 256)
        width = int(config.real("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        width = -(-width // multiple) * multiple
    return shared_keys(config) | {FF_WIDTH: width}


def shared_keys(config: Config) -> Keys:
    """What LFM2 and its models with experts say alike."""
    heads = config.n_head_kv
    base = {} if "rope_theta" in {**config.values, **rope_parameters(config)} else {"rope.freq_base": 1e6}
    counts = [heads if attends else 0 for attends in _attends(config)]
    return {KV_HEADS: counts, **base}


def _attends(config: Config) -> list[bool]:
    """Whether each layer has attention: as the kinds of layers say, or the numbers of those with attention."""
    n, kinds, numbers = config.n_layer, "layer_types", "full_attn_idxs"
    if (found := config.values.get(kinds)) is not None:
        if not isinstance(found, list) or len(found) != n or set(map(str, found)) - {"conv", "full_attention"}:
            raise config.error(kinds, f"is {brief(found)}", f"{n} of conv, full_attention")
        return [kind == "full_attention" for kind in found]
    found = config.values.get(numbers)
    if not isinstance(found, list | None) or any(type(i) is not int or not 0 <= i < n for i in found or ()):
        raise config.error(numbers, f"is {brief(found)}", f"numbers of layers, 0 to {n - 1}")
    return [found is None or i in found for i in range(n)]


def converted(name: str, tensor: LazyTensor, hp: Lfm2) -> LazyTensor:
    return without_middle(tensor) if name.endswith("shortconv.conv.weight") and len(tensor.shape) == 3 else tensor


NAMES = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    **{module: names.ATTENTION[module] for module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
}
OUTER = {
    "embed_tokens.weight": "token_embd.weight", "embedding_norm.weight": f"{NORM}.weight",
    "lm_head.weight": "output.weight",
}
WORDS = {"norm_eps": "rms_norm_eps", "block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}

ARCH = Architecture(
    name="lfm2",
    network=decoder(FeedForward()),
    keys=(TAPS,),
    sizes=Sizes(kind=Lfm2, complete=complete, differs={KV_HEADS: OR_NONE}),
    classes={"Lfm2ForCausalLM": config_keys},
    only={"conv_bias": False},
    names=NAMES,
    outer=OUTER,
    key_aliases=WORDS,
    layout=TensorLayout(converted=converted),
    tied=True,
)
