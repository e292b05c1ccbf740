"""Variables of the chat template that a request sets, over those that the server was started with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import UsageError
from octavo.runtime.prompt_tokens import THINK
from octavo.text import ChatTemplate

SET_HERE = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
"""Variables that are made of a request's other fields, or of the model."""
CHOICES = (THINK, "thinking")
"""Variables by which templates leave a choice of thinking: Qwen3's and most others', DeepSeek's."""
MOST_NAMES = 64
MOST_VALUES = 4096
MOST_DEPTH = 32
MOST_CHARACTERS = 1 << 16
MOST_INTEGER = 1 << 63


def require_variables(given: Mapping[str, Any], argument: str) -> None:
    """Raises UsageError for variables that are set here, for too many or too long ones, and for what is not a number.

    Templates are refused that take too long with them, see `octavo.text.sandbox`.
    """

    def wrong(problem: str) -> UsageError:
        return UsageError(f"{argument} {problem}", argument=argument)

    if len(given) > MOST_NAMES:
        raise wrong(f"has {len(given)} names (allowed: up to {MOST_NAMES})")
    for name in SET_HERE:
        if name in given:
            raise wrong(f"has {name!r}, which the server sets itself")
    if not isinstance(given.get(THINK, True), bool):
        raise wrong(f"has {json.dumps(given[THINK])[:60]} as {THINK} (allowed: true, false)")
    left, values, characters = list[tuple[int, Any]]((0, one) for one in (*given, *given.values())), 0, 0
    while left:
        depth, value = left.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, Mapping):
            left += [(depth + 1, one) for one in (*value, *value.values())]
        elif isinstance(value, list):
            left += [(depth + 1, one) for one in value]
        elif isinstance(value, float) and not math.isfinite(value):
            raise wrong("has a number that is too large")
        elif isinstance(value, int) and abs(value) > MOST_INTEGER:
            raise wrong("has an integer of more than 64 bits")
        if depth > MOST_DEPTH:
            raise wrong(f"is nested deeper than {MOST_DEPTH} levels")
        if values > MOST_VALUES or characters > MOST_CHARACTERS:
            raise wrong(f"has more than {MOST_VALUES} names and values, or {MOST_CHARACTERS} characters")


def template_variables(usual: Mapping[str, Any], body: Any) -> dict[str, Any]:
    """The variables of a request: those that are `usual`, and what its fields say. Raises UsageError."""
    given = body.chat_template_kwargs or {}
    require_variables(given, "chat_template_kwargs")
    effort = getattr(body, "reasoning_effort", None)
    return {**usual, **({} if effort is None else {"reasoning_effort": effort}), **given}


def usual_variables(given: Mapping[str, Any], reasoning: str, templates: Sequence[ChatTemplate]) -> dict[str, Any]:
    """The variables that requests have where they set none, of a server's options.

    Templates that leave a choice of thinking are told to think, as by llama-server: they mean different things where
    nothing is said. Raises UsageError for `reasoning` where there is no choice.
    """
    require_variables(given, "chat_template_kwargs")
    if reasoning == "auto":
        return {THINK: True, **given}
    names = [name for name in CHOICES if any(name in one.variables for one in templates)]
    if not names:
        problem = f"reasoning is {reasoning!r}, but the chat template has no variable for it: only auto works"
        raise UsageError(problem, argument="reasoning")
    if both := [name for name in names if name in given]:
        problem = f"reasoning {reasoning!r} and {both[0]!r} of chat_template_kwargs can't be used together"
        raise UsageError(problem, argument="reasoning")
    return {**dict.fromkeys(names, reasoning == "on"), **given}
