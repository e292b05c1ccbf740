"""Texts that may not be in a reply: it goes back to before one that comes, and on in another way.

As KoboldCpp and exllamav2 have them. Tokens with such a text in them are never sampled. One of several tokens is found
with its last one: then the reply goes back to its first one, which may not be sampled there again. Tokens that such a
text may begin with are shown once it is known that they don't.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.runtime.sampling.processors import (
    NO_ADJUSTMENTS,
    ROW_BITS,
    Adjustments,
    LogitsProcessor,
    Texts,
    added,
    suppress,
)
from octavo.runtime.sampling.token_texts import token_texts
from octavo.text import Tokenizer

MOST_RETURNS = 1024
"""Times that a reply goes back; then it fails."""


@dataclass(frozen=True, eq=False)
class Excluded(LogitsProcessor):
    """Suppresses tokens at one place of a text each: `tokens` by the number of tokens before them."""

    tokens: dict[int, set[int]] = field(default_factory=dict)

    @classmethod
    def of_all(cls, processors: Sequence[Excluded], texts: Texts) -> Adjustments:  # type: ignore[override]
        pairs = enumerate(zip(processors, texts, strict=True))
        ids = [row << ROW_BITS | token for row, (a, text) in pairs for token in sorted(a.tokens.get(len(text), ()))]
        return added(np.array(ids, np.int64), np.full(len(ids), -np.inf, np.float32)) if ids else NO_ADJUSTMENTS

    def add(self, place: int, token: int) -> None:
        """Suppress a token there. What was suppressed later in the text was so after other tokens."""
        for later in [at for at in self.tokens if at > place]:
            del self.tokens[later]
        self.tokens.setdefault(place, set()).add(token)


class BannedStrings:
    """Watches the tokens of a reply for texts; the case of letters a to z makes no difference.

    shown    tokens of the reply that may be shown
    returns  how often it went back
    """

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        self._texts = [text.encode().lower() for text in texts]
        self._falls = [_falls(text) for text in self._texts]
        self._tokenizer = tokenizer
        self.excluded = Excluded()
        self.shown = self.returns = 0
        self._bytes = [0]  # before each token that may not be shown yet, and after the last one
        self._matched = [(0,) * len(texts)]  # bytes of each text that are there, at these places

    def processors(self) -> list[LogitsProcessor]:
        """What keeps tokens from being sampled."""
        texts = token_texts(self._tokenizer, lower=True)
        whole = {token for text in self._texts for token in texts.having(text)[0].tolist()}
        shown = whole.difference(self._tokenizer.stop_ids)
        return [*([suppress(shown, np.inf)] if shown else []), self.excluded]

    def push(self, token: int) -> int | None:
        """Take the next token of the reply; the number of tokens that it is to go back to, None if it may go on."""
        data = b"" if token in self._tokenizer.stop_ids else self._tokenizer.token_bytes(token).lower()
        begin, found, matched = self._bytes[-1], list[int](), list(self._matched[-1])
        for i, (text, falls) in enumerate(zip(self._texts, self._falls, strict=True)):
            n = matched[i]
            for at, byte in enumerate(data, 1):
                while n and text[n] != byte:
                    n = falls[n - 1]
                n += text[n] == byte
                if n == len(text):
                    found.append(begin + at - n)
                    break
            matched[i] = n
        if found:
            return self._go_back(min(found))
        self._bytes.append(begin + len(data))
        self._matched.append(tuple(matched))
        # What is open at any place that the reply may go back to may not be shown, also if it is not any longer.
        done = next((i for i in reversed(range(len(self._bytes))) if not any(self._matched[i])), 0)
        del self._bytes[:done], self._matched[:done]
        self.shown += done
        return None

    def _go_back(self, byte: int) -> int:
        """Forget the token with this byte and those after it."""
        kept = next(i for i in reversed(range(len(self._bytes))) if self._bytes[i] <= byte)
        del self._bytes[kept + 1 :], self._matched[kept + 1 :]
        self.returns += 1
        return self.shown + kept


def _falls(text: bytes) -> list[int]:
    """For each beginning of a text the longest shorter one that it ends with (Knuth, Morris and Pratt, 1977)."""
    found, n = [0] * len(text), 0
    for i in range(1, len(text)):
        while n and text[i] != text[n]:
            n = found[n - 1]
        n += text[i] == text[n]
        found[i] = n
    return found
