"""Constraints: what a reply may be, as a grammar says; for one request."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol, TypeGuard

import numpy as np

from octavo.formats.spec import F32, AnyArray


class PendingMask(Protocol):
    """What a constraint waits for.

    due  the time of `clock` up to which a step waits for it
    """

    @property
    def due(self) -> float: ...

    def fileno(self) -> int:
        """A descriptor that can be read from once it may be there; -1 where there is none."""


class Constraint(Protocol):
    """What a reply may be: which tokens may come next, after those that were accepted. It is for one request."""

    @property
    def pending_mask(self) -> PendingMask | None:
        """What `fill` and `stopped` would wait for; None where they would not."""

    def fill(self, mask: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        """Set bit `t % 32` of word `t // 32` for each token t that may come next, and clear the others.

        mask: int32 [ceil(n_vocab / 32)]. Raises GrammarError where no token may come.
        """

    def accept(self, token: int) -> None:
        """Go on by a token. Raises GrammarError for one that may not come."""

    @property
    def stopped(self) -> bool:
        """Whether the reply is complete, so that nothing but its end may come."""


class Foreseeing(Constraint, Protocol):
    """A constraint that can also tell what may come later."""

    def fill_after(self, tokens: Seq[int], mask: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        """`fill` as it will be once these tokens are accepted. Raises GrammarError where they may not come."""

    def foresee(self, tokens: Seq[int]) -> None:
        """Find out beforehand what `fill_after` gives for tokens, and for each beginning of them."""

    def pending_mask_after(self, tokens: Seq[int]) -> PendingMask | None:
        """What `fill_after` would wait for; None where it would not."""

    def forced(self) -> list[int]:
        """Tokens that nothing else can come in place of, as far as is known."""

    def replay(self, tokens: Seq[int]) -> None:
        """`accept` tokens that came elsewhere, without waiting; of one that may not come `fill` tells."""


def foresees(constraint: Constraint | None) -> TypeGuard[Foreseeing]:
    """Whether a constraint can tell what may come later."""
    return hasattr(constraint, "fill_after")


def replay(constraint: Constraint, tokens: Seq[int]) -> None:
    """Have a constraint go on by tokens of a reply that another engine began."""
    if foresees(constraint):
        constraint.replay(tokens)
        return
    for token in tokens:
        constraint.accept(token)


def masked(logits: F32, mask: AnyArray) -> F32:
    """Logits [n], -inf for tokens whose bits a mask, as `Constraint.fill` makes it, has not set."""
    allowed = np.unpackbits(mask.view(np.uint8), count=len(logits), bitorder="little")
    out: F32 = np.where(allowed, logits, np.float32(-np.inf))
    return out
