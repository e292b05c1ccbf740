"""Drafter: what makes drafts with an engine of its own, which take time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from octavo.runtime.scheduler.request import Request
from octavo.runtime.speculation.draft_record import DrafterName

MOST_TOKENS = 7
"""Tokens of a draft at the most."""


class Drafter(Protocol):
    """A draft model, or a head of the model itself, whose drafts have `most` tokens at the most.

    reads  a prompt of a request that was to have a draft is not read to its end yet
    """

    name: DrafterName
    most: int
    reads: bool

    def can_draft(self, request: Request, most: int) -> bool:
        """Whether it can make a draft of `most` tokens of a request now."""

    def seconds(self, requests: int, tokens: int) -> float:
        """Of drafts of `tokens` tokens for each of some requests; 0 while nothing is known."""

    def drafts(self, lengths: Mapping[Request, int]) -> dict[Request, list[int]]:
        """A draft of each length, or a shorter one, or none."""
