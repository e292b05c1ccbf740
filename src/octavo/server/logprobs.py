"""How likely tokens were, as OpenAI's two kinds of routes write it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from octavo.server.messages import Likely
from octavo.text import Tokenizer

LEAST = -9999.0
"""Instead of -Inf, which JSON does not have."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[int], likely: Iterable[Likely]) -> dict[str, Any]:
    """For each token what /v1/chat/completions says of it."""
    content = [
        {**_entry(tokenizer, token, one.token), "top_logprobs": [_entry(tokenizer, *pair) for pair in one.top]}
        for token, one in zip(tokens, likely, strict=True)
    ]
    return {"content": content, "refusal": None}


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(data)}


def text_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[int], likely: Sequence[Likely | None], offset: int = 0
) -> dict[str, Any]:
    """Lists for all tokens, as /v1/completions has them. None stands for a token that is after nothing.

    offset  characters before the first one
    """
    texts = [tokenizer.token_bytes(token).decode(errors="replace") for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [None if one is None else finite(one.token) for one in likely],
        "top_logprobs": [None if one is None else _by_text(tokenizer, one) for one in likely],
        "text_offset": offsets,
    }


def _by_text(tokenizer: Tokenizer, one: Likely) -> dict[str, float]:
    """The likeliest tokens by their texts; of several with the same text the likeliest."""
    found: dict[str, float] = {}
    for token, logprob in one.top:
        found.setdefault(tokenizer.token_bytes(token).decode(errors="replace"), finite(logprob))
    return found


def finite(logprob: float) -> float:
    return max(logprob, LEAST)
