"""Apertus: norms of q and k, and between the feed-forward's two matrices an xIELU whose numbers are learned."""

import math
from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Modules, Sizes
from octavo.models.shared.decoder import Attention, CustomPart, Decoder, FeedForward
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import MetadataReader
from octavo.models.shared.weights import Weights

NUMBERS = {f"mlp.act_fn.{name}": f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")}
"""Their keys stand without the architecture's name."""


@dataclass(frozen=True, kw_only=True)
class Apertus(Hyperparams):
    """xielu: by layer what op `xielu` takes: positive, negative, beta, least."""

    xielu: tuple[tuple[float, float, float, float], ...] = ()


def complete(r: MetadataReader, hp: Apertus) -> Apertus:
    """Of a file's numbers the first two are in a softplus, the second over beta."""
    lists = [r.metadata.get_floats(key).tolist() for key in NUMBERS.values()]
    for key, values in zip(NUMBERS.values(), lists, strict=True):
        if len(values) != hp.n_layer or not all(math.isfinite(value) and abs(value) < 1e3 for value in values):
            raise r.metadata.fault(key, f"has {len(values)} values, or some out of range", f"{hp.n_layer} up to 1000")
    each = zip(*lists, strict=True)
    return replace(hp, xielu=tuple((_softplus(p), b + _softplus(n), b, least) for p, n, b, least in each))


def _softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def feed_forward(g: GraphBuilder, hp: Apertus, b: Weights, h: Node, layer: int) -> Node:
    return layers.linear(g, b, "ffn_down", g.xielu(layers.linear(g, b, "ffn_up", h), *hp.xielu[layer]))


ARCH = Architecture(
    name="apertus",
    network=Decoder(
        mixer=Attention(output_bias=None, qk_norm="heads"),
        feed_forward=CustomPart(FeedForward(plain=True).tensors, feed_forward),
    ),
    sizes=Sizes(kind=Apertus, complete=complete),
    classes={"ApertusForCausalLM": lambda config: {}},
    names=names.ATTENTION | names.QK_NORMS | {
        "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    },
    modules=Modules(scalars=NUMBERS),
    ropes=("default", "linear", "llama3"),
    activation="xielu",
)
