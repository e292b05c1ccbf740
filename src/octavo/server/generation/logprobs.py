"""How likely tokens were, as OpenAI's two kinds of routes write it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from octavo.runtime.output.reply import LogProbs
from octavo.text import Tokenizer
from octavo.text.stream import TokenStream

LEAST = -9999.0
"""Instead of -Inf, which JSON does not have."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[int], likely: Iterable[LogProbs]) -> dict[str, Any]:
    """For each token what /v1/chat/completions says of it."""
    content = [
        {**_entry(tokenizer, token, one.token), "top_logprobs": [_entry(tokenizer, *pair) for pair in one.likely]}
        for token, one in zip(tokens, likely, strict=True)
    ]
    return {"content": content, "refusal": None}


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(data)}


class Offsets:
    """How many characters of a text are before each of its tokens, as they come.

    A token that is in the middle of a character begins where that does. `stream` makes the text, which begins after
    `start` others.
    """

    def __init__(self, stream: TokenStream, start: int = 0) -> None:
        self._stream, self._at = stream, start

    def of(self, tokens: Iterable[int]) -> list[int]:
        found = []
        for token in tokens:
            found.append(self._at)
            self._at += len(self._stream.push(token))
        return found


def text_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[int], likely: Sequence[LogProbs | None], offsets: Offsets
) -> dict[str, Any]:
    """Lists for all tokens, as /v1/completions has them. None stands for a token that is after nothing."""
    return {
        "tokens": [tokenizer.token_bytes(token).decode(errors="replace") for token in tokens],
        "token_logprobs": [None if one is None else finite(one.token) for one in likely],
        "top_logprobs": [None if one is None else _by_text(tokenizer, one) for one in likely],
        "text_offset": offsets.of(tokens),
    }


def _by_text(tokenizer: Tokenizer, one: LogProbs) -> dict[str, float]:
    """The likeliest tokens by their texts; of several with the same text the likeliest."""
    found: dict[str, float] = {}
    for token, logprob in one.likely:
        found.setdefault(tokenizer.token_bytes(token).decode(errors="replace"), finite(logprob))
    return found


def finite(logprob: float) -> float:
    return max(logprob, LEAST)
