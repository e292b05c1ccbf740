"""Small vocabularies, as GGUF metadata, for the tests of `octavo.text`."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from octavo.text.bytelevel import BYTE_TO_CHAR

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# What pre-tokenizers disagree on: contractions, runs of digits and spaces, newlines, CJK, marks, case within words.
TRICKY = (
    "I'm we'LL it's 'sup don't  12345 1234567\n\n  x = foo_bar(1,2);\r\n\t\t日本語とかな、中文。한국어 "
    "camelCase HTTPServer naïve e\u0301a \u00a0\u3000? ٣٤٥ $5+<a>^~|`!!!\n \n   end...   "
)


def train_merges(text: str, count: int) -> list[str]:
    """Merges for `text` as one word: the pair that occurs most often is joined, the first in order on a tie.

    As nothing separates words here, merges run across their ends, so ids show where a pre-tokenizer cuts.
    """
    symbols = [BYTE_TO_CHAR[b] for b in text.encode()]
    merges: dict[str, None] = {}
    while len(merges) < count and len(symbols) > 1:
        pairs = Counter(pairwise(symbols))
        left, right = min(pairs, key=lambda p: (-pairs[p], p))
        merges[f"{left} {right}"] = None
        joined, i = [], 0
        while i < len(symbols):
            match = symbols[i : i + 2] == [left, right]
            joined.append(left + right if match else symbols[i])
            i += 2 if match else 1
        symbols = joined
    return list(merges)


def byte_level(
    merges: list[str], pre: str = "gpt-2", special: dict[str, int] | None = None, **extra: Any
) -> dict[str, Any]:
    """A byte-level BPE vocabulary: the 256 bytes, what `merges` make, then `special` (text: type)."""
    special = special or {}
    tokens = [*BYTE_TO_CHAR, *dict.fromkeys(m.replace(" ", "") for m in merges)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *special],
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + list(special.values()),
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{k}": v for k, v in extra.items()},
    }


def spm(pieces: dict[str, float], special: dict[str, int] | None = None, **extra: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: <unk>, <s>, </s>, the 256 bytes, `pieces` with their scores, then `special`."""
    special = special or {}
    head = ["<unk>", "<s>", "</s>"]
    tokens = [*head, *(f"<0x{b:02X}>" for b in range(256)), *pieces, *special]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), *special.values()]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()) + [0.0] * len(special),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{k}": v for k, v in extra.items()},
    }
