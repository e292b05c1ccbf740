"""DRY ("don't repeat yourself"): a penalty for the token that would lengthen a repetition.

By p-e-w, https://github.com/oobabooga/text-generation-webui/pull/5677; counted as by llama.cpp's sampler of that name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.runtime.sampling.processors import ROW_BITS, Adjustments, LogitsProcessor, Texts, added
from octavo.runtime.sampling.token_counts import CountedText
from octavo.runtime.sampling.token_texts import token_texts
from octavo.text import Tokenizer

Breakers = Mapping[int, tuple[tuple[int, ...], ...]]
"""Sequences that no repetition goes across: what comes after each token that one begins with."""
LOG_MOST = 88.7228391
"""The logarithm of the largest float32."""
MOST_TAIL, MOST_BREAKER = 20, 40
"""Most tokens after the first one of a breaker, and most bytes of its text, as llama.cpp has them."""


class RepeatLengths:
    """For each place of a text, how many tokens up to it are those that the text ends with. The text may grow."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._text = np.array(tokens, np.int64)
        self._lengths: AnyArray = np.array(_suffix_matches(tokens), np.int32)
        self._n = len(tokens)

    def cut(self, text: Sequence[int], length: int) -> None:
        """The text has only that many tokens left."""
        if length < self._n:
            self.__init__(text[:length])  # type: ignore[misc]

    def grow(self, tokens: Sequence[int]) -> None:
        """Take the tokens that a text has since."""
        for token in tokens[self._n :]:
            n = self._n
            if n == len(self._text):
                self._text = np.concatenate([self._text, np.zeros(max(n, 64), np.int64)])
                self._lengths = np.concatenate([self._lengths, np.zeros(max(n, 64), np.int32)])
            self._text[n] = token
            same = self._text[:n] == token
            self._lengths[1:n] = np.where(same[1:], self._lengths[: n - 1] + 1, 0)
            self._lengths[:1] = same[:1]
            self._n = n + 1

    def after(self, tokens: Sequence[int]) -> tuple[AnyArray, AnyArray]:
        """The text and the lengths [n - 1] once it has all of these tokens; its own are as before."""
        if len(tokens) == self._n:
            return self._text[: self._n], self._lengths[: self._n - 1]
        other = object.__new__(RepeatLengths)
        other._text, other._lengths, other._n = self._text[: self._n].copy(), self._lengths[: self._n].copy(), self._n
        other.grow(tokens)
        return other.after(tokens)


def _suffix_matches(tokens: Sequence[int]) -> list[int]:
    """The lengths of `RepeatLengths`, by the Z-algorithm on the reversed text; the last one is 0."""
    text = tokens[::-1]
    n, found, left, right = len(text), [0] * len(text), 0, 0
    for at in range(1, n):
        length = min(right - at, found[at - left]) if at < right else 0
        while at + length < n and text[length] == text[at + length]:
            length += 1
        found[at] = length
        if at + length > right:
            left, right = at, at + length
    return found[::-1]


@dataclass(frozen=True, eq=False)
class DryPenalty(LogitsProcessor):
    """Takes multiplier * base ** (length - allowed) from a token that would go on with a repetition of this length.

    last_n    tokens at the end of the text that are looked at
    breakers  that repetitions do not go across
    """

    multiplier: float
    base: float
    allowed: int
    last_n: int
    breakers: Breakers

    @classmethod
    def of_all(cls, processors: Sequence[DryPenalty], texts: Texts) -> Adjustments:  # type: ignore[override]
        found = [one.penalties(text) for one, text in zip(processors, texts, strict=True)]
        ids = [row << ROW_BITS | ids for row, (ids, _) in enumerate(found)]
        return added(np.concatenate(ids), -np.concatenate([penalties for _, penalties in found]))

    def penalties(self, text: Sequence[int]) -> tuple[AnyArray, AnyArray]:
        """Tokens, each once, and what is taken from their logits, float32."""
        n = len(text)
        window = min(n, self.last_n)
        limit = self._limit(text, window)
        if window <= self.allowed or limit < self.allowed:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        tokens, lengths = self._lengths(text)
        begin = n - window
        lengths = np.minimum(lengths[begin:], np.minimum(np.arange(1, window, dtype=np.int32), limit))
        at = np.flatnonzero(lengths >= max(self.allowed, 1))
        ids, places = np.unique(tokens[begin + 1 + at], return_inverse=True)
        longest = np.zeros(len(ids), np.int32)
        np.maximum.at(longest, places, lengths[at])
        free = [i for i, token in enumerate(ids.tolist()) if () not in self.breakers.get(token, ())]
        exponents = (longest[free] - self.allowed).astype(np.float64)
        if self.base > 1.000001:
            exponents = np.minimum(exponents, int(LOG_MOST / math.log(self.base)))
        penalties = np.minimum(self.multiplier * self.base**exponents, np.finfo(np.float32).max)
        return ids[free], penalties.astype(np.float32)

    def _lengths(self, text: Sequence[int]) -> tuple[AnyArray, AnyArray]:
        if not isinstance(text, CountedText):
            return RepeatLengths(text).after(text)
        owner = text if text.base is None else text.base
        kept = owner.known(self, RepeatLengths, lambda: RepeatLengths(owner))
        kept.grow(owner)
        return kept.after(text)

    def _limit(self, text: Sequence[int], window: int) -> int:
        """Tokens at the end of a text after the last breaker there."""
        n = len(text)
        for back in range(window):
            tails = self.breakers.get(text[n - 1 - back])
            if tails is None:
                continue
            after = n - back
            matched = [len(t) for t in tails if len(t) <= back and tuple(text[after : after + len(t)]) == t]
            if matched:
                return back - max(matched)
        return window


@lru_cache(64)
def breakers_of(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    """The tokens that each text may be part of, with those that have to follow where it goes on in others."""
    found: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for text in (text.encode()[:MOST_BREAKER] for text in texts):
        whole, beginning = token_texts(tokenizer).having(text)
        for token in whole.tolist():
            found[token].add(())
        for size, tokens in beginning.items():
            rest = text[size:].decode(errors="replace")
            tail = tokenizer.encode(rest, add_special=False, parse_special=False, continued=True)
            for token in set(tokens.tolist()).difference(whole.tolist()):
                found[token].add(tuple(tail[:MOST_TAIL]))
    return {token: tuple(tails) for token, tails in found.items()}
