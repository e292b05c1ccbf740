"""SentencePiece-style BPE as llama.cpp runs it: merge the neighbours whose joined text has the highest score.

Source: Kudo and Richardson, "SentencePiece" (2018), the BPE mode; ties go to the leftmost pair. A character that is no
token, even joined with others, becomes the tokens of its UTF-8 bytes.
"""

from __future__ import annotations

import re
from heapq import heapify, heappop, heappush

from octavo.errors import TokenizerError
from octavo.text.fields import Fields
from octavo.text.text_blocks import between_tokens, pairs_of
from octavo.text.vocab import SCORES, SPACE, TOKENS, Vocab

_CACHED_CHARS, _CACHE_SIZE = 64, 50_000


class SpmEncoder:
    """Text without special tokens, spaces already written as `SPACE`, to ids, in near-linear time.

    Text is first cut where no token has the two characters next to each other, as no merge can cross such a place; the
    pieces, mostly words, are cached.
    """

    def __init__(self, fields: Fields, vocab: Vocab) -> None:
        if vocab.scores is None:
            raise fields.fault(SCORES, "missing", "a score for each token")
        self._ids, self._scores = vocab.ids, vocab.scores
        self._bytes = _byte_ids(vocab)
        self._joined = pairs_of(vocab.texts)
        self.cut = between_tokens(lambda: self._joined)
        before_space = {pair[0] for pair in self._joined if pair[1] == SPACE}
        self._word = re.compile(f"(?<=[^{''.join(map(re.escape, sorted(before_space | {SPACE})))}])(?={SPACE})")
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        out: list[int] = []
        for word in self._word.split(text):
            ids = self._cache.get(word)
            if ids is None:
                ids = self._encode_word(word)
                if len(word) <= _CACHED_CHARS:
                    if len(self._cache) >= _CACHE_SIZE:
                        self._cache.clear()
                    self._cache[word] = ids
            out += ids
        return out

    def _encode_word(self, word: str) -> list[int]:
        joined = self._joined
        cuts = [i for i in range(1, len(word)) if word[i - 1 : i + 1] not in joined]
        out: list[int] = []
        for start, end in zip([0, *cuts], [*cuts, len(word)], strict=True):
            out += self._merge(word[start:end])
        return out

    def _merge(self, text: str) -> list[int]:
        ids, scores = self._ids, self._scores
        n = len(text)
        end = list(range(1, n + 1))  # the symbol that starts at i is text[i:end[i]]; end 0: joined to its left
        before = list(range(-1, n - 1))  # the start of the symbol to the left

        def pair(left: int, right: int) -> tuple[float, int, int, int] | None:
            token = ids.get(text[left : end[right]])
            return None if token is None else (-scores[token], left, right, end[right])

        heap = [p for i in range(n - 1) if (p := pair(i, i + 1))]
        heapify(heap)
        while heap:
            _, left, right, stop = heappop(heap)
            if end[left] != right or end[right] != stop:
                continue
            end[left], end[right] = stop, 0
            if stop < n:
                before[stop] = left
                if p := pair(left, stop):
                    heappush(heap, p)
            if before[left] >= 0 and (p := pair(before[left], left)):
                heappush(heap, p)
        out: list[int] = []
        i = 0
        while i < n:
            token = ids.get(text[i : end[i]])
            if token is None:
                out += self._fallback(text[i : end[i]])
            else:
                out.append(token)
            i = end[i]
        return out

    def _fallback(self, text: str) -> list[int]:
        ids = [self._bytes[b] for b in text.encode()]
        known = [i for i in ids if i is not None]
        if len(known) < len(ids):
            raise TokenizerError(
                f"{text!r} is not a token, and neither are its bytes", field=TOKENS, allowed="the vocabulary's text"
            )
        return known


def _byte_ids(vocab: Vocab) -> list[int | None]:
    """The token of each byte: `<0x41>`, or else the character itself where it is ASCII; None where there is neither."""
    return [vocab.ids.get(f"<0x{b:02X}>", vocab.ids.get(chr(b)) if b < 128 else None) for b in range(256)]
