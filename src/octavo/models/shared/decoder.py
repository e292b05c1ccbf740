"""Decoder: a model as what its layers are made of, which says its tensors and builds its graph; and TransformerEncoder.

A part of a layer, such as Attention or FeedForward, says which tensors it has and what it makes of tokens. Norms are
said apart, by their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.layers import Activation, Bias, QkNorm
from octavo.models.shared.weights import BIAS, Tensors, Weights, matrix, vector

EMBEDDING_NORM = "token_embd_norm"
BuildPart = Callable[[GraphBuilder, Any, Weights, Node, int], Node]


class LayerPart(Protocol):
    """A part of a layer."""

    def tensors(self, hp: Any, layer: int) -> Tensors:
        """Its tensors in a layer, by their names there."""

    def build(self, g: GraphBuilder, hp: Any, b: Weights, h: Node, layer: int) -> Node:
        """[T, n_embd], normed -> [T, n_embd], which is added to the residual stream."""


class Network(Protocol):
    """All of a model."""

    @property
    def encodes(self) -> bool:
        """Whether tokens see all of a text, and vectors come out, not logits."""

    def tensors(self, hp: Any) -> Tensors:
        """The tensors with their shapes, in the order of a file; others are refused."""

    def build(self, g: GraphBuilder, hp: Any, w: Weights) -> Node:
        """The graph: logits, or the vectors of tokens of an encoder."""


@dataclass(frozen=True)
class CustomNetwork:
    """A network of its own functions."""

    tensors: Callable[[Any], Tensors]
    build: Callable[[GraphBuilder, Any, Weights], Node]
    encodes: bool = False


@dataclass(frozen=True)
class CustomPart:
    """A part of its own functions; `tensors` of the hyperparameters and the layer."""

    tensors: Callable[[Any, int], Tensors]
    build: BuildPart


@dataclass(frozen=True)
class ByLayer:
    """One part in the layers of which `here` is true, which is given the hyperparameters too, and another elsewhere."""

    here: Callable[[Any, int], bool]
    one: LayerPart
    other: LayerPart

    def tensors(self, hp: Any, layer: int) -> Tensors:
        return self._part(hp, layer).tensors(hp, layer)

    def build(self, g: GraphBuilder, hp: Any, b: Weights, h: Node, layer: int) -> Node:
        return self._part(hp, layer).build(g, hp, b, h, layer)

    def _part(self, hp: Any, layer: int) -> LayerPart:
        return self.one if self.here(hp, layer) else self.other


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Attention with a cache of keys and values.

    bias         whether q, k and v must have biases (True), may (None) or must not (False)
    output_bias  the same of what is behind attention
    joined       q, k and v are rows of one matrix (True), are not (False), or as the file has it (None)
    qk_norm      what of q and k is normed: heads, in some files or behind the rope, or whole rows
    rope         which layers have rope: all, those with a window, those where the model has windows, or none; or a
                 function of the hyperparameters and the layer
    freq_factors  frequency factors of a file are for layers with a window, too
    gated        the output is multiplied by the sigmoid of a product of its input
    sinks        each head has a score that no token is given
    """

    bias: Bias = None
    output_bias: Bias = False
    joined: bool | None = False
    qk_norm: QkNorm = ""
    rope: Literal["all", "window", "window if any", "none"] | Callable[[Any, int], bool] = "all"
    freq_factors: bool = False
    gated: bool = False
    sinks: bool = False

    def tensors(self, hp: Hyperparams, layer: int) -> Tensors:
        q, kv = hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim
        rows = {"attn_qkv": q + 2 * kv} if self._is_joined(hp) else {"attn_q": q, "attn_k": kv, "attn_v": kv}
        found = layers.products({name: (n, hp.n_embd) for name, n in rows.items()}, self.bias)
        found |= layers.products({"attn_output": (hp.n_embd, q)}, self.output_bias)
        if self.qk_norm:
            for n, size in (("q", q), ("k", kv)):
                width = size if self.qk_norm == "rows" else hp.head_dim
                found[f"attn_{n}_norm.weight"] = vector(width, optional=self.qk_norm == "heads or none")
        if self.gated:
            found |= layers.products({"attn_gate": (q, hp.n_embd)})
        return found | ({"attn_sinks.weight": vector(hp.n_head)} if self.sinks else {})

    def build(self, g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node, layer: int) -> Node:
        q, k, v = self.project(g, hp, b, h)
        if hp.temperature:
            q = g.scale_by_position(q, hp.temperature_length or hp.rope.n_ctx_original, hp.temperature, offset=0)
        if self._has_rope(hp, layer):
            rope = layers.rotary(g, hp, b, layer, freq_factors=self.freq_factors)
            q, k = rope(q), rope(k)
        if self.qk_norm == "heads behind rope":
            q, k = layers.norm_heads(g, hp, b, q, k)
        y = self.attend(g, hp, b, (q, k, v), layer)
        if self.gated:
            y = g.mul(y, g.sigmoid(layers.linear(g, b, "attn_gate", h)))
        return layers.linear(g, b, "attn_output", y)

    def project(self, g: GraphBuilder, hp: Any, b: Weights, h: Node) -> tuple[Node, Node, Node]:
        """q, k and v of h [T, n_embd], split into heads."""
        return layers.qkv(g, hp, b, h, self.qk_norm, joined=self._is_joined(hp))

    def attend(self, g: GraphBuilder, hp: Hyperparams, b: Weights, heads: tuple[Node, Node, Node], layer: int) -> Node:
        """[T, H * D] of q, k and v of heads."""
        return g.attention(
            *heads, layer=layer, scale=hp.attention_scale, window=hp.window(layer), cap=hp.score_cap,
            sinks=b["attn_sinks"] if self.sinks else None, alibi=hp.alibi,
        )

    def _is_joined(self, hp: Hyperparams) -> bool:
        return hp.joined if self.joined is None else self.joined

    def _has_rope(self, hp: Hyperparams, layer: int) -> bool:
        if self.rope == "window if any" and hp.n_window is None:
            return True
        if self.rope in ("window", "window if any"):
            return hp.windowed[layer]
        return self.rope(hp, layer) if callable(self.rope) else self.rope == "all"


@dataclass(frozen=True, kw_only=True)
class FullAttention(Attention):
    """Attention of encoders, where tokens see all of a text, or with a window as far ahead as back."""

    def attend(self, g: GraphBuilder, hp: Hyperparams, b: Weights, heads: tuple[Node, Node, Node], layer: int) -> Node:
        window = hp.window(layer) // 2 + 1 if hp.window(layer) else 0
        return g.attention_of_all(*heads, layer, hp.attention_scale, window, alibi=hp.alibi)


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """Down(activation(gate(h), up(h))), or down(activation(up(h))) of two matrices.

    activation  of gate and up, or of up: an op of the graph, or a function of its builder and these
    joined      gate and up are rows of one matrix, `ffn_up`
    plain       there is no gate
    bias        whether the matrices must have biases (True), may (None) or must not (False)
    """

    activation: Activation = "swiglu"
    joined: bool = False
    plain: bool = False
    bias: Bias = False

    def tensors(self, hp: Hyperparams, layer: int) -> Tensors:
        rows = {"up": 2 * hp.n_ff} if self.joined else {"up": hp.n_ff} if self.plain else dict.fromkeys(
            ("gate", "up"), hp.n_ff)
        return layers.products({
            **{f"ffn_{name}": (n, hp.n_embd) for name, n in rows.items()}, "ffn_down": (hp.n_embd, hp.n_ff)
        }, self.bias)

    def build(self, g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node, layer: int) -> Node:
        up = layers.linear(g, b, "ffn_up", h)
        activation = getattr(g, self.activation) if isinstance(self.activation, str) else partial(self.activation, g)
        if self.plain:
            return layers.linear(g, b, "ffn_down", activation(up))
        gate, up = g.columns(up, hp.n_ff, hp.n_ff) if self.joined else (layers.linear(g, b, "ffn_gate", h), up)
        return layers.linear(g, b, "ffn_down", activation(gate, up))


def geglu_erf(g: GraphBuilder, gate: Node, up: Node) -> Node:
    """GELU(gate) * up with the GELU of the error function."""
    return g.mul(g.gelu_erf(gate), up)


GEGLU = FeedForward(activation="geglu")
MLP = FeedForward(activation="gelu", plain=True, bias=True)
"""Two matrices with biases, and a GELU with tanh between them."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Each token through the experts that a softmax finds most likely.

    normalized  weights of a token's experts sum to 1, otherwise they are probabilities among all
    shared      another feed-forward that all tokens go through, as wide as `n_ff_shared` (none where that is 0), whole
                or as far as a gate says
    """

    normalized: bool = True
    shared: Literal["", "whole", "gated"] = ""

    def tensors(self, hp: Hyperparams, layer: int) -> Tensors:
        found = layers.moe_tensors(hp)
        if self.shared and hp.n_ff_shared:
            found |= layers.shared_expert_tensors(hp, hp.n_ff_shared, gated=self.shared == "gated")
        return found

    def build(self, g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node, layer: int) -> Node:
        probabilities = g.soft_max(g.mul_mat(b["ffn_gate_inp"], h))
        ids = g.top_k(probabilities, hp.n_expert_used)
        weights = g.gather(probabilities, ids)
        y = layers.through_experts(g, b, h, ids, g.normalize(weights) if self.normalized else weights)
        if not (self.shared and hp.n_ff_shared):
            return y
        shared = layers.ffn(g, b, h, "_shexp")
        if self.shared == "gated":
            gate = g.sigmoid(g.mul_mat(b.as_matrix("ffn_gate_inp_shexp"), h))
            shared = g.weighted_sum(g.as_one_row(shared), gate)
        return g.add(y, shared)


def dense_or(experts: LayerPart, dense: LayerPart | None = None) -> ByLayer:
    """A dense feed-forward, or these experts where the file has any."""
    return ByLayer(lambda hp, layer: hp.n_expert > 0, experts, dense or FeedForward(bias=None))


@dataclass(frozen=True, kw_only=True)
class NormNames:
    """What a layer's norms are called, "" for none: before its parts, and of what these add. Names that end with a dot
    are whole names of tensors.

    bias    layer norms have biases, that of the output too
    of_sum  those behind parts are of the residual stream with what a part adds
    optional  the first layer may lack the norm before attention
    """

    mixer: str = "attn_norm"
    feed_forward: str = "ffn_norm"
    after_mixer: str = ""
    after_feed_forward: str = ""
    bias: bool = False
    of_sum: bool = False
    optional: bool = False

    def tensors(self, hp: Hyperparams, *, has_feed_forward: bool, layer: int) -> Tensors:
        names = (self.mixer, self.after_mixer, *((self.feed_forward, self.after_feed_forward) * has_feed_forward))
        found = layers.norms(hp.n_embd, *(name for name in names if name), bias=self.bias)
        if self.optional and layer == 0:
            found[f"{self.mixer}.weight"] = vector(hp.n_embd, optional=True)
        return found

    def added(self, g: GraphBuilder, hp: Hyperparams, b: Weights, x: Node, y: Node, after: str) -> Node:
        """x with what a part of a layer adds, y, normed by `after` if there is such a norm."""
        y = layers.scaled(g, y, hp.residual_scale)
        if self.of_sum:
            return layers.norm(g, hp, b, after, g.add(x, y))
        return g.add(x, layers.norm(g, hp, b, after, y) if after else y)


PRE_NORMS = NormNames()
POST_NORMS = NormNames(
    mixer="", feed_forward="", after_mixer="post_attention_norm", after_feed_forward="post_ffw_norm"
)
SANDWICH_NORMS = NormNames(after_mixer="post_attention_norm", after_feed_forward="post_ffw_norm")
PARALLEL = NormNames(feed_forward="attn_norm")
"""One norm, whose output both attention and the feed-forward are given."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A model whose layers have a mixer of tokens, such as attention, and a feed-forward.

    feed_forward     None: layers have none
    norms            of layers
    scaled_by_width  embeddings are multiplied by the root of the width
    embedding_norm   embeddings are normed
    positions        a vector for each position is added to embeddings
    freq_factors     a file may have frequency factors of the rope
    output_norm      what the last norm is called
    output_bias      the output may have a bias
    classifier       a file may have what a reranker scores with
    """

    mixer: LayerPart = Attention()
    feed_forward: LayerPart | None = FeedForward()
    norms: NormNames = PRE_NORMS
    scaled_by_width: bool = False
    embedding_norm: bool = False
    positions: bool = False
    freq_factors: bool = True
    output_norm: str = "output_norm"
    output_bias: bool = False
    classifier: bool = False
    encodes: ClassVar[bool] = False

    def tensors(self, hp: Any) -> Tensors:
        found = layers.model_tensors(
            hp, partial(self.layer_tensors, hp), output_bias=self.output_bias, output_norm=self.output_norm
        )
        if self.norms.bias and self.output_norm:
            found[f"{self.output_norm}{BIAS}"] = vector(hp.n_embd)
        if self.embedding_norm:
            found |= layers.norms(hp.n_embd, EMBEDDING_NORM, bias=self.norms.bias)
        if self.positions:
            found["position_embd.weight"] = matrix(hp.n_ctx_train, hp.n_embd)
        if not self.freq_factors:
            found.pop("rope_freqs.weight", None)
        return found | (layers.classifier_tensors(hp) if self.classifier else {})

    def layer_tensors(self, hp: Any, layer: int) -> Tensors:
        """Those of a layer."""
        fed = {} if self.feed_forward is None else self.feed_forward.tensors(hp, layer)
        norms = self.norms.tensors(hp, has_feed_forward=self.feed_forward is not None, layer=layer)
        return norms | self.mixer.tensors(hp, layer) | fed

    def build(self, g: GraphBuilder, hp: Any, w: Weights) -> Node:
        x = self.embedded(g, hp, w)
        for i in range(hp.n_layer):
            g.residuals.append(x)
            x = self.build_layer(g, hp, w.block(i), x, i)
        g.residuals.append(x)
        return self.output(g, hp, w, x)

    def embedded(self, g: GraphBuilder, hp: Any, w: Weights) -> Node:
        """What the first layer is given, [T, n_embd]."""
        scale = math.sqrt(hp.n_embd) if self.scaled_by_width else hp.embedding_scale
        x = layers.scaled(g, g.get_rows(w["token_embd"], g.tokens), scale)
        x = g.add(x, g.get_rows(w["position_embd"], g.positions)) if self.positions else x
        return layers.norm(g, hp, w, EMBEDDING_NORM, x) if self.embedding_norm else x

    def build_layer(self, g: GraphBuilder, hp: Any, b: Weights, x: Node, i: int) -> Node:
        """[T, n_embd] -> [T, n_embd]."""
        norms = self.norms
        has_norm = norms.mixer and not (norms.optional and b.get(norms.mixer) is None)
        h = layers.norm(g, hp, b, norms.mixer, x) if has_norm else x
        x = norms.added(g, hp, b, x, self.mixer.build(g, hp, b, h, i), norms.after_mixer)
        if self.feed_forward is None:
            return x
        if norms.feed_forward != norms.mixer or not norms.mixer:
            h = layers.norm(g, hp, b, norms.feed_forward, x) if norms.feed_forward else x
        return norms.added(g, hp, b, x, self.feed_forward.build(g, hp, b, h, i), norms.after_feed_forward)

    def output(self, g: GraphBuilder, hp: Any, w: Weights, x: Node) -> Node:
        """What comes out behind the last layer."""
        logits = layers.scaled(g, layers.logits(g, hp, w, x, self.output_norm), hp.logit_scale)
        return g.soft_cap(logits, hp.logit_cap) if hp.logit_cap else logits


@dataclass(frozen=True, kw_only=True)
class TransformerEncoder(Decoder):
    """A model that gives vectors of tokens in place of logits, normed unless `output_norm` is ""."""

    mixer: LayerPart = FullAttention()
    encodes: ClassVar[bool] = True

    def tensors(self, hp: Any) -> Tensors:
        found = Decoder.tensors(self, hp)
        return {name: want for name, want in found.items() if not name.startswith("output.")}

    def output(self, g: GraphBuilder, hp: Any, w: Weights, x: Node) -> Node:
        return layers.norm(g, hp, w, self.output_norm, g.last(x)) if self.output_norm else g.last(x)
