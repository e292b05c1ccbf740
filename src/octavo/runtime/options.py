"""Options of a generation, and what a model's file recommends for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict, Unpack, cast

from octavo.errors import ModelError, UsageError
from octavo.io.gguf import GGUFFile
from octavo.runtime.argument_checks import integer, require_known, texts
from octavo.runtime.grammar.grammar import Grammar
from octavo.runtime.sampling.sampler import SamplingParams


class SamplingOptions(TypedDict, total=False):
    """Fields of SamplingParams as keyword arguments; those left out are the model's own, or the defaults."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: Collection[int]
    seed: int | None
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    banned_strings: Sequence[str]
    reasoning_budget: int
    reasoning_budget_message: str


class GenerateOptions(SamplingOptions, total=False):
    """Keyword arguments of `Model.generate` that are not about a single prompt."""

    system: str | None
    think: bool | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    grammar: Grammar | None
    logprobs: int | None


ENDLESS, NO_LIMIT = (-1, -2), ", or -1 for no limit"
"""Of `max_tokens`: as many as the context holds. llama.cpp and Ollama have two such numbers."""
OF_BASE_MODELS = 512
"""Most tokens of a reply, unless somebody says how many, of a model without a chat template, which seldom ends one."""
NAMES = ("raw", *GenerateOptions.__annotations__)

SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repeat_penalty": "general.sampling.penalty_repeat",
    "repeat_last_n": "general.sampling.penalty_last_n",
}
"""Fields of SamplingParams that a file may recommend a value for, and where."""


@dataclasses.dataclass(frozen=True)
class GenerationSettings:
    """Options as they are used: how tokens are chosen, and where a reply ends."""

    sampling: SamplingParams
    max_tokens: int | None
    stop: tuple[str, ...]


def settings(function: str, file: GGUFFile, **options: Unpack[GenerateOptions]) -> GenerationSettings:
    """Options of a function, checked, over those of a model's file.

    Raises UsageError for what is wrong with one, or if there is none of its name.
    """
    require_known(function, options, NAMES)
    most = options.get("max_tokens", usual_limit(file))
    fields = {f.name for f in dataclasses.fields(SamplingParams)}
    given = {name: value for name, value in options.items() if name in fields}
    return GenerationSettings(
        SamplingParams(**cast(dict[str, Any], {**recommended(file), **given})),
        None if most in (None, *ENDLESS) else integer("max_tokens", most, 0, also=NO_LIMIT),
        tuple(texts("stop", options.get("stop"))),
    )


def usual_limit(file: GGUFFile) -> int | None:
    """The most tokens of a reply where nobody says how many; None for as many as fit."""
    return None if "tokenizer.chat_template" in file.metadata else OF_BASE_MODELS


def recommended(file: GGUFFile) -> SamplingOptions:
    """What a model's own metadata recommends (general.sampling.*). Raises ModelError for what is out of range."""
    metadata = file.metadata
    found: dict[str, Any] = {}
    for name, key in SAMPLING_KEYS.items():
        if key not in metadata:
            continue
        found[name] = (metadata.get_int if name in ("top_k", "repeat_last_n") else metadata.get_float)(key)
        try:
            SamplingParams(**found)
        except UsageError as error:
            raise ModelError(str(error), file=file.path, field=key) from None
    return cast(SamplingOptions, found)
