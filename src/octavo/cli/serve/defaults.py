"""Defaults of requests to `octavo serve`: sampling, the number of tokens, and the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import typer

from octavo.cli.options import SamplingFlags
from octavo.errors import UsageError

default_option = partial(typer.Option, rich_help_panel="Defaults of requests")
MOST_TEMPLATE = 1 << 20
"""Bytes of a file with a chat template."""


@dataclass
class Defaults(SamplingFlags):
    """What counts where a request does not say otherwise."""

    seed: Annotated[int, default_option("--seed", "-s", help="Random seed; -1: a new one each time.")] = -1
    max_tokens: Annotated[
        int | None,
        default_option("--max-tokens", "-n", help="Maximum number of tokens of a reply; -1: to the end of the context "
                       "(default: 16 for /v1/completions, 512 for a model without a chat template, else -1)."),
    ] = None
    reasoning: Annotated[
        Literal["auto", "on", "off"],
        default_option("--reasoning", "-rea",
                       help="Whether the model thinks first; auto: where its template leaves it open."),
    ] = "auto"
    template_file: Annotated[
        str | None,
        default_option("--chat-template-file", metavar="FILE", help="A chat template in place of the model's own."),
    ] = None
    template_kwargs: Annotated[
        str | None,
        default_option("--chat-template-kwargs", metavar="JSON", help="Variables of the chat template, as an object."),
    ] = None

    def given(self) -> dict[str, Any]:
        """As fields of ServerOptions. Raises UsageError for what is wrong with one."""
        from octavo.io.regular_file import read_text

        return {
            "sampling": self._sampling(), "seed": self._seed(), "max_tokens": self._max_tokens(),
            "reasoning": self.reasoning, "variables": self._variables(),
            "template_text": self.template_file and read_text(self.template_file, MOST_TEMPLATE),
        }

    def _sampling(self) -> Mapping[str, Any]:
        from octavo.runtime import SamplingParams

        found = self.params()
        SamplingParams(**found)  # raises for a value out of range
        return found

    def _seed(self) -> int:
        if not -1 <= self.seed < 1 << 64:
            raise UsageError(f"seed is {self.seed} (allowed: -1 to {(1 << 64) - 1})", argument="seed")
        return self.seed

    def _max_tokens(self) -> int | None:
        if self.max_tokens is not None and (self.max_tokens == 0 or self.max_tokens < -1):
            problem = f"max_tokens is {self.max_tokens} (allowed: 1 or more, or -1 for no limit)"
            raise UsageError(problem, argument="max_tokens")
        return self.max_tokens

    def _variables(self) -> Mapping[str, Any]:
        if self.template_kwargs is None:
            return {}
        try:
            found = json.loads(self.template_kwargs, object_pairs_hook=_each_once)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--chat-template-kwargs is not valid JSON: {error}") from None
        if not isinstance(found, dict):
            raise UsageError(f"--chat-template-kwargs is {self.template_kwargs} (allowed: an object, as "
                             '{"enable_thinking": false})')
        return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found
