"""Patterns for names of modules, from files that nobody vouches for: only such as can't take long."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.errors import ModelError
from octavo.expressions import compiled
from octavo.huggingface.layouts.quant_settings import QuantSettings, brief

MOST_CHARACTERS, MOST_REPEATS, MOST_NAME = 1024, 4, 256
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_REPEATS = re.compile(r"(?<!\\)[*+{]")


@dataclass(frozen=True)
class Pattern:
    """A regular expression that matches names from their start."""

    compiled: re.Pattern[str]

    @classmethod
    def of(cls, settings: QuantSettings, text: str) -> Pattern:
        """Raises ModelError, naming where `settings` lie, for what is not an expression or repeats too much."""
        fault: ModelError | None = None
        if len(text) > MOST_CHARACTERS or _REPEATED_GROUP.search(text) or len(_REPEATS.findall(text)) > MOST_REPEATS:
            allowed = f"{MOST_CHARACTERS} characters, {MOST_REPEATS} repetitions, none of a group"
            fault = settings.config.error(settings.path, f"is {brief(text)}, which may take long to match", allowed)
        else:
            try:
                return cls(compiled(text))
            except re.error as error:
                fault = settings.config.error(settings.path, f"is {brief(text)}: {error}", "a regular expression")
        raise fault from None

    def matches(self, name: str) -> bool:
        """Whether the expression matches from the start of a name."""
        return self.compiled.match(name[:MOST_NAME]) is not None
