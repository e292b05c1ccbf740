"""OLMo 1: Llama with layer norms that have no weights; in some q, k and v are clipped."""

import numpy as np

from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Decoder
from octavo.models.shared.reader import LAYER_NORM_EPS
from octavo.models.shared.weights import Tensors, Weights
from octavo_legacy.shared import CLIP, Clipped, ClippedAttention


class OlmoDecoder(Decoder):
    """Norms have no weights."""

    def tensors(self, hp: Clipped) -> Tensors:
        return {name: want for name, want in super().tensors(hp).items() if not name.endswith("_norm.weight")}

    def build_layer(self, g: GraphBuilder, hp: Clipped, b: Weights, x: Node, i: int) -> Node:
        x = g.add(x, self.mixer.build(g, hp, b, _normed(g, hp, b, x), i))
        return g.add(x, layers.ffn(g, b, _normed(g, hp, b, x)))

    def output(self, g: GraphBuilder, hp: Clipped, w: Weights, x: Node) -> Node:
        h = _normed(g, hp, w, g.last(x))
        return g.mul_mat(w["token_embd"], h) if w.get("output") is None else layers.linear(g, w, "output", h)


def _normed(g: GraphBuilder, hp: Clipped, w: Weights, x: Node) -> Node:
    ones = w.constant("ones", lambda: constant(np.ones(hp.n_embd, np.float32), "ones"))
    return g.layer_norm(x, ones, None, hp.eps)


def config_keys(config: Config) -> Keys:
    clip = None if config.values.get("clip_qkv") is None else config.real("clip_qkv")
    return {LAYER_NORM_EPS: 1e-5, CLIP.field: clip}


ARCH = Architecture(
    name="olmo",
    network=OlmoDecoder(mixer=ClippedAttention(output_bias=None)),
    keys=(CLIP,),
    sizes=Sizes(kind=Clipped),
    interleaved=True,
    layer_norms="layer_norm_eps",
    classes={"OlmoForCausalLM": config_keys},
    names=names.ATTENTION | names.FFN,
    outer={name: names.OUTER[name] for name in ("embed_tokens.weight", "lm_head.weight")},
    ropes=("default", "linear"),
)
