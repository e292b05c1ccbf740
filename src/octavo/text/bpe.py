"""Byte-level BPE, on the `tokenizers` package: words from the model's patterns, bytes as characters, merges by rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from octavo.errors import TokenizerError
from octavo.text.bytelevel import BYTE_TO_CHAR
from octavo.text.engine import engine_faults
from octavo.text.fields import Fields
from octavo.text.pretokenize import PreTokenizer
from octavo.text.vocab import SPACE, Vocab

MERGES = "tokenizer.ggml.merges"

_UNKNOWN = "\0unknown"  # stands for a byte that the vocabulary lacks; as it is no single character, no text gives it
_LINES = re.compile(r"[^\n]+|\n+")


def byte_level_encoder(fields: Fields, vocab: Vocab, pre: PreTokenizer) -> Callable[[str], list[int]]:
    """A function from text without special tokens to ids, in time near-linear in the text's length.

    Bytes that are no token of the vocabulary are left out, as llama.cpp leaves them out. Raises TokenizerError for
    merges that are missing, not two texts, or of texts that are no tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    bpe = models.BPE(
        vocab={**vocab.ids, _UNKNOWN: len(vocab)},
        merges=read_merges(fields, vocab),
        unk_token=_UNKNOWN,
        ignore_merges=pre.ignore_merges,
    )
    engine = Tokenizer(bpe)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([word_splitter(pre), byte_level])
    complete = all(c in vocab.ids for c in BYTE_TO_CHAR)

    def encode(text: str) -> list[int]:
        ids = run_engine(engine, text)
        return ids if complete else [i for i in ids if i < len(vocab)]

    return encode


def word_splitter(pre: PreTokenizer) -> Any:
    """What cuts text into words: a pre-tokenizer of the `tokenizers` package."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in pre.patterns])


def character_encoder(fields: Fields, vocab: Vocab) -> Callable[[str], list[int]]:
    """As `byte_level_encoder`, for Gemma 4: merges on characters, with spaces as tokens write them, line by line.

    A run of newlines that is a token is that token. Characters that are no token become the tokens of their bytes.
    """
    from tokenizers import Tokenizer, models

    bpe = models.BPE(
        vocab={**vocab.ids, _UNKNOWN: len(vocab)},
        merges=read_merges(fields, vocab),
        unk_token=_UNKNOWN,
        byte_fallback=True,
    )
    engine = Tokenizer(bpe)

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for line in _LINES.findall(text.replace(" ", SPACE)):
            token = vocab.ids.get(line) if line[0] == "\n" else None
            out += run_engine(engine, line) if token is None else [token]
        return [i for i in out if i < len(vocab)]

    return encode


def run_engine(engine: Any, text: str) -> list[int]:
    """The ids of `text` from a `tokenizers` engine. Raises TokenizerError where a pattern backtracks too far."""

    def fault(reason: str) -> TokenizerError:
        problem = f"text of {len(text)} characters has a part too long to cut into words: {reason}"
        return TokenizerError(problem, allowed="a shorter text in a call")

    with engine_faults(fault):
        return list(engine.encode(text, add_special_tokens=False).ids)


def read_merges(fields: Fields, vocab: Vocab) -> list[tuple[str, str]]:
    """The pairs to merge, first the most important; of a pair that occurs twice, the first."""
    lines = fields.texts(MERGES)
    if lines is None:
        raise fields.fault(MERGES, "missing", "an array of texts")
    ids = vocab.ids
    pairs: dict[tuple[str, str], None] = {}
    for rank, line in enumerate(lines):
        left, _, right = line.partition(" ")
        if not (left in ids and right in ids and left + right in ids):
            allowed = "two tokens, with one space between, whose joined text is a token"
            raise fields.fault(MERGES, f"merge {rank} is {line[:80]!r}", allowed)
        pairs[left, right] = None
    return list(pairs)
