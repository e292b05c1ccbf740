"""Which type each tensor of a model gets: a preset's rules, a user's choices, and what the rows' lengths allow.

The rules are those of llama.cpp (src/llama-quant.cpp), for architectures that it has no exceptions of their own for.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from octavo.errors import UsageError
from octavo.expressions import compiled
from octavo.formats import BlockFormat, by_name
from octavo.graph.names import split_layer
from octavo.quantizers.encoding.encoder import ENCODABLE
from octavo.quantizers.mix.presets import EIGHT_EXPERTS, FALLBACKS, Preset, TensorPlace, find_preset

_log = logging.getLogger(__name__)

Fit = Callable[[str, BlockFormat, int], BlockFormat]
"""The type of a tensor, by its name, the format that was wished for, and K, which is not whole blocks of that."""
KINDS = (
    ("attn_v", ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")),
    ("attn_k", ("attn_k.weight",)),
    ("attn_q", ("attn_q.weight",)),
    ("attn_output", ("attn_output.weight",)),
    ("ffn_up", ("ffn_up",)),
    ("ffn_gate", ("ffn_gate",)),
    ("ffn_down", ("ffn_down",)),
)
"""Kinds of tensors by what their names hold, the first that fits; `output` and `token_embd` go by the whole name."""

KEPT = tuple(
    """_norm.weight ffn_gate_inp.weight ffn_gate_tid2eid.weight altup laurel per_layer_model_proj ssm_conv1d
    shortconv.conv.weight indexer.k_proj.weight indexer.q_proj.weight time_mix_first.weight time_mix_w0.weight
    time_mix_w1.weight time_mix_w2.weight time_mix_v0.weight time_mix_v1.weight time_mix_v2.weight time_mix_a0.weight
    time_mix_a1.weight time_mix_a2.weight time_mix_g1.weight time_mix_g2.weight time_mix_decay_w1.weight
    time_mix_decay_w2.weight time_mix_lerp_fused.weight attn_rel_b.weight .position_embd sam.pos_embd sam.neck. sam.net_
    .rel_pos .patch_embd .patch_merger a.rvq.codebook mm.a.code_embd""".split()
)
"""Parts of the names of tensors that stay as they are: norms, routers, and small ones of other architectures."""
_KEPT_NAMES = frozenset({"position_embd.weight", "token_types.weight"})


@dataclass(frozen=True)
class Facts:
    """What the rules ask of a model: layers, query heads a key head (0 where it has none), experts.

    `big_llama`: one of the models of 80 layers whose attn_v is small beside the rest.
    """

    layers: int
    heads_per_kv: int = 1
    experts: int = 0
    big_llama: bool = False


@dataclass(frozen=True)
class Choices:
    """What a user says beside the preset.

    pure            the base type for every tensor
    leave_output    `output.weight` stays as it is
    output_type     type of the output matrix (of the embedding, where that is the output too)
    embedding_type  type of `token_embd.weight`
    tensor_types    (regular expression, type) pairs; the first whose expression is found in a name gives its type
    """

    pure: bool = False
    leave_output: bool = False
    output_type: str | None = None
    embedding_type: str | None = None
    tensor_types: tuple[tuple[str, str], ...] = ()

    @cached_property
    def patterns(self) -> tuple[tuple[re.Pattern[str], BlockFormat], ...]:
        """`tensor_types` compiled. Raises UsageError for an expression that is none, and for an unknown type."""
        return tuple((_compiled(pattern), target_format(kind)) for pattern, kind in self.tensor_types)


def require_matches(choices: Choices, names: Iterable[str]) -> None:
    """Raise UsageError for an expression of `choices` that matches no tensor's name."""
    known = list(names)
    for (given, _), (pattern, _) in zip(choices.tensor_types, choices.patterns, strict=True):
        if not any(pattern.search(name) for name in known):
            raise UsageError(f"tensor type {given!r} matches no tensor; `octavo inspect MODEL --tensors` lists them")


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return compiled(pattern, re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"tensor type {pattern!r} is not a regular expression: {error}") from None


def target_format(name: str) -> BlockFormat:
    """The format called `name`, in any case. Raises UsageError for one that nothing is quantized to."""
    if name.upper() not in ENCODABLE:
        raise UsageError(f"tensors can't be quantized to {name!r} (allowed: {', '.join(ENCODABLE)})")
    return by_name(name)


def is_kept(name: str, shape: tuple[int, ...], choices: Choices) -> bool:
    """Whether a tensor, its shape in NumPy order, stays as it is under every preset."""
    return (
        all(size == 1 for size in shape[:-1])
        or not name.endswith("weight")
        or name in _KEPT_NAMES
        or (choices.leave_output and name == "output.weight")
        or any(part in name for part in KEPT)
    )


def choose_types(
    shapes: Mapping[str, tuple[int, ...]], facts: Facts, preset: Preset, choices: Choices, *, has_imatrix: bool = False,
    told: Callable[[str], object] = _log.warning, fit: Fit | None = None,
) -> dict[str, BlockFormat]:
    """The type of each tensor that the preset changes, by name; the others stay as they are.

    shapes  of all tensors of the model, in NumPy order
    told    is told, in a sentence, of rows that get another type than the preset's, as they are not whole blocks of it
    fit     gives that other type (default: `fallback`)

    Raises UsageError for a choice that is not a type or regular expression, matches no tensor, or doesn't fit a row.
    """
    require_matches(choices, shapes)
    mixer = _Mixer(shapes, facts, preset, choices, has_imatrix, fit)
    if preset.base is None:
        return {}
    wanted = sorted(shapes, key=lambda name: (_layer(name), name))  # the order in which tensors of a kind are counted
    types = {name: mixer.type_of(name, shapes[name]) for name in wanted if not is_kept(name, shapes[name], choices)}
    if mixer.unfit:
        first = ", ".join(mixer.unfit[:3]) + (", ..." if len(mixer.unfit) > 3 else "")
        smaller = "" if preset.name in PLAIN else _smaller(shapes, facts, types, has_imatrix)
        bits = 8 * _bytes(shapes, types) / sum(math.prod(shapes[name]) for name in types)
        told(f"{len(mixer.unfit)} of {len(shapes)} tensors have rows that are not whole blocks: {first}; weights have "
             f"{bits:.2f} bits in all{smaller}")
    return types


PLAIN = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
"""Presets whose blocks are of 32 values, the largest first."""


def _smaller(shapes: Mapping[str, tuple[int, ...]], facts: Facts, types: dict[str, BlockFormat], imatrix: bool) -> str:
    """The best of the plain presets that takes fewer bytes than these types, in words; nothing where none does."""
    size = _bytes(shapes, types)
    for name in PLAIN:
        plain = _Mixer(shapes, facts, find_preset(name), Choices(), imatrix)
        if _bytes(shapes, {tensor: plain.type_of(tensor, shapes[tensor]) for tensor in types}) < size:
            return f"; {name} makes a smaller file"
    return ""


def _bytes(shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, BlockFormat]) -> int:
    return sum(fmt.row_bytes(shapes[name][-1]) * math.prod(shapes[name][:-1]) for name, fmt in types.items())


class _Mixer:
    """Goes through a model's tensors once, and counts those of each kind as it goes."""

    def __init__(
        self, names: Iterable[str], facts: Facts, preset: Preset, choices: Choices, has_imatrix: bool,
        fit: Fit | None = None,
    ) -> None:
        self.fit = fit or (lambda name, fmt, k: fallback(fmt, k))
        self.facts, self.preset, self.choices, self.has_imatrix = facts, preset, choices, has_imatrix
        kinds = [_kind(name) for name in names]
        self.counts = {"attn_v": kinds.count("attn_v")}
        self.tied = "output" not in kinds
        self.seen: dict[str, int] = {}
        self.unfit: list[str] = []
        self.embedding = target_format(choices.embedding_type) if choices.embedding_type else None
        self.output = target_format(choices.output_type) if choices.output_type else None

    def type_of(self, name: str, shape: tuple[int, ...]) -> BlockFormat:
        kind = _kind(name)
        if kind == "token_embd" and self.embedding:
            return _fitting(name, shape, self.embedding)
        if kind == "output" and self.output:
            return _fitting(name, shape, self.output)
        assert self.preset.base is not None
        base = by_name(self.preset.base)
        if base.is_float:
            return base
        manual = next((fmt for pattern, fmt in self.choices.patterns if pattern.search(name)), None)
        if manual is None:
            manual = base if self.choices.pure else self._mixed(name, kind, shape, base)
        if shape[-1] % manual.block:
            fitting = self.fit(name, manual, shape[-1])
            self.unfit.append(_unfit(name, shape, fitting, manual))
            return fitting
        return manual

    def _mixed(self, name: str, kind: str, shape: tuple[int, ...], base: BlockFormat) -> BlockFormat:
        if kind == "output" or (kind == "token_embd" and self.tied):
            return self.output or self._output(name, shape, base)
        if self.preset.experts:
            return base if len(shape) > 2 and shape[-3] > 1 else by_name("Q8_0")
        if kind == "token_embd":
            return by_name(self._ruled(kind, 0) or base.name)
        index = self.seen.get(kind, 0)
        self.seen[kind] = index + 1
        if kind.startswith("ffn_") and self.facts.experts > 1:
            index = self._layer_of_expert(name)
        return by_name(self._ruled(kind, index) or base.name)

    def _output(self, name: str, shape: tuple[int, ...], base: BlockFormat) -> BlockFormat:
        rule, eight = self.preset.mix.get("output"), base.name == "Q8_0" or self.preset.experts
        wished = (rule(TensorPlace(0, 1)) or base.name) if rule else "Q8_0" if eight else "Q6_K"
        if shape[-1] % base.block == 0:
            return by_name(wished)
        if wished != "Q8_0" and shape[-1] % 32 == 0:  # else what isn't 32 is told with the type that it gets
            self.unfit.append(_unfit(name, shape, by_name("Q8_0"), by_name(wished)))
        return by_name("Q8_0")

    def _ruled(self, kind: str, index: int) -> str | None:
        facts = self.facts
        eight = facts.experts == EIGHT_EXPERTS and not self.preset.small
        if kind in ("attn_v", "attn_k") and eight:
            return "Q8_0"
        rule = self.preset.mix.get(kind)
        count = self.counts.get(kind, facts.layers)
        found = rule(TensorPlace(index, count, facts.heads_per_kv, facts.experts, self.has_imatrix)) if rule else None
        big = facts.big_llama and not self.preset.small
        if kind == "attn_v" and big and (found or self.preset.base) in ("Q3_K", "Q4_K"):
            return "Q5_K"
        return found

    def _layer_of_expert(self, name: str) -> int:
        layer = _layer(name)
        if not 0 <= layer < self.facts.layers:
            raise UsageError(f"tensor {name!r} is in no layer (allowed: blk.0 to blk.{self.facts.layers - 1})")
        return layer


def _unfit(name: str, shape: tuple[int, ...], given: BlockFormat, wished: BlockFormat) -> str:
    why = f"{shape[-1]} values, not a multiple of {wished.block}"
    return f"{name} ({why}) is {given.name} instead of {wished.name}"


def _kind(name: str) -> str:
    if name in ("output.weight", "token_embd.weight", "per_layer_token_embd.weight"):
        return "output" if name == "output.weight" else "token_embd"
    return next((kind for kind, parts in KINDS if any(part in name for part in parts)), "other")


def _layer(name: str) -> int:
    layer, _ = split_layer(name)
    return -1 if layer is None else layer


def fallback(fmt: BlockFormat, k: int) -> BlockFormat:
    """`fmt`, or the format that rows of `k` values can be stored in instead."""
    if k % fmt.block:
        fmt = by_name(FALLBACKS.get(fmt.name, fmt.name))
    return by_name("F16") if k % fmt.block else fmt


def _fitting(name: str, shape: tuple[int, ...], fmt: BlockFormat) -> BlockFormat:
    if shape[-1] % fmt.block:
        raise UsageError(f"tensor {name!r}: rows of {shape[-1]} values do not fit {fmt.name}, blocks of {fmt.block}")
    return fmt
