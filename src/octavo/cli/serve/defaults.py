"""What requests to `octavo serve` have where they don't say: how tokens are chosen, how many, and the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from octavo.errors import UsageError

USUAL = "Where requests don't say"
MOST_TEMPLATE = 1 << 20
"""Bytes of a file with a chat template."""


@dataclass
class Defaults:
    """What counts where a request does not say otherwise."""

    temp: Annotated[
        float | None,
        typer.Option("--temp", "--temperature", help="0 is greedy (default: the model's own, or 0.8).",
                     rich_help_panel=USUAL),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(help="Only the k most likely; 0 or -1: all (default: the model's, or 40).", rich_help_panel=USUAL),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(help="Only the most likely that together have this probability (default: the model's, or 0.95).",
                     rich_help_panel=USUAL),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(help="Only those at least this likely, relative to the best (default: the model's, or 0.05).",
                     rich_help_panel=USUAL),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        typer.Option(help="Over 1: recent tokens get less likely (default: the model's, or 1).", rich_help_panel=USUAL),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        typer.Option(help="How many tokens are recent; -1: all (default: the model's, or 64).", rich_help_panel=USUAL),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(help="Taken from the logits of tokens that the reply has (default: 0).", rich_help_panel=USUAL),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(help="Taken from them for each time that it has them (default: 0).", rich_help_panel=USUAL),
    ] = None
    seed: Annotated[
        int, typer.Option("--seed", "-s", help="Of random numbers; -1: another one each time.", rich_help_panel=USUAL)
    ] = -1
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", "-n", help="Of a reply; -1: to the end of the context (default: 16 of "
                     "/v1/completions, 512 of a model without a chat template, else -1).", rich_help_panel=USUAL),
    ] = None
    reasoning: Annotated[
        Literal["auto", "on", "off"],
        typer.Option("--reasoning", "-rea", help="Whether the model thinks first; auto: where its template leaves that "
                     "open.", rich_help_panel=USUAL),
    ] = "auto"
    template_file: Annotated[
        str | None,
        typer.Option("--chat-template-file", metavar="FILE", help="A chat template in place of the model's own.",
                     rich_help_panel=USUAL),
    ] = None
    template_kwargs: Annotated[
        str | None,
        typer.Option("--chat-template-kwargs", metavar="JSON", help="Variables of the chat template, as an object.",
                     rich_help_panel=USUAL),
    ] = None

    def given(self) -> dict[str, Any]:
        """As fields of ServerOptions. Raises UsageError for what is wrong with one."""
        from octavo.io.regular import read_text

        return {
            "sampling": self._sampling(), "seed": self._seed(), "max_tokens": self._max_tokens(),
            "reasoning": self.reasoning, "variables": self._variables(),
            "template_text": self.template_file and read_text(self.template_file, MOST_TEMPLATE),
        }

    def _sampling(self) -> Mapping[str, Any]:
        from octavo.runtime import SamplingParams

        names = ("top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty")
        every = {"temperature": self.temp, **{name: getattr(self, name) for name in names}}
        found = {name: value for name, value in every.items() if value is not None}
        SamplingParams(**found)  # raises for a value out of range
        return found

    def _seed(self) -> int:
        if not -1 <= self.seed < 1 << 64:
            raise UsageError(f"seed is {self.seed} (allowed: -1 to {(1 << 64) - 1})", argument="seed")
        return self.seed

    def _max_tokens(self) -> int | None:
        if self.max_tokens is not None and (self.max_tokens == 0 or self.max_tokens < -1):
            raise UsageError(f"max_tokens is {self.max_tokens} (allowed: 1 or more, -1)", argument="max_tokens")
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
        raise ValueError("a key is there twice")
    return found
