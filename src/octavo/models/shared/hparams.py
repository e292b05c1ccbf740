"""Hyperparameters: what a GGUF file's metadata says of a model, read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from octavo.errors import ModelError, shown
from octavo.io.gguf.metadata import Metadata
from octavo.models.shared.keys import SHARED
from octavo.models.shared.rope import Rope

RMS_EPS, LAYER_NORM_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"

CLASSIFIER = "cls.output.weight"
CAUSAL = "attention.causal"
NEXTN = "nextn_predict_layers"
"""The field that says how many of a file's last layers guess tokens beyond the next one."""

H = TypeVar("H", bound="Hyperparams")

LIMITS = {
    "block_count": 4096,
    "embedding_length": 1 << 20,
    "feed_forward_length": 1 << 22,
    "attention.head_count": 1 << 14,
    "attention.head_count_kv": 1 << 14,
    "attention.key_length": 1 << 14,
    "attention.key_length_swa": 1 << 14,
    "attention.sliding_window": 1 << 30,
    "context_length": 1 << 30,
    "expert_count": 1 << 16,
    "expert_used_count": 1 << 16,
    "expert_feed_forward_length": 1 << 22,
    "expert_shared_feed_forward_length": 1 << 22,
}


@dataclass(frozen=True)
class Hyperparams:
    """Sizes of a model: layers, width, heads of `head_dim` values, experts (0 where the feed-forward is dense).

    n_labels  scores that the classifier of a reranker gives
    n_window  tokens that a token of some layers sees, itself among them; None where all layers see all before it
    windowed  whether each layer has the window; empty where the file does not say which do
    n_next    layers behind these that guess tokens beyond the next one, which are not computed
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
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    n_labels: int = 1
    n_window: int | None = None
    windowed: tuple[bool, ...] = ()
    n_next: int = 0

    def extended(self, kind: type[H], **more: Any) -> H:
        """These and some more of an architecture's own, as its class `kind`."""
        return kind(**(vars(self) | more))

    @property
    def freq_factor_pairs(self) -> int:
        """Pairs of a head that a file has a divisor for, if it has any."""
        return self.rope.dims // 2

    @property
    def n_caches(self) -> int:
        """Caches of a layer: one of keys and one of values."""
        return 2

    def kv_heads(self, layer: int) -> tuple[int, int]:
        """Heads of keys of a layer and values of each; no heads where it has no cache of its own."""
        return self.n_head_kv, self.head_dim

    def rope_heads(self, layer: int) -> dict[str, int]:
        """Heads of queries and of keys of a layer, whose rows rope turns, by name of the weight."""
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
        return 1 / math.sqrt(self.head_dim)


class HyperparamReader:
    """Reads `<arch>.<field>` keys; each error names the file, the key and what is allowed.

    keys    fields that the architecture reads beside the shared ones
    shapes  of the model's tensors by name, for what no key says
    """

    def __init__(
        self, metadata: Metadata, path: str, arch: str, keys: frozenset[str], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.metadata, self.path, self.arch, self.shapes = metadata, path, arch, shapes
        self._known = SHARED | keys

    def key(self, field: str) -> str:
        assert field in self._known
        return f"{self.arch}.{field}"

    def error(self, field: str, problem: str, allowed: str | None = None) -> ModelError:
        return ModelError(problem, file=self.path, field=self.key(field), allowed=allowed)

    def has(self, field: str) -> bool:
        return self.key(field) in self.metadata

    def knows(self, field: str) -> bool:
        """Whether the architecture reads the field."""
        return field in self._known

    def is_array(self, field: str) -> bool:
        return self.has(field) and self.metadata.describe(self.key(field)).startswith("array")

    def integer(self, field: str, default: int) -> int:
        return self.metadata.get_int(self.key(field), default)

    def whole(self, field: str, default: int, most: int) -> int:
        """A whole number from 0 to `most`."""
        number = self.integer(field, default)
        if not 0 <= number <= most:
            raise self.error(field, f"{number} is out of range", f"0 to {most}")
        return number

    def size(
        self, field: str, default: int | None = None, *, largest: bool = False, some: bool = False
    ) -> int:
        """A size from 1 to its limit; an array, one a layer, must be the same everywhere, unless `largest` will do.

        With `some` layers may have 0.
        """
        key = self.key(field)
        if default is not None and key not in self.metadata:
            return default
        if self.is_array(field):
            values = self.metadata.get_ints(key)
            values = values[values != 0] if some else values
            low, number = (int(values.min()), int(values.max())) if len(values) else (0, 0)
            if low != number and not largest:
                raise self.error(field, f"differs from layer to layer ({low} to {number})", "one value for all layers")
        else:
            low = number = self.metadata.get_int(key)
        limit = LIMITS[field]
        if not 1 <= low <= number <= limit:
            raise self.error(field, f"{number if low > 0 else low} is out of range", f"1 to {limit}")
        return number

    def sizes(self, field: str, n_layer: int, *, some: bool = False) -> tuple[int, ...]:
        """A size for each layer, from 1 to its limit: an array, or one number for all; with `some`, or 0."""
        most = self.size(field, largest=True, some=some)
        values = self.metadata.get_ints(self.key(field)).tolist() if self.is_array(field) else [most] * n_layer
        if len(values) != n_layer:
            raise self.error(field, f"has {len(values)} values", f"one for each of {n_layer} layers")
        return tuple(map(int, values))

    def real(self, field: str, default: float, low: float = 0.0, high: float = 1e12) -> float:
        """A finite number over `low` and up to `high`."""
        number = self.metadata.get_float(self.key(field), default=default)
        if not (math.isfinite(number) and low < number <= high):
            raise self.error(field, f"{number} is out of range", f"over {low:g}, up to {high:g}")
        return float(number)

    def positive(self, field: str) -> float | None:
        """A finite number over 0; None where the file has no such key, or 0."""
        number = self.metadata.get_float(self.key(field), default=0.0)
        return None if number == 0 else self.real(field, number)


def read_shared(
    r: HyperparamReader, *, interleaved: bool = False, has_experts: bool | None = None, eps: str = RMS_EPS,
    equal_lengths: bool = True, by_layer: bool = False, some_attend: bool = False, some_lack: bool = False,
    unlike_heads: bool = False, some_route: bool = False,
) -> Hyperparams:
    """The hyperparameters that all architectures have. Raises ModelError or GGUFError naming the key that is wrong.

    interleaved    rope turns pairs of neighbours, otherwise halves of a head
    has_experts    what the architecture wants: experts (True), none (False), or as the file says (None)
    eps            the field that says what norms add to the mean square
    equal_lengths  heads of values are as long as those of keys
    by_layer       heads of keys and the width of the feed-forward may differ by layer; the most of them are given
    some_attend    layers may have no heads of keys
    some_lack      layers may have no heads at all, and no feed-forward
    unlike_heads   heads of queries may differ by layer, too; the most of them are given
    some_route     layers may have no experts, whose width is 0 there
    """
    n_embd, n_head = r.size("embedding_length"), r.size("attention.head_count", largest=unlike_heads, some=some_lack)
    n_head_kv = r.size("attention.head_count_kv", n_head, largest=by_layer, some=some_attend or some_lack)
    if n_head % n_head_kv and not unlike_heads:
        raise r.error("attention.head_count_kv", f"{n_head_kv} does not divide {n_head} heads")
    head_dim = _read_head_dim(r, n_embd, n_head, equal_lengths)
    n_expert, n_expert_used = _read_experts(r, has_experts)
    n_ctx_train, n_layer = r.size("context_length", 2048), r.size("block_count")
    n_next = r.whole(NEXTN, 0, n_layer - 1) if r.knows(NEXTN) else 0
    dense_ff = 0
    if not n_expert or r.has("feed_forward_length"):
        dense_ff = r.size("feed_forward_length", largest=by_layer, some=some_lack)
    return Hyperparams(
        arch=r.arch,
        n_layer=n_layer - n_next,
        n_embd=n_embd,
        n_ff=dense_ff,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_vocab=vocabulary_size(r),
        n_ctx_train=n_ctx_train,
        eps=r.real(eps, 1e-5, high=1.0),
        rope=_read_rope(r, head_dim, n_ctx_train, interleaved),
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        n_ff_expert=r.size("expert_feed_forward_length", dense_ff or None, some=some_route) if n_expert else 0,
        n_labels=_labels(r),
        n_window=r.size("attention.sliding_window") if r.integer("attention.sliding_window", 0) else None,
        n_next=n_next,
    )


def refuse_causal(r: HyperparamReader) -> None:
    """Raise ModelError for a file of an encoder that says that tokens see none behind them."""
    if r.metadata.get_bool(r.key(CAUSAL), default=False):
        raise r.error(CAUSAL, "is true", "false")


def _read_head_dim(r: HyperparamReader, n_embd: int, n_head: int, equal_lengths: bool) -> int:
    """Values of a head of queries and keys."""
    if not r.has("attention.key_length") and n_embd % n_head:
        raise r.error("attention.head_count", f"{n_head} heads do not divide a width of {n_embd}")
    head_dim = r.size("attention.key_length", n_embd // n_head or 1)
    value_length = r.integer("attention.value_length", head_dim)
    if value_length != head_dim and equal_lengths:
        raise r.error("attention.value_length", f"{value_length} differs from the key length", str(head_dim))
    return head_dim


def _read_experts(r: HyperparamReader, has_experts: bool | None) -> tuple[int, int]:
    """How many experts there are, and how many a token is given; 0 and 0 for a dense model."""
    n_expert = r.integer("expert_count", 0) and r.size("expert_count")
    if has_experts is not None and bool(n_expert) != has_experts:
        allowed = f"1 to {LIMITS['expert_count']}" if has_experts else "0"
        raise r.error("expert_count", f"{n_expert} experts in {r.arch}", allowed)
    n_expert_used = r.size("expert_used_count") if n_expert else 0
    if n_expert_used > n_expert:
        raise r.error("expert_used_count", f"{n_expert_used} of {n_expert} experts", f"1 to {n_expert}")
    return n_expert, n_expert_used


def vocabulary_size(r: HyperparamReader) -> int:
    """Rows of the embedding. Raises ModelError where there is none."""
    shape = r.shapes.get("token_embd.weight", ())
    if len(shape) != 2:
        raise ModelError("is missing or not a matrix", file=r.path, field="tensor token_embd.weight")
    return shape[0]


def _labels(r: HyperparamReader) -> int:
    """Rows of the classifier, which may be a vector."""
    shape = r.shapes.get(CLASSIFIER, ())
    return shape[0] if len(shape) == 2 else 1


def _read_rope(r: HyperparamReader, head_dim: int, n_ctx_train: int, interleaved: bool) -> Rope:
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
