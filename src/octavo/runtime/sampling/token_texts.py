"""The texts of a vocabulary's tokens, in one array, so that those with a text in them are found at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.text import Tokenizer


class TokenTexts:
    """Bytes of all tokens, one after another; `lower`: letters A to Z as a to z."""

    def __init__(self, tokenizer: Tokenizer, *, lower: bool = False) -> None:
        texts = [tokenizer.token_bytes(token) for token in range(tokenizer.n_vocab)]
        if lower:
            texts = [text.lower() for text in texts]
        self._bytes = np.frombuffer(b"".join(texts), np.uint8)
        self._ends = np.cumsum([len(text) for text in texts])

    def having(self, text: bytes) -> tuple[AnyArray, Mapping[int, AnyArray]]:
        """Tokens that have a text in them, and those that end with its first bytes, by how many these are."""
        at = np.flatnonzero(self._bytes == text[0])
        tokens = np.searchsorted(self._ends, at, side="right")
        beginning: dict[int, AnyArray] = {}
        for size in range(1, len(text)):
            left = self._ends[tokens] - at
            if (at_end := left == size).any():
                beginning[size] = np.unique(tokens[at_end])
            at, tokens = at[~at_end], tokens[~at_end]
            same = self._bytes[at + size] == text[size]
            at, tokens = at[same], tokens[same]
        return np.unique(tokens), beginning


@lru_cache(4)
def token_texts(tokenizer: Tokenizer, *, lower: bool = False) -> TokenTexts:
    """Those of a tokenizer, kept for the next time."""
    return TokenTexts(tokenizer, lower=lower)
