"""Experts that met too few tokens of a text for a method to go by."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

_log = logging.getLogger(__name__)

NAMED = 8
"""Experts that a line of the log names."""


@dataclass(frozen=True)
class UndersampledExpert:
    """An expert, by one input of its weights.

    input   the first of the weights that read it, as in "blk.0.ffn_gate_exps.weight"
    tokens  that it met
    how     its weights were made instead, as in "nearest"
    """

    input: str
    expert: int
    tokens: int
    how: str


class MadeOf(Protocol):
    """A weight that was made, experts each by itself."""

    @property
    def starved(self) -> Sequence[UndersampledExpert]: ...


def undersampled(made: Iterable[MadeOf]) -> tuple[UndersampledExpert, ...]:
    """Those of some weights, each once."""
    return tuple(dict.fromkeys(found for each in made for found in each.starved))


def warn(starved: Sequence[UndersampledExpert]) -> None:
    """Tell of them, if there are any, in one line of the log: the first few by name, and how many more."""
    if not starved:
        return
    named = ", ".join(f"{s.input} expert {s.expert} ({s.tokens})" for s in starved[:NAMED])
    more = f" and {len(starved) - NAMED} more" if len(starved) > NAMED else ""
    ways = " or ".join(sorted({s.how for s in starved}))
    _log.warning("experts with too few tokens are made by %s: %s%s; a longer text helps", ways, named, more)
