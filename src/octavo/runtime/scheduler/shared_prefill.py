"""Shared prefills: which running request computes a page that a waiting one could begin with."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.prefix_tree import Tokens, common_length
from octavo.runtime.scheduler.request import Request, State


class PendingPrefills:
    """Running requests that compute their prompts, by the tokens of a page, once for each place that is asked for.

    With `by_checkpoints` a part of a prompt is of use where a state is kept.
    """

    def __init__(self, running: Iterable[Request], *, by_checkpoints: bool) -> None:
        self.by_checkpoints = by_checkpoints
        self._requests = [r for r in running if not r.paused and len(r.tokens) - len(r.sequence) > 1]
        self._pages: dict[int, dict[Tokens, list[Request]]] = {}

    def add(self, request: Request) -> None:
        """One more is running."""
        self._requests.append(request)
        for end, pages in self._pages.items():
            _index(pages, request, end)

    def find(self, request: Request, found: int) -> tuple[Request, int] | None:
        """The request to wait for with one that would begin with `found` tokens, and until how many are computed."""
        if self.by_checkpoints:
            ends = ((other, next((at for at in other.state_checkpoints if at > found), 0)) for other in self._requests)
            return next(((other, end) for other, end in ends if _computes(other, request, end)), None)
        end = (found // PAGE_SIZE + 1) * PAGE_SIZE
        if end >= len(request.tokens):
            return None
        if end not in self._pages:
            self._pages[end] = {}
            for other in self._requests:
                _index(self._pages[end], other, end)
        for other in self._pages[end].get(_page(request, end), ()):
            if _computes(other, request, end):
                alike = min(common_length(other.tokens, request.tokens), len(other.tokens) - 1, len(request.tokens) - 1)
                return other, alike // PAGE_SIZE * PAGE_SIZE
        return None


def is_prefilling(other: Request, end: int) -> bool:
    """Whether a request still runs and has computed fewer than `end` tokens."""
    return other.state is State.RUNNING and not other.paused and len(other.sequence) < end


def _computes(other: Request, request: Request, end: int) -> bool:
    """Whether `other` is going to compute the first `end` tokens of `request`; both have more."""
    if other.cache_salt != request.cache_salt or end >= min(len(other.tokens), len(request.tokens)):
        return False
    if not is_prefilling(other, end):
        return False
    alike = _page(other, end) == _page(request, end)  # these differ in most that differ
    return alike and other.tokens[:end] == request.tokens[:end]


def _page(request: Request, end: int) -> Tokens:
    """The page of tokens before `end`."""
    return tuple(request.tokens[end - PAGE_SIZE : end])


def _index(pages: dict[Tokens, list[Request]], request: Request, end: int) -> None:
    if len(request.sequence) < end < len(request.tokens):
        pages.setdefault(_page(request, end), []).append(request)
