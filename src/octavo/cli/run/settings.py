"""What `/set` of a conversation shows and changes: the options of a reply, and where each value comes from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, cast

from octavo.errors import UsageError
from octavo.runtime import GenerateOptions, SamplingParams
from octavo.runtime.argument_checks import KNOWN_AS, integer
from octavo.runtime.options import ENDLESS, NO_LIMIT


def _switch(text: str) -> bool:
    return {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}[text.lower()]


def _texts(text: str) -> list[str]:
    r"""Words, or texts in quotation marks; `\\n` is a line end."""
    return [word.replace("\\n", "\n") for word in shlex.split(text)]


KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "temperature": (float, "a number"), "top_k": (int, "an integer"), "top_p": (float, "a number"),
    "min_p": (float, "a number"), "repeat_penalty": (float, "a number"), "repeat_last_n": (int, "an integer"),
    "presence_penalty": (float, "a number"), "frequency_penalty": (float, "a number"),
    **dict.fromkeys(("typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base"),
                    (float, "a number")),
    **dict.fromkeys(("dry_allowed_length", "dry_penalty_last_n", "reasoning_budget"), (int, "an integer")),
    **dict.fromkeys(("dry_sequence_breakers", "banned_strings"), (_texts, "texts, in quotation marks")),
    "reasoning_budget_message": (str, "a text"),
    "seed": (int, "an integer"), "max_tokens": (int, "an integer"), "stop": (_texts, "texts, in quotation marks"),
    "think": (_switch, "on, off"),
}
"""How a setting is read, and what that takes."""

DEFAULT = "default"
UNSET = {"seed": "random", "max_tokens": "until the model ends", "stop": "none", "think": "as the template has it"}


class ChatSettings:
    """The options of a conversation's replies: `options` are those that were set, `own` what the model recommends."""

    def __init__(self, options: GenerateOptions, own: dict[str, Any]) -> None:
        self.options = options
        self._own = own

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Name, value and origin of each."""
        plain = {field.name: field.default for field in fields(SamplingParams)}
        for name in KINDS:
            if name in self.options:
                value, origin = cast(dict[str, Any], self.options)[name], "set"
            elif name in self._own:
                value, origin = self._own[name], "the model's"
            else:
                value, origin = plain.get(name), "default"
            yield name, _as_text(name, value), origin

    def line(self, name: str) -> str:
        """A setting as a line of text."""
        found, value, origin = next(row for row in self.rows() if row[0] == known(name))
        return f"{found} is {value} ({origin})."

    def change(self, name: str, text: str) -> None:
        """Set an option; `default` takes back what was set. Raises UsageError for what it can't be."""
        name = known(name)
        options = {key: value for key, value in self.options.items() if key != name}
        if text != DEFAULT:
            options[name] = _read(name, text)
        self.options = cast(GenerateOptions, options)


def plain(name: str) -> str:
    """A setting's name as Python has it, of one that is typed as an option."""
    name = name.lower().lstrip("-").replace("-", "_")
    return KNOWN_AS.get(name, name)


def known(name: str) -> str:
    """The setting that a name stands for. Raises UsageError for none."""
    if plain(name) not in KINDS:
        raise UsageError(f"no setting {name!r} (allowed: {', '.join(KINDS)})")
    return plain(name)


def _read(name: str, text: str) -> Any:
    read, allowed = KINDS[name]
    try:
        value = read(text)
    except (ValueError, KeyError):
        raise UsageError(f"{name} can't be {text!r} (allowed: {allowed}, {DEFAULT})") from None
    if name == "max_tokens":
        return None if value in ENDLESS else integer(name, value, 0, also=NO_LIMIT)
    if name not in ("stop", "think"):
        SamplingParams(**{name: value})  # raises for a value out of range
    return value


def _as_text(name: str, value: Any) -> str:
    if value is None:
        return UNSET[name]
    if isinstance(value, list | tuple):
        return " ".join(map(repr, value)) or "none"
    if isinstance(value, str):
        return repr(value) if value else "none"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else f"{value}"
