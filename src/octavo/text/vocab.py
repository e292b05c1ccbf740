"""The vocabulary as a file stores it: texts, scores and kinds of the tokens, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from octavo.text.fields import Fields

SPACE = "▁"  # how SentencePiece-style tokens write a space
TOKENS = "tokenizer.ggml.tokens"
SCORES = "tokenizer.ggml.scores"
TYPES = "tokenizer.ggml.token_type"

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class TokenKind(IntFlag):
    """What a token is; a token may be of more than one kind."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 4
    USER_DEFINED = 8
    UNUSED = 16
    BYTE = 32


# What the file's token_type numbers mean; 0, and numbers that are not known, are of no kind.
_KINDS = "NORMAL", "UNKNOWN", "CONTROL", "USER_DEFINED", "UNUSED", "BYTE"
_KIND_OF_TYPE = np.array([0, *(TokenKind[name] for name in _KINDS)], np.uint8)


@dataclass
class Vocab:
    """Tokens by id: `texts`, `kinds` (bits of TokenKind) and `scores` (None where the file has none); `ids` by text."""

    texts: list[str]
    ids: dict[str, int]
    kinds: npt.NDArray[np.uint8]
    scores: list[float] | None

    def __len__(self) -> int:
        return len(self.texts)

    def of_kind(self, kinds: TokenKind) -> list[int]:
        """Ids of the tokens that are of one of `kinds`, ascending."""
        return [int(i) for i in np.flatnonzero(self.kinds & int(kinds))]


def longest_bytes(vocab: Vocab) -> int:
    """The bytes of the longest token, as it is written in the vocabulary."""
    return max(len(text.encode("utf-8", "surrogatepass")) for text in vocab.texts)


def read_vocab(fields: Fields) -> Vocab:
    """The vocabulary in `fields`.

    Raises TokenizerError for an empty vocabulary, a token that occurs twice, arrays of another length than the
    vocabulary, scores that are NaN, and byte tokens that are not `<0x00>` to `<0xFF>`.
    """
    texts = fields.texts(TOKENS)
    if not texts:
        raise fields.fault(TOKENS, "missing" if texts is None else "empty", "at least one token")
    if "" in texts:
        texts = [t or f"[EMPTY_{i}]" for i, t in enumerate(texts)]  # the name that llama.cpp gives to an empty token
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if len(ids) != len(texts):
        last = next(i for i, t in enumerate(texts) if ids[t] != i)
        raise fields.fault(TOKENS, f"tokens {last} and {ids[texts[last]]} are both {texts[last]!r}", "each token once")
    return Vocab(texts, ids, _read_kinds(fields, texts), _read_scores(fields, len(texts)))


def _read_kinds(fields: Fields, texts: list[str]) -> npt.NDArray[np.uint8]:
    types = fields.numbers(TYPES, len(texts), "iu")
    if types is None:
        return np.full(len(texts), TokenKind.NORMAL, np.uint8)
    known = (types >= 0) & (types < len(_KIND_OF_TYPE))
    kinds = _KIND_OF_TYPE[np.where(known, types, 0)]
    for i in np.flatnonzero(kinds == TokenKind.BYTE):
        if not _BYTE_TOKEN.fullmatch(texts[i]):
            raise fields.fault(TOKENS, f"byte token {i} is {texts[i]!r}", "<0x00> to <0xFF>")
    return kinds


def _read_scores(fields: Fields, count: int) -> list[float] | None:
    scores = fields.numbers(SCORES, count, "iuf")
    if scores is None:
        return None
    scores = scores.astype(np.float32)
    if np.isnan(scores).any():
        raise fields.fault(SCORES, f"the score of token {int(np.isnan(scores).argmax())} is NaN", "a number")
    return [float(s) for s in scores.tolist()]
