"""PLaMo 2's tokenizer: of all ways to cut a text into scored tokens that with the highest sum of scores.

Source: tokenization_plamo.py of the published models. The search goes from the end of a text to its beginning. Scores
count in ten-thousandths; where two ways are worth the same, the one with the longer first token is taken. A character
that is not a token becomes those of its UTF-8 bytes, at the price of `UNKNOWN`.
"""

from __future__ import annotations

import math
import re
from functools import cache

from octavo.text.fields import Fields
from octavo.text.text_blocks import between_tokens, in_blocks, pairs_of
from octavo.text.text_encoder import Encoder
from octavo.text.vocab import SCORES, TOKENS, TokenKind, Vocab, longest_bytes

UNIT = 10_000
UNKNOWN = 1000 * UNIT
"""What a character costs that becomes bytes."""
LEAST = -2000 * UNIT
"""A token with this score or a lower one is never taken."""
BOUNDARY = "\uee00"
BREAKING, WHOLE = "plamo3", "plamo2"
"""Names under `tokenizer.ggml.pre` of vocabularies whose text is cut first, or not: around what is written as a control
token is, at repeated characters and at spaces. By any other name that of PLaMo 3 is, as converters mean it. The
boundary itself, a character of private use, gives nothing."""
_AROUND = (re.compile(r"(<\|plamo:[^|\s]{,64}\|>)"), re.compile(r"((.)\2{3,}| {2,})"))


def plamo2_encoder(fields: Fields, vocab: Vocab) -> Encoder:
    """What encodes text. Raises TokenizerError for a vocabulary without scores, or without a token for each byte."""
    search, pre = Search(fields, vocab), fields.text("tokenizer.ggml.pre")
    cut_up = in_blocks(search.encode, between_tokens(cache(lambda: pairs_of(vocab.texts))))
    if pre == WHOLE or BREAKING not in (pre, fields.text("general.architecture")):
        return Encoder(cut_up, longest_bytes(vocab))

    def encode(text: str) -> list[int]:
        for pattern in _AROUND:
            text = pattern.sub(rf"{BOUNDARY}\1{BOUNDARY}", text)
        return [token for part in text.split(BOUNDARY) for token in cut_up(part)]

    return Encoder(encode)


class Search:
    """Text without special tokens to ids, in time linear in the text's length.

    Control tokens and unused ones are never found, however a text is written.
    """

    def __init__(self, fields: Fields, vocab: Vocab) -> None:
        if vocab.scores is None:
            raise fields.fault(SCORES, "missing", "a score for each token")
        ids = [vocab.ids.get(f"<0x{byte:02X}>") for byte in range(256)]
        self._bytes = [i for i in ids if i is not None and vocab.kinds[i] & TokenKind.BYTE]
        if len(self._bytes) < len(ids):
            raise fields.fault(TOKENS, f"{256 - len(self._bytes)} bytes have no token", "<0x00> to <0xFF>")
        # Of each beginning of a token: its score and id, or None where it is none itself.
        self._begun: dict[str, tuple[int, int] | None] = {}
        for i in vocab.of_kind(TokenKind.NORMAL | TokenKind.USER_DEFINED):
            text, score = vocab.texts[i], vocab.scores[i]
            units = round(score * UNIT) if math.isfinite(score) else LEAST
            for end in range(1, len(text)):
                self._begun.setdefault(text[:end])
            if units > LEAST:
                self._begun[text] = units, i

    def encode(self, text: str) -> list[int]:
        best = self._best(text)
        out: list[int] = []
        at = 0
        while at < len(text):
            end, token = best[at]
            out += [token] if token >= 0 else [self._bytes[byte] for byte in text[at:end].encode()]
            at = end
        return out

    def _best(self, text: str) -> list[tuple[int, int]]:
        """Of each place in a text where the best first token from there ends, and its id; -1 for bytes."""
        begun, n = self._begun, len(text)
        costs, best = [0] * (n + 1), [(0, -1)] * n
        for start in range(n - 1, -1, -1):
            lowest, choice, end = math.inf, (0, -1), start + 1
            while end <= n and (piece := text[start:end]) in begun:
                found = begun[piece]
                if found is not None and (cost := costs[end] - found[0]) <= lowest:
                    lowest, choice = cost, (end, found[1])
                end += 1
            if (cost := costs[start + 1] + UNKNOWN) < lowest:
                lowest, choice = cost, (start + 1, -1)
            costs[start], best[start] = int(lowest), choice
        return best
