"""Prompts: a question, messages or token ids, as the tokens that a model is given."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from octavo.errors import UsageError
from octavo.runtime.argument_checks import flag, wrong
from octavo.text import ChatTemplate, Tokenizer

Message = Mapping[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}"""

Prompt = str | Sequence[int] | Sequence[Message]


THINK = "enable_thinking"
"""The variable of chat templates that says whether a model is to think before it answers."""


def encode_prompt(
    prompt: Prompt,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    system: str | None = None,
    think: bool | None = None,
) -> list[int]:
    """The tokens that a prompt comes to: of a question and of messages by way of the template, if there is one.

    Raises UsageError for messages, a system message or `think` without a template, for `think` with one that leaves no
    choice, and for what is not a prompt.
    """
    if system is not None and not isinstance(system, str):
        raise wrong("system", system, "a text")
    if think is not None:
        flag("think", think)
    if isinstance(prompt, str) and template is not None:
        prompt = [{"role": "user", "content": prompt}]
    parts = [] if isinstance(prompt, str) else prompt_parts(prompt)
    if parts and isinstance(parts[0], Mapping):
        if template is None:
            raise UsageError("messages need a chat template: this model has none, or raw was asked for")
        return _encode_messages(parts, tokenizer, template, system, think)
    if think is not None:
        problem = "think needs a chat template: the prompt is raw, or the model has no template"
        raise UsageError(problem, argument="think")
    if system:
        raise UsageError("a system message needs a chat template: the prompt is raw, or the model has no template")
    return tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(parts)


ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")


def token_ids(values: Iterable[int]) -> list[int]:
    """Token ids, of any integer type, as a list. Raises UsageError for what is not an integer."""
    ids = []
    for value in values:
        try:
            if isinstance(value, bool):
                raise TypeError
            ids.append(operator.index(value))
        except TypeError:
            hint = "; generate_many takes several texts, and tokenizer.encode makes ids of one"
            told = f"{value!r} is not a token id, which is an integer"
            raise UsageError(told + (hint if isinstance(value, str) else "")) from None
    return ids


def prompt_parts(prompt: object) -> list[Any]:
    """Messages, or token ids, as a list of its own. Raises UsageError for what is not a prompt."""
    if isinstance(prompt, Iterable) and not isinstance(prompt, bytes | bytearray | memoryview | Mapping | Set):
        with suppress(TypeError):  # an array without dimensions
            return list(prompt)
    hint = ", as [{...}]" if isinstance(prompt, Mapping) else ""
    raise wrong("prompt", prompt, f"a text, a list of messages{hint}, or a list of token ids")


def _encode_messages(
    parts: Sequence[Any], tokenizer: Tokenizer, template: ChatTemplate, system: str | None, think: bool | None
) -> list[int]:
    for m in parts:
        if not isinstance(m, Mapping) or not all(isinstance(m.get(k), str) for k in ("role", "content")):
            raise UsageError(f"{m!r} is not a message: it needs a role and a content, both strings")
        if m["role"] not in ROLES and m["role"] not in template.source:
            raise UsageError(f"a message has the role {m['role']!r} (allowed: {', '.join(ROLES)})")
    messages = [dict(m) for m in parts]
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    if think is not None and THINK not in template.source:
        raise UsageError(f"think can't be set: the model's chat template has no {THINK}", argument="think")
    choice: dict[str, Any] = {} if think is None else {THINK: think}
    return tokenizer.encode_chat(template, messages, **choice)
