"""Presets: the names that say how a model is quantized, as llama-quantize knows them, and their mixing.

A preset has a base type, and rules that give more bits to the tensors that need them. The names, numbers and rules are
those of llama.cpp (src/llama-quant.cpp), so that a preset means the same file here and there.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from octavo.errors import UsageError

EIGHT_EXPERTS = 8  # Mixtral, whose attention is small beside its experts


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor stands: the `index`th of `count` of its kind, query heads a key head, experts, imatrix or not."""

    index: int
    count: int
    heads_per_kv: int = 1
    experts: int = 0
    has_imatrix: bool = False

    @property
    def needs_more(self) -> bool:
        """The first and the last eighth of the layers, and every third between."""
        eighth = self.count // 8
        return self.index < eighth or self.index >= 7 * self.count // 8 or (self.index - eighth) % 3 == 2


Rule = Callable[[TensorPlace], str | None]
"""The type at a place; None for the preset's base."""


def _always(kind: str) -> Rule:
    return lambda place: kind


def _more(kind: str) -> Rule:
    return lambda place: kind if place.needs_more else None


def _first(layers: int, kind: str, rest: str | None = None) -> Rule:
    return lambda place: kind if place.index < layers else rest


def _first_part(part: int, kind: str, rest: str | None = None) -> Rule:
    """The first 1 / part of the layers."""
    return lambda place: kind if place.index < place.count // part else rest


def _shared_heads(kind: str, rest: str | None = None) -> Rule:
    """Where four or more query heads share a key head."""
    return lambda place: kind if place.heads_per_kv >= 4 else rest


def _when_imatrix(given: bool, rule: Rule) -> Rule:
    return lambda place: rule(place) if place.has_imatrix is given else None


def _eight_experts(rule: Rule | None = None) -> Rule:
    """Q5_K in a model of eight experts, `rule` in others."""
    return lambda place: "Q5_K" if place.experts == EIGHT_EXPERTS else rule(place) if rule else None


def _middle(kind: str) -> Rule:
    """All layers but the first and the last eighth."""
    return lambda place: kind if place.count // 8 <= place.index < 7 * place.count // 8 else None


def _of_two_bits(more: str, attn_output: str | None = None) -> dict[str, Rule]:
    """The mix of presets of some two bits, `more` for what needs it."""
    return {
        "output": _always("Q5_K"),
        "token_embd": _always(more),
        "attn_v": lambda place: "Q4_K" if place.heads_per_kv >= 4 or place.experts >= 4 else more,
        "attn_k": lambda place: "Q4_K" if place.experts == EIGHT_EXPERTS else None,
        "attn_output": lambda place: "Q5_K" if place.experts == EIGHT_EXPERTS else attn_output,
        "ffn_down": _first_part(8, more),
    }


@dataclass(frozen=True)
class Preset:
    """A way to quantize a model.

    file_type  what `general.file_type` says; None: what the source says
    base       type of every tensor that no rule gives another; None where tensors are copied
    mix        rules by kind of tensor: attn_v (and fused projections that hold v), attn_output, ffn_down, ...
    small      of some two bits: attention gets no more bits in models of eight experts or of 80 layers
    experts    `base` is the type of experts alone, and Q8_0 that of all other tensors
    """

    name: str
    file_type: int | None
    base: str | None
    mix: Mapping[str, Rule] = field(default_factory=dict)
    small: bool = False
    experts: bool = False


PRESETS: tuple[Preset, ...] = (
    Preset("F32",       0,  "F32"),
    Preset("F16",       1,  "F16"),
    Preset("BF16",      32, "BF16"),
    Preset("COPY",      None, None),
    Preset("Q8_0",      7,  "Q8_0"),
    Preset("Q6_K",      18, "Q6_K"),
    Preset("Q5_K_M",    17, "Q5_K",   {"attn_v": _more("Q6_K"), "ffn_down": _more("Q6_K")}),
    Preset("Q5_K_S",    16, "Q5_K"),
    Preset("Q5_1",      9,  "Q5_1"),
    Preset("Q5_0",      8,  "Q5_0",   {"ffn_down": _when_imatrix(True, _first_part(8, "Q5_1"))}),
    Preset("Q4_K_M",    15, "Q4_K",   {"attn_v": _more("Q6_K"), "ffn_down": _more("Q6_K"),
                                       "attn_output": _eight_experts()}),
    Preset("Q4_K_S",    14, "Q4_K",   {"attn_v": _first(4, "Q5_K"), "ffn_down": _first_part(8, "Q5_K"),
                                       "attn_output": _eight_experts()}),
    Preset("Q4_1",      3,  "Q4_1"),
    Preset("Q4_0",      2,  "Q4_0",   {"ffn_down": _when_imatrix(True, _first_part(8, "Q4_1"))}),
    Preset("IQ4_NL",    25, "IQ4_NL", {"attn_v": _shared_heads("Q5_K"), "attn_output": _eight_experts(),
                                       "ffn_down": _when_imatrix(False, _first_part(8, "Q5_K"))}),
    Preset("IQ4_XS",    30, "IQ4_XS", {"attn_v": _shared_heads("Q5_K"), "attn_output": _eight_experts(),
                                       "ffn_down": _when_imatrix(False, _first_part(8, "Q5_K"))}),
    Preset("MXFP4_MOE", 38, "MXFP4", experts=True),
    Preset("Q3_K_L",    13, "Q3_K",   {"attn_v": _always("Q5_K"), "ffn_down": _always("Q5_K"),
                                       "attn_output": lambda p: None if p.experts == EIGHT_EXPERTS else "Q5_K"}),
    Preset("Q3_K_M",    12, "Q3_K",   {"attn_v": _first(2, "Q5_K", "Q4_K"),
                                       "ffn_down": _first_part(16, "Q5_K", "Q4_K"),
                                       "attn_output": _eight_experts(_always("Q4_K"))}),
    Preset("Q3_K_S",    11, "Q3_K",   {"attn_output": _eight_experts()}),
    Preset("Q2_K",      10, "Q2_K",   {"attn_v": _shared_heads("Q4_K", "Q3_K"), "ffn_down": _always("Q3_K"),
                                       "attn_output": _eight_experts(_always("Q3_K"))}),
    Preset("IQ3_M",     27, "IQ3_S",  {"attn_v": _always("Q4_K"), "attn_output": _eight_experts(_always("Q4_K")),
                                       "ffn_down": lambda p: "Q4_K" if p.index < p.count // 8 or
                                       (p.experts == EIGHT_EXPERTS and p.needs_more) else None}),
    Preset("IQ3_S",     26, "IQ3_S",  {"attn_v": _shared_heads("Q4_K"), "attn_output": _eight_experts()}),
    Preset("IQ3_XS",    22, "IQ3_S",  {"attn_v": _shared_heads("Q4_K"), "attn_output": _eight_experts(),
                                       "attn_q": _always("IQ3_XXS"), "attn_k": _always("IQ3_XXS"),
                                       "ffn_gate": _middle("IQ3_XXS"), "ffn_up": _middle("IQ3_XXS")}),
    Preset("IQ3_XXS",   23, "IQ3_XXS", {"output": _always("Q5_K"), "token_embd": _always("IQ3_S"),
                                        "attn_v": lambda p: "Q4_K" if p.heads_per_kv >= 4 else
                                        None if p.has_imatrix else "IQ3_S",
                                        "attn_q": _always("IQ2_S"), "attn_k": _always("IQ2_S"),
                                        "attn_output": _eight_experts(_always("IQ3_S")),
                                        "ffn_down": _when_imatrix(False, _first_part(8, "Q4_K", "Q3_K"))}),
    Preset("IQ2_M",     29, "IQ2_S",  _of_two_bits("IQ3_S", "IQ3_S"), small=True),
    Preset("IQ2_S",     28, "IQ2_XS", _of_two_bits("IQ3_S", "IQ3_S"), small=True),
    Preset("IQ2_XS",    20, "IQ2_XS", _of_two_bits("Q2_K"), small=True),
    Preset("IQ2_XXS",   19, "IQ2_XXS", _of_two_bits("Q2_K"), small=True),
    Preset("IQ1_M",     31, "IQ1_M",  _of_two_bits("Q2_K", "IQ2_XXS"), small=True),
    Preset("IQ1_S",     24, "IQ1_S",  _of_two_bits("Q2_K", "IQ2_XXS"), small=True),
    Preset("TQ2_0",     37, "TQ2_0",  {"token_embd": _always("Q4_K")}),
    Preset("TQ1_0",     36, "TQ1_0",  {"token_embd": _always("Q4_K")}),
    Preset("Q2_K_S",    21, "Q2_K",   {"attn_v": _shared_heads("Q4_K"), "ffn_down": _first_part(8, "Q4_K")}),
)


ALIASES = {"Q5_K": "Q5_K_M", "Q4_K": "Q4_K_M", "Q3_K": "Q3_K_M"}
NEEDS_IMATRIX = {"Q2_K_S": "Q2_K"}
"""Presets whose tensors of a type are of no use without importance weights, and the type."""

WEIGHTED = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"})
"""Types that are of no use without them under any preset."""

FALLBACKS = {"IQ4_XS": "IQ4_NL", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
             "TQ1_0": "Q4_0", "TQ2_0": "Q4_0", "IQ3_S": "IQ4_NL", **dict.fromkeys(WEIGHTED, "IQ4_NL")}
"""What a row that is not whole blocks of 256 gets instead; one that is not whole blocks of 32 gets F16."""

_BY_NAME = {preset.name: preset for preset in PRESETS}
_ELSEWHERE = frozenset({"Q1_0", "Q2_0"})


def find_preset(name: str) -> Preset:
    """The preset called `name`, in any case, or by an alias. Raises UsageError for others."""
    wanted = name.upper()
    preset = _BY_NAME.get(ALIASES.get(wanted, wanted))
    if preset is None:
        names = [*_BY_NAME, *ALIASES]
        near = difflib.get_close_matches(wanted.replace("-", "_"), names, n=1)
        hint = f"; did you mean {near[0]}?" if near and wanted not in _ELSEWHERE else ""
        problem = "can be read, but there is no encoder for it" if wanted in _ELSEWHERE else "is not known"
        raise UsageError(f"preset {name!r} {problem}{hint} (allowed: {', '.join(names)})")
    return preset
