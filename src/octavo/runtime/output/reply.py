"""A reply: what the tokens of a model come to as text, and where it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from octavo.runtime.output.stop import StopStrings
from octavo.text import Tokenizer

FinishReason = Literal["stop", "length", "context", "interrupted", "error", "time"]
"""An end token or stop string; `max_tokens`; a full context (of a Generation an error too); left early; NaN or Inf;
the time that it may take."""


class LogProbs(NamedTuple):
    """Log-probabilities at a token, over all tokens and before any setting of the sampler.

    Of a request that asks for them after sampling: over those that were left to draw from.

    token   of the sampled token
    likely  the likeliest tokens, the likeliest first, with theirs
    """

    token: float
    likely: tuple[tuple[int, float], ...]


class Reply:
    """Tokens and their text.

    text_so_far    text of the tokens so far
    tokens         ids so far, an end token included
    logprobs       how likely each of them was, where that is asked for
    finish_reason  why it ended; None before that

    `after` is the prompt, where the reply's text goes on in the prompt's.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), max_tokens: int | None = None,
        stop_ids: Collection[int] = (), after: Sequence[int] = (),
    ) -> None:
        self.text_so_far = ""
        self.tokens: list[int] = []
        self.logprobs: list[LogProbs] = []
        self.finish_reason: FinishReason | None = "length" if max_tokens == 0 else None
        self.stop_ids, self.max_tokens = frozenset({*tokenizer.stop_ids, *stop_ids}), max_tokens
        self._stream, self._stops = tokenizer.stream_after(after), StopStrings(stop)

    @property
    def text(self) -> str:
        """The whole reply."""
        return self.text_so_far

    @property
    def message(self) -> dict[str, str]:
        """The whole reply as a message, which goes behind those that it replies to."""
        return {"role": "assistant", "content": self.text}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        state = self.finish_reason or ("under way" if self.tokens else "not begun")
        return f"<{type(self).__name__}: {state}, {len(self.tokens)} tokens, {self.text_so_far!r}>"

    def add(self, token: int, logprobs: LogProbs | None = None) -> str:
        """Take the next token: the text that can be shown with it. It may end the reply."""
        self.tokens.append(token)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        if token in self.stop_ids:
            return self.end("stop")
        shown, stopped = self._stops.push(self._stream.push(token))
        self.text_so_far += shown
        if stopped:
            self.finish_reason = "stop"
        elif len(self.tokens) == self.max_tokens:
            shown += self.end("length")
        return shown

    def end(self, reason: FinishReason) -> str:
        """End the reply: the text that was held back until now."""
        self.finish_reason = reason
        shown, stopped = self._stops.push(self._stream.flush(cut=reason != "stop"))
        shown = shown if stopped else shown + self._stops.flush()
        self.text_so_far += shown
        return shown
