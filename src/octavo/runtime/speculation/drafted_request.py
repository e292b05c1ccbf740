"""A request as it is once tokens of a draft are accepted, to sample the token after them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.runtime.scheduler.constraint import Foreseeing, PendingMask, foresees
from octavo.runtime.scheduler.request import Request


class DraftConstraint:
    """The Constraint of a request as it is once the tokens of a draft are accepted."""

    def __init__(self, constraint: Foreseeing, draft: Sequence[int]) -> None:
        self._constraint, self._draft, self.stopped = constraint, draft, False

    @property
    def pending_mask(self) -> PendingMask | None:
        return self._constraint.pending_mask_after(self._draft)

    def fill(self, mask: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        self._constraint.fill_after(self._draft, mask)

    def accept(self, token: int) -> None:
        """Nothing: the request's own takes the tokens that are accepted."""


def after_draft(request: Request, draft: Sequence[int], *, constrained: bool = True) -> Request:
    """The request with the tokens of a draft; `constrained` to what it may be, if it is to anything."""
    held = DraftConstraint(request.constraint, draft) if constrained and foresees(request.constraint) else None
    after = Request([*request.tokens, *draft], request.sampler, logprobs=request.logprobs if constrained else None,
                    constraint=held, after_sampling=request.after_sampling)
    after.tokens.base = request.tokens
    return after
