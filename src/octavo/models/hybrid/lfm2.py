"""LFM2: most layers have a short convolution in place of attention, whose input and output are gated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, rope_parameters
from octavo.models.shared.hparams import LIMITS, HyperparamReader, read_shared
from octavo.models.shared.states import Hybrid, taps_of, without_middle
from octavo.models.shared.weights import Tensors, Weights, matrix, vector, with_scales

WIDTH, KV_HEADS = "shortconv.l_cache", "attention.head_count_kv"
NORM = "token_embd_norm.weight"
"""The last norm, which GGUF calls that of the embedding."""
MOST_TAPS = 64
FeedForward = Callable[[GraphBuilder, Weights, Node, int], Node]


@dataclass(frozen=True, kw_only=True)
class Lfm2(Hybrid):
    """taps of a convolution: values of a channel that it sees."""

    taps: int

    @property
    def layer_state(self) -> int:
        return (self.taps - 1) * self.n_embd


def hparams(r: HyperparamReader, *, has_experts: bool = False) -> Lfm2:
    """Layers without heads of keys have a convolution. If there is a window, all layers of attention have it."""
    hp = read_shared(r, has_experts=has_experts, some_attend=True)
    heads = r.metadata.get_ints(r.key(KV_HEADS)).tolist() if r.is_array(KV_HEADS) else [hp.n_head_kv] * hp.n_layer
    if len(heads) != hp.n_layer:
        raise r.error(KV_HEADS, f"has {len(heads)} values", f"one for each of {hp.n_layer} layers")
    taps = r.whole(WIDTH, 0, MOST_TAPS)
    if taps < 2:
        raise r.error(WIDTH, f"{taps} is out of range", f"2 to {MOST_TAPS}")
    attends = tuple(n > 0 for n in heads)
    return replace(hp, windowed=attends if hp.n_window else ()).extended(Lfm2, attends=attends, taps=taps)


def mixer_tensors(hp: Lfm2, layer: int) -> Tensors:
    """What a layer has before its feed-forward."""
    if hp.attends[layer]:
        return layers.attention_tensors(hp, qk_norm=True)
    products = {
        "shortconv.in_proj.weight": matrix(3 * hp.n_embd, hp.n_embd),
        "shortconv.out_proj.weight": matrix(hp.n_embd, hp.n_embd),
    }
    conv = {"shortconv.conv.weight": matrix(hp.n_embd, hp.taps)}
    return {"attn_norm.weight": vector(hp.n_embd), **conv, **with_scales(products)}


def tensors(hp: Lfm2) -> Tensors:
    return model_tensors(hp, lambda i: layers.ffn_tensors(hp))


def model_tensors(hp: Lfm2, feed_forward: Callable[[int], Tensors]) -> Tensors:
    """A model's tensors, with these of the feed-forward of a layer."""
    found = layers.model_tensors(hp, lambda i: mixer_tensors(hp, i) | feed_forward(i))
    return {NORM if name == "output_norm.weight" else name: shape for name, shape in found.items()}


def build(g: GraphBuilder, hp: Lfm2, w: Weights) -> Node:
    return graph(g, hp, w, lambda g, b, h, i: layers.ffn(g, b, h))


def graph(g: GraphBuilder, hp: Lfm2, w: Weights, feed_forward: FeedForward) -> Node:
    """The graph of a model whose layers have these feed-forwards of weights, tokens and the layer's number."""
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        x = g.add(x, _attend(g, hp, b, h, i, rope) if hp.attends[i] else _convolve(g, hp, b, h, i))
        x = g.add(x, feed_forward(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps), i))
    return layers.logits(g, hp, w, x, norm="token_embd_norm")


def _attend(g: GraphBuilder, hp: Lfm2, b: Weights, h: Node, i: int, rope: layers.RotaryFn) -> Node:
    q, k, v = layers.normed_qkv(g, hp, b, h)
    h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale, window=hp.window(i))
    return layers.linear(g, b, "attn_output", h)


def _convolve(g: GraphBuilder, hp: Lfm2, b: Weights, h: Node, i: int) -> Node:
    gate, out_gate, x = g.columns(layers.linear(g, b, "shortconv.in_proj", h), *[hp.n_embd] * 3)
    y = g.causal_conv(g.mul(gate, x), taps_of(b["shortconv.conv"]), i)
    return layers.linear(g, b, "shortconv.out_proj", g.mul(out_gate, y))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases of convolutions, which GGUF has no tensors for."""
    width = config.size("intermediate_size", LIMITS["feed_forward_length"])
    if config.flag("block_auto_adjust_ff_dim", True):
        multiple = config.size("block_multiple_of", LIMITS["feed_forward_length"], 256)
        width = int(config.real("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        width = -(-width // multiple) * multiple
    return shared_keys(config) | {"feed_forward_length": width}


def shared_keys(config: Config) -> Keys:
    """What LFM2 and its models with experts say alike."""
    config.only_flags({"conv_bias": False})
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    heads = config.size("num_key_value_heads", LIMITS[KV_HEADS], heads)
    base = {} if "rope_theta" in {**config.values, **rope_parameters(config)} else {"rope.freq_base": 1e6}
    counts = [heads if attends else 0 for attends in _attends(config)]
    return {KV_HEADS: counts, WIDTH: config.size("conv_L_cache", MOST_TAPS, 3), **base}


def _attends(config: Config) -> list[bool]:
    """Whether each layer has attention: as the kinds of layers say, or the numbers of those with attention."""
    n, kinds, numbers = config.size("num_hidden_layers", LIMITS["block_count"]), "layer_types", "full_attn_idxs"
    if (found := config.values.get(kinds)) is not None:
        if not isinstance(found, list) or len(found) != n or set(map(str, found)) - {"conv", "full_attention"}:
            raise config.error(kinds, f"is {brief(found)}", f"{n} of conv, full_attention")
        return [kind == "full_attention" for kind in found]
    found = config.values.get(numbers)
    if not isinstance(found, list | None) or any(type(i) is not int or not 0 <= i < n for i in found or ()):
        raise config.error(numbers, f"is {brief(found)}", f"numbers of layers, 0 to {n - 1}")
    return [found is None or i in found for i in range(n)]


def remade(name: str, tensor: LazyTensor, hp: Lfm2) -> LazyTensor:
    return without_middle(tensor) if name.endswith("shortconv.conv.weight") and len(tensor.shape) == 3 else tensor


NAMES = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    **{module: names.ATTENTION[module] for module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
}
OUTER = {
    "embed_tokens.weight": "token_embd.weight", "embedding_norm.weight": NORM,
    "lm_head.weight": "output.weight",
}
WORDS = {"norm_eps": "rms_norm_eps", "block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}

ARCH = Architecture(
    name="lfm2",
    hparams=hparams,
    keys=frozenset({WIDTH}),
    tensors=tensors,
    build=build,
    classes={"Lfm2ForCausalLM": config_keys},
    names=NAMES,
    outer=OUTER,
    key_aliases=WORDS,
    remade=remade,
    tied=True,
    writable=False,
)
