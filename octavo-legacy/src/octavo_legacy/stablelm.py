"""StableLM: layer norms, rope on a part of each head, in some attention and feed-forward side by side."""

from dataclasses import replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.decoder import Decoder, NormNames
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.weights import Tensors, Weights, vector

PARALLEL = "use_parallel_residual"
"""Converters say true where config.json says nothing; what counts is whether the feed-forward has a norm before it."""


class StableDecoder(Decoder):
    """Attention and feed-forward are side by side where there is no norm before the latter."""

    def layer_tensors(self, hp: Hyperparams, layer: int) -> Tensors:
        norm = {f"ffn_norm.{part}": vector(hp.n_embd, optional=True) for part in ("weight", "bias")}
        return super().layer_tensors(hp, layer) | norm

    def build_layer(self, g: GraphBuilder, hp: Hyperparams, b: Weights, x: Node, i: int) -> Node:
        norms = PARALLEL_NORMS if b.get("ffn_norm") is None else NormNames()
        return replace(DECODER, norms=norms).build_layer(g, hp, b, x, i)


PARALLEL_NORMS, DECODER = NormNames(feed_forward="attn_norm", bias=True), Decoder()


ARCH = Architecture(
    name="stablelm",
    network=StableDecoder(norms=PARALLEL_NORMS),
    keys=(Key("", PARALLEL, PARALLEL, default=False, usual=False),),
    layer_norms="layer_norm_eps",
    rotary_part=0.25,
    only={"qk_layernorm": False},
    classes={"StableLmForCausalLM": lambda config: {}},
    names=names.LLAMA,
    ropes=("default", "linear"),
)
