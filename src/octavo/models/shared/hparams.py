"""Hyperparameters: what a GGUF file's metadata says of a model, read and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from octavo.errors import ModelError, shown
from octavo.graph.names import split_layer
from octavo.models.shared import reader
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.reader import EXPERT_WIDTH, FF_WIDTH, HEADS, KV_HEADS, LIMITS, NEXTN, WINDOW, MetadataReader
from octavo.models.shared.rope import Rope

CLASSIFIER = "cls.output.weight"
NO_ATTENTION = (HEADS, KV_HEADS, FF_WIDTH, "expert_count")
"""Fields that are 0 or missing in models whose layers have neither attention nor a feed-forward."""
CONTEXT = 1 << 20
"""What a file of such a model says where config.json names no length, as converters do."""

H = TypeVar("H", bound="Hyperparams")


@dataclass(frozen=True)
class Hyperparams:
    """Sizes of a model: layers, width, heads of `head_dim` values, experts (0 where the feed-forward is dense).

    around_mean  norms take the mean off (layer norms), otherwise they are RMS norms
    n_labels     scores that the classifier of a reranker gives
    n_window     tokens that a token of some layers sees, itself among them; None where all layers see all before it
    windowed     whether each layer has the window; empty where the file does not say which do
    n_next       layers behind these that guess tokens beyond the next one, which a head computes
    next_windowed  whether each of these has the window; empty: none
    joined       q, k and v are rows of one matrix
    n_ff_shared  width of the feed-forward that all tokens go through beside their experts, 0 where there is none
    rope_local   of layers with a window, where these have one of their own

    Multipliers, each neutral where an architecture has no row for it:
    query_scale      of scores; 0: one over the root of `head_dim`
    embedding_scale, residual_scale, logit_scale  of embeddings, of what layers add, of logits
    score_cap, logit_cap  what scores and logits are soft-capped to, 0: not
    temperature      queries are multiplied by 1 + temperature * log(1 + `temperature_length`s before them), 0: not
    alibi            what the slopes of heads are made of, 0: attention does not fall with the distance
    """

    arch: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    rope: Rope
    around_mean: bool = False
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    n_labels: int = 1
    n_window: int | None = None
    windowed: tuple[bool, ...] = ()
    n_next: int = 0
    next_windowed: tuple[bool, ...] = ()
    joined: bool = False
    n_ff_shared: int = 0
    rope_local: Rope | None = None
    query_scale: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    temperature: float = 0.0
    temperature_length: int = 0
    alibi: float = 0.0

    def extended(self, kind: type[H], **more: Any) -> H:
        """These and some more of an architecture's own, as its class `kind`."""
        return kind(**(vars(self) | more))

    @property
    def freq_factor_pairs(self) -> int:
        """Pairs of a head that a file has a frequency factor for, if it has any."""
        return self.rope.dims // 2

    @property
    def n_caches(self) -> int:
        """Caches of a layer: one of keys and one of values."""
        return 2

    def kv_heads(self, layer: int) -> tuple[int, int]:
        """Heads of keys of a layer and values of each; no heads where it has no cache of its own."""
        return self.n_head_kv, self.head_dim

    def rope_heads(self, layer: int) -> dict[str, int]:
        """Heads of queries and of keys of a layer, to whose rows rope is applied, by name of the weight."""
        return {"attn_q": self.n_head, "attn_k": self.n_head_kv}

    def window(self, layer: int) -> int:
        """Tokens that a token of a layer sees, 0 for all."""
        return self.n_window if self.n_window and self.windowed and self.windowed[layer] else 0

    @property
    def n_ctx_most(self) -> int:
        """The longest context that is computed as the model was made: one of a window, if any layer might have it."""
        return self.n_ctx_train if self.windowed else min(self.n_ctx_train, self.n_window or self.n_ctx_train)

    @property
    def state_values(self) -> int:
        """Float32 numbers that all layers keep of a sequence, however long it is."""
        return 0

    @property
    def attention_scale(self) -> float:
        return self.query_scale or 1 / math.sqrt(self.head_dim)


@dataclass(frozen=True)
class Key:
    """A number, flag or word: what it is called here, in a GGUF file and in config.json, and what it may be.

    words    keys of config.json, of which the first that is there counts; none: a class's own function says it
    default  what a file means that lacks the key: a value, or a function of the other hyperparameters. None: no file
             may lack it
    usual    what config.json means that lacks the words; None: nothing is written of them
    least, limit  of a whole number; without a limit it is a real number over 0, or 0 for the default
    choices  of words
    over     what a real number is over
    zero     what a real number of 0 is: a word for the default, a value like others, or refused
    of       what the hyperparameter is made of the file's value with, given the other hyperparameters too
    said     what the file's value is made of config.json's with
    of_rope  the words are those of the rope's parameters
    """

    name: str
    field: str
    words: str | tuple[str, ...] = ()
    default: Any = None
    usual: Any = None
    least: int = 0
    limit: int = 0
    choices: tuple[str, ...] = ()
    over: float = 0.0
    zero: Literal["default", "value", "refused"] = "default"
    of: Callable[[Any, Any], Any] = lambda value, hp: value
    said: Callable[[float], float] = lambda value: value
    of_rope: bool = False

    def read(self, r: MetadataReader, hp: Hyperparams) -> Any:
        default = self.default(hp) if callable(self.default) else self.default
        return self.of(self._read(r, default), hp)

    def _read(self, r: MetadataReader, default: Any) -> Any:
        if isinstance(default, bool):
            return r.flag(self.field, default)
        if self.choices:
            return r.one_of(self.field, self.choices, default)
        if self.limit:
            return r.whole(self.field, self.least, self.limit, default)
        if self.over or self.zero == "refused":
            return r.real(self.field, default, self.over)
        if self.zero == "value" and r.has(self.field):
            return r.positive(self.field) or 0.0
        return r.positive(self.field) or default

    def keys(self, config: Config) -> Keys:
        words = (self.words,) if isinstance(self.words, str) else self.words
        part = Config(rope_parameters(config), config.file, config.read) if self.of_rope else config
        word = next((word for word in words if part.values.get(word) is not None), "")
        if not words or (not word and self.usual is None) or (self.of_rope and not part.values.get(word)):
            return {}
        return {self.field: self._said(part, word or words[0])}

    def _said(self, config: Config, word: str) -> Any:
        if isinstance(self.default, bool):
            return config.flag(word, self.usual)
        if self.choices:
            return config.one_of(word, self.choices, self.usual)
        if self.limit:
            least = config.size if self.least else config.count
            return least(word, self.limit, self.usual)
        return self.said(config.real(word, self.usual))


def local_base(default: float | None = None) -> Key:
    """The row of the base of a rope of layers with a window; None: it is that of the other layers, unscaled."""
    return Key(
        "rope_local", "rope.freq_base_swa", default=default or (lambda hp: hp.rope.base), over=1.0,
        of=lambda base, hp: Rope(hp.rope.dims, base, interleaved=False),
    )


def read_shared(
    r: MetadataReader, *, interleaved: bool, experts: bool | None, eps: str, equal_lengths: bool,
    differs: Mapping[str, str],
) -> Hyperparams:
    """The hyperparameters that all architectures have. Raises ModelError or GGUFError naming the key that is wrong.

    interleaved    rope rotates pairs of neighbours, otherwise halves of a head
    experts        what the architecture wants: experts (True), none (False), or as the file says (None)
    eps            the field that says what norms add to the mean square
    equal_lengths  heads of values are as long as those of keys
    differs        how sizes differ by layer, by their field, see `MetadataReader.by_layer`; the largest is given
    """

    def largest(field: str, default: int | None = None) -> int:
        return r.by_layer(field, differs.get(field, ""), default)

    n_embd, n_head = r.size("embedding_length", LIMITS["embedding_length"]), largest(HEADS)
    n_head_kv = largest(KV_HEADS, n_head)
    if n_head % n_head_kv and differs.get(HEADS) != reader.ANY:
        raise r.error(KV_HEADS, f"{n_head_kv} does not divide {n_head} heads")
    head_dim = _read_head_dim(r, n_embd, n_head, equal_lengths)
    n_expert, n_expert_used = _read_experts(r, experts)
    n_ctx_train, n_layer = _context(r, 2048), r.size("block_count", LIMITS["block_count"])
    n_next = _next_layers(r, n_layer)
    n_ff = largest(FF_WIDTH) if not n_expert or r.has(FF_WIDTH) else 0
    return Hyperparams(
        arch=r.arch,
        n_layer=n_layer - n_next,
        n_embd=n_embd,
        n_ff=n_ff,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_vocab=_vocabulary_size(r),
        n_ctx_train=n_ctx_train,
        eps=r.real(eps, 1e-5, high=1.0),
        rope=_read_rope(r, head_dim, n_ctx_train, interleaved),
        around_mean=eps == reader.LAYER_NORM_EPS,
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        n_ff_expert=largest(EXPERT_WIDTH, n_ff or None) if n_expert else 0,
        n_labels=_labels(r),
        n_window=r.size(WINDOW, LIMITS[WINDOW]) if r.integer(WINDOW, 0) else None,
        n_next=n_next,
        joined="blk.0.attn_qkv.weight" in r.shapes,
    )


def without_attention(r: MetadataReader, *, has_ff: bool, eps: str) -> Hyperparams:
    """Those of a model of NO_ATTENTION. Raises ModelError or GGUFError naming the key that is wrong.

    has_ff  layers have something in place of a feed-forward, whose width the file says
    """
    ff = r.size(FF_WIDTH, LIMITS[FF_WIDTH]) if has_ff else 0
    for field in NO_ATTENTION:
        r.count(field, ff if field == FF_WIDTH else 0)
    return Hyperparams(
        arch=r.arch, n_layer=r.size("block_count", LIMITS["block_count"]),
        n_embd=r.size("embedding_length", LIMITS["embedding_length"]), n_ff=ff, n_head=0, n_head_kv=0, head_dim=0,
        n_vocab=_vocabulary_size(r), n_ctx_train=_context(r, CONTEXT), eps=r.real(eps, 1e-5, high=1.0),
        rope=Rope(dims=0, base=10000.0, interleaved=False), around_mean=eps == reader.LAYER_NORM_EPS,
    )


def expert_words(hp: Hyperparams, name: str) -> Mapping[str, Any]:
    """The inverse of `expert_keys`, and how wide a feed-forward is where none but experts' is there."""
    return {
        name: hp.n_expert, "num_experts_per_tok": hp.n_expert_used, "intermediate_size": hp.n_ff or hp.n_ff_expert
    }


def with_longrope(r: MetadataReader, hp: H) -> H:
    """The same with a longrope where a file has the tensors of one, which it need not name."""
    stretched = any(f"rope_factors_{length}.weight" in r.shapes for length in ("long", "short"))
    return replace(hp, rope=replace(hp.rope, kind="longrope")) if stretched else hp


def _context(r: MetadataReader, default: int) -> int:
    return r.size("context_length", LIMITS["context_length"], default)


def _next_layers(r: MetadataReader, n_layer: int) -> int:
    """How many of a file's layers guess tokens. Raises ModelError where one of these is as those of the model are."""
    n_next = r.count(NEXTN, n_layer - 1) if r.knows(NEXTN) else 0
    parts = [split_layer(name) for name in r.shapes] if n_next else []
    guess = {layer for layer, part in parts if part.startswith("nextn.")}
    if plain := {i for i, _ in parts if i is not None and n_layer - n_next <= i < n_layer} - guess:
        raise r.error(NEXTN, f"is {n_next}, but tensor blk.{min(plain)}.nextn.eh_proj.weight is missing")
    return n_next


def _read_head_dim(r: MetadataReader, n_embd: int, n_head: int, equal_lengths: bool) -> int:
    """Values of a head of queries and keys."""
    if not r.has("attention.key_length") and n_embd % n_head:
        raise r.error(HEADS, f"{n_head} heads do not divide a width of {n_embd}")
    head_dim = r.by_layer("attention.key_length", default=n_embd // n_head or 1)
    value_length = r.integer("attention.value_length", head_dim)
    if value_length != head_dim and equal_lengths:
        raise r.error("attention.value_length", f"{value_length} differs from the key length", str(head_dim))
    return head_dim


def _read_experts(r: MetadataReader, experts: bool | None) -> tuple[int, int]:
    """How many experts there are, and how many a token is given; 0 and 0 for a dense model."""
    n_expert = r.integer("expert_count", 0) and r.size("expert_count", LIMITS["expert_count"])
    if experts is not None and bool(n_expert) != experts:
        allowed = f"1 to {LIMITS['expert_count']}" if experts else "0"
        raise r.error("expert_count", f"{n_expert} experts in {r.arch}", allowed)
    n_expert_used = r.size("expert_used_count", LIMITS["expert_used_count"]) if n_expert else 0
    if n_expert_used > n_expert:
        raise r.error("expert_used_count", f"{n_expert_used} of {n_expert} experts", f"1 to {n_expert}")
    return n_expert, n_expert_used


def _vocabulary_size(r: MetadataReader) -> int:
    """Rows of the embedding. Raises ModelError where there is none."""
    shape = r.shapes.get("token_embd.weight", ())
    if len(shape) != 2:
        raise ModelError("is missing or not a matrix", file=r.path, field="tensor token_embd.weight")
    return shape[0]


def _labels(r: MetadataReader) -> int:
    """Rows of the classifier, which may be a vector."""
    shape = r.shapes.get(CLASSIFIER, ())
    return shape[0] if len(shape) == 2 else 1


def _read_rope(r: MetadataReader, head_dim: int, n_ctx_train: int, interleaved: bool) -> Rope:
    dims = r.integer("rope.dimension_count", head_dim)
    if not 2 <= dims <= head_dim or dims % 2:
        raise r.error("rope.dimension_count", f"{dims} is out of range", f"an even number up to {head_dim}")
    key = "rope.scaling.factor" if r.has("rope.scaling.factor") else "rope.scale_linear"  # the older of the two names
    factor = r.real(key, 1.0, 1e-6, 1e6)
    kind = r.metadata.get_str(r.key("rope.scaling.type"), default="linear" if r.has(key) else "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise r.error("rope.scaling.type", f"unknown kind {shown(kind)}", "none, linear, yarn, longrope")
    original = r.integer("rope.scaling.original_context_length", n_ctx_train)
    if not 1 <= original <= LIMITS["context_length"]:
        raise r.error("rope.scaling.original_context_length", f"{original} is out of range", "1 to 2^30")
    return Rope(
        dims=dims,
        base=r.real("rope.freq_base", 10000.0, 1.0),
        interleaved=interleaved,
        kind=kind,
        factor=factor,
        n_ctx_original=original,
        attention_factor=r.real("rope.scaling.attn_factor", 1.0, 1e-6, 1e6),
        beta_fast=r.real("rope.scaling.yarn_beta_fast", 32.0, 1e-6, 1e6),
        beta_slow=r.real("rope.scaling.yarn_beta_slow", 1.0, 1e-6, 1e6),
    )
