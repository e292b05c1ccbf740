"""A budget for thinking: after N tokens of it a closing message is forced, and the text that ends thinking.

As llama.cpp's sampler of that name has it. A message that the budget ends in the middle of a character waits for its
end. Thinking that the reply begins later is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from octavo.runtime.sampling.processors import NO_ADJUSTMENTS, ROW_BITS, Adjustments, LogitsProcessor, Texts, added
from octavo.runtime.sampling.token_counts import CountedText
from octavo.text import Tokenizer

if TYPE_CHECKING:
    from octavo.runtime.output.thinking import Thinking

FORCED = np.float32(1e30)
"""Added to a logit, beside which no other counts."""


class ThinkingState(NamedTuple):
    """Where a reply is: it "begins", "thinks", is "forced", or is "done" with thinking.

    n     tokens of thinking, or of the ones that are forced
    text  of the reply's beginning, or of the end of its thinking
    """

    phase: str
    n: int = 0
    text: bytes = b""


class ThinkingHistory:
    """The states of a reply after each of its tokens."""

    def __init__(self, first: ThinkingState) -> None:
        self.states = [first]

    def cut(self, text: Sequence[int], length: int) -> None:
        """The text has only that many tokens left; states are kept for the reply, which begins in it."""
        gone = len(text) - length
        del self.states[max(len(self.states) - gone, 1) :]


@dataclass(frozen=True, eq=False)
class ReasoningBudget(LogitsProcessor):
    """Makes tokens come that close a reply's thinking after `budget` tokens of it; the reply follows `n_prompt`."""

    budget: int
    closing: Sequence[int]
    thinking: Thinking
    tokenizer: Tokenizer
    n_prompt: int

    @classmethod
    def of_all(cls, processors: Sequence[ReasoningBudget], texts: Texts) -> Adjustments:  # type: ignore[override]
        states = [one.state(text) for one, text in zip(processors, texts, strict=True)]
        pairs = enumerate(zip(processors, states, strict=True))
        ids = [row << ROW_BITS | one.closing[state.n] for row, (one, state) in pairs if state.phase == "forced"]
        return added(np.array(ids, np.int64), np.full(len(ids), FORCED)) if ids else NO_ADJUSTMENTS

    def state(self, text: Sequence[int]) -> ThinkingState:
        """Where a reply is after a text."""
        base = text
        history = ThinkingHistory(self._first())
        if isinstance(text, CountedText):
            base = text if text.base is None else text.base
            history = base.known(self, ThinkingHistory, lambda: history)
        for token in base[self.n_prompt + len(history.states) - 1 :]:
            history.states.append(self._after(history.states[-1], token))
        state = history.states[-1]
        for token in text[self.n_prompt + len(history.states) - 1 :]:
            state = self._after(state, token)
        return state

    def _first(self) -> ThinkingState:
        if self.thinking.begun:
            return self._thinks(0, b"")
        return ThinkingState("done" if self.thinking.ended else "begins")

    def _thinks(self, n: int, text: bytes) -> ThinkingState:
        return ThinkingState("forced") if n >= self.budget and _is_whole(text) else ThinkingState("thinks", n, text)

    def _after(self, state: ThinkingState, token: int) -> ThinkingState:
        if state.phase == "done":
            return state
        if state.phase == "forced":
            return state._replace(n=state.n + 1) if state.n + 1 < len(self.closing) else ThinkingState("done")
        text = state.text + self.tokenizer.token_bytes(token)
        if state.phase == "begins":
            start, begun = self.thinking.start.strip().encode(), text.lstrip()
            if begun.startswith(start):
                return self._thinks(0, begun[len(start) :])
            return ThinkingState("begins", 0, begun) if start.startswith(begun) else ThinkingState("done")
        end = self.thinking.end.encode()
        return ThinkingState("done") if end in text else self._thinks(state.n + 1, text[-len(end) :])


def _is_whole(text: bytes) -> bool:
    """Whether a text does not end in the middle of a character."""
    for back in range(1, min(4, len(text) + 1)):
        byte = text[-back]
        if byte >= 0xC0:
            return back >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        if byte < 0x80:
            return True
    return True


def closing(tokenizer: Tokenizer, message: str, thinking: Thinking) -> list[int]:
    """The tokens of a closing message, in which no control token is meant, and of the end of thinking."""
    text = tokenizer.encode(message, add_special=False, parse_special=False, continued=True) if message else []
    return [*text, *tokenizer.encode(thinking.end, add_special=False, continued=True)]
