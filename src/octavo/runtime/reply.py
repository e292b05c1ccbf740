"""A reply: what the tokens of a model come to as text, and where it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from octavo.runtime.stop import StopStrings
from octavo.text import Tokenizer

FinishReason = Literal["stop", "length", "context", "interrupted", "error"]
"""An end token or stop string; `max_tokens`; a full context (of a Generation an error too); left early; NaN or Inf."""


class Reply:
    """Tokens and their text.

    text_so_far    text of the tokens so far
    tokens         ids so far, an end token included
    finish_reason  why it ended; None before that

    `after` is the prompt, where the reply's text goes on in the prompt's.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), max_tokens: int | None = None,
        stop_ids: Collection[int] = (), after: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.text_so_far = ""
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = "length" if max_tokens == 0 else None
        self._stop_ids, self._max_tokens = {*tokenizer.stop_ids, *stop_ids}, max_tokens
        self._stream, self._stops = tokenizer.stream_after(after), StopStrings(stop)

    @property
    def text(self) -> str:
        """The whole reply."""
        return self.text_so_far

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        state = self.finish_reason or ("under way" if self.tokens else "not begun")
        return f"<{type(self).__name__}: {state}, {len(self.tokens)} tokens, {self.text_so_far!r}>"

    def add(self, token: int) -> str:
        """Take the next token: the text that can be shown with it. It may end the reply."""
        self.tokens.append(token)
        if token in self._stop_ids:
            return self.end("stop")
        shown, stopped = self._stops.push(self._stream.push(token))
        self.text_so_far += shown
        if stopped:
            self.finish_reason = "stop"
        elif len(self.tokens) == self._max_tokens:
            shown += self.end("length")
        return shown

    def end(self, reason: FinishReason) -> str:
        """End the reply: the text that was held back until now."""
        self.finish_reason = reason
        shown, stopped = self._stops.push(self._stream.flush(cut=reason != "stop"))
        shown = shown if stopped else shown + self._stops.flush()
        self.text_so_far += shown
        return shown
