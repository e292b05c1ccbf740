"""Byte-level BPE, on the `tokenizers` package: words from the model's patterns, bytes as characters, merges by rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from operator import methodcaller
from typing import Any

from octavo.text.bytelevel import BYTE_TO_CHAR
from octavo.text.fields import Fields
from octavo.text.pretokenize import PreTokenizer
from octavo.text.text_blocks import at_pattern, between_tokens, in_blocks, pairs_of, uncut
from octavo.text.text_encoder import Encoder
from octavo.text.tokenizers_package import cut_words, run_engine
from octavo.text.vocab import SPACE, Vocab, longest_bytes
from octavo.text.word_merges import WordMerges

MERGES = "tokenizer.ggml.merges"
NFC = "tokenizer.ggml.normalizer.nfc"
"""Whether text is composed (Unicode's NFC) before it is cut. Octavo writes this key; llama.cpp has none for it."""

_UNKNOWN = "\0unknown"  # stands for a byte that the vocabulary lacks; as it is not a single character, no text gives it
_BYTE_NAMES = [f"<0x{byte:02X}>" for byte in range(256)]
_LINES, _WORDS = re.compile(r"[^\n]+|\n+"), re.compile(r"\S+")


def byte_level_encoder(fields: Fields, vocab: Vocab, pre: PreTokenizer) -> Encoder:
    """What encodes text on the `tokenizers` package.

    Bytes that are not tokens of the vocabulary are left out, as llama.cpp leaves them out. Raises TokenizerError for
    merges that are missing or not two texts.
    """
    from tokenizers import normalizers, pre_tokenizers

    lines = _merge_lines(fields)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitter = pre_tokenizers.Sequence([word_splitter(pre), byte_level])
    letters = {c: [vocab.ids[c]] for c in map(chr, range(128)) if c in vocab.ids}
    composed = normalizers.NFC() if fields.flag(NFC) else None
    words = WordMerges(lines, vocab.ids, pre.ignore_merges)
    all_bytes = all(c in vocab.ids for c in BYTE_TO_CHAR)

    @cache
    def merged() -> _Merged:
        made = _Merged(vocab, pairs(lines), lambda text: [i for c in text for i in letters.get(c, [])],
                       pre.ignore_merges)
        made.engine.pre_tokenizer = splitter
        if composed is not None:
            made.engine.normalizer = composed
        return made

    def complete() -> bool:
        return all_bytes and not merged().between

    def encode(text: str) -> list[int]:
        if words.takes(text):
            found = words.ids(cut_words(splitter, text if composed is None else composed.normalize_str(text)))
            if found is not None:
                return found
        return merged().tokens(run_engine(merged().engine, text))

    longest = max(map(len, vocab.texts)) if all_bytes else None  # a character for each byte
    return Encoder(in_blocks(encode, at_pattern(pre.cut)), longest, bool(fields.flag(NFC)), complete)


class _Merged:
    """Merges on the `tokenizers` package, also those of texts without a token.

    Such a text takes part in merges like any other, as in llama.cpp; where one is left over in the end, `spelled` gives
    its tokens. In the package's vocabulary these texts have the ids from that of _UNKNOWN on: `between` has them.
    """

    def __init__(
        self, vocab: Vocab, merges: list[tuple[str, str]], spelled: Callable[[str], list[int]],
        whole_words: bool = False, **options: Any,
    ) -> None:
        texts = dict.fromkeys(t for left, right in merges for t in (left, right, left + right))
        self.size, self._spelled, self._merges, self._options = len(vocab), spelled, merges, options
        self.between = dict(enumerate((text for text in texts if text not in vocab.ids), len(vocab) + 1))
        self._ids = {**vocab.ids, _UNKNOWN: len(vocab), **{text: i for i, text in self.between.items()}}
        self.engine = self._engine(whole_words)

    def _engine(self, whole_words: bool = False) -> Any:
        from tokenizers import Tokenizer, models

        bpe = models.BPE(vocab=self._ids, merges=self._merges, unk_token=_UNKNOWN, ignore_merges=whole_words,
                         **self._options)
        return Tokenizer(bpe)

    @cached_property
    def _by_merges(self) -> Any:
        """The engine that cuts no words and takes none as it is."""
        return self._engine()

    def pairs(self) -> set[str]:
        """The pairs of characters that merges can join."""
        return pairs_of(self._ids)

    def tokens(self, ids: list[int]) -> list[int]:
        """The tokens of what the engine gave, what it does not know left out."""
        return [token for i in ids for token in ([i] if i < self.size else self._left_over(i))]

    def _left_over(self, i: int) -> list[int]:
        """The tokens of a text that is not a token; where whole words are taken as they are, its merges come first."""
        if i not in self.between:
            return []
        found = run_engine(self._by_merges, self.between[i])
        return self._spelled(self.between[i]) if found == [i] else self.tokens(found)


def word_splitter(pre: PreTokenizer) -> Any:
    """What cuts text into words: a pre-tokenizer of the `tokenizers` package."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in pre.patterns])


def character_encoder(fields: Fields, vocab: Vocab, *, newlines: bool = True) -> Encoder:
    """As `byte_level_encoder`, for Gemma 4: merges on characters, with spaces as tokens write them, line by line.

    `newlines`: a run of newlines that is a token is that token. Characters that are not tokens become the tokens of
    their bytes.
    """
    merged = _merged_characters(fields, vocab)
    cut = between_tokens(cache(merged.pairs), SPACE) if SPACE in vocab.ids else uncut
    cut_up = in_blocks(lambda line: merged.tokens(run_engine(merged.engine, line)), cut)

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for line in (found[0] for found in _LINES.finditer(text.replace(" ", SPACE))):
            token = vocab.ids.get(line) if newlines and line[0] == "\n" else None
            out += cut_up(line) if token is None else [token]
        return out

    complete = all(name in vocab.ids for name in _BYTE_NAMES)
    return Encoder(encode, longest_bytes(vocab) if complete else None)


def white_space_encoder(fields: Fields, vocab: Vocab) -> Encoder:
    """As `character_encoder`, for words between white space, which is left out.

    They are in lower case where `tokenizer.ggml.normalizer.lowercase` says so.
    """
    merged = _merged_characters(fields, vocab)
    lower = fields.flag("tokenizer.ggml.normalizer.lowercase")

    def encode(text: str) -> list[int]:
        words = _WORDS.finditer(text.lower() if lower else text)
        return [token for word in words for token in merged.tokens(run_engine(merged.engine, word[0]))]

    return Encoder(encode)


def _merged_characters(fields: Fields, vocab: Vocab) -> _Merged:
    def spelled(text: str) -> list[int]:
        names = (_BYTE_NAMES[byte] for byte in text.encode())
        return [vocab.ids[name] for name in names if name in vocab.ids]

    return _Merged(vocab, read_merges(fields), spelled, byte_fallback=True)


def read_merges(fields: Fields) -> list[tuple[str, str]]:
    """The pairs to merge, first the most important; of a pair that occurs twice, the first."""
    return pairs(_merge_lines(fields))


def pairs(lines: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs in lines that were checked, each once."""
    return list(dict.fromkeys((left, right) for left, _, right in (line.partition(" ") for line in lines)))


def _merge_lines(fields: Fields) -> list[str]:
    """The pairs to merge as they are written. Raises TokenizerError for one that is not two texts."""
    lines = fields.texts(MERGES)
    if lines is None:
        raise fields.fault(MERGES, "missing", "an array of texts")
    together = "\0".join(["", *lines, ""])
    if set(map(methodcaller("count", " "), lines)) <= {1} and "\0 " not in together and " \0" not in together:
        return lines
    wrong = [line for line in lines if not 0 < line.find(" ") < len(line) - 1]
    if wrong:
        problem = f"merge {lines.index(wrong[0])} is {wrong[0][:80]!r}"
        raise fields.fault(MERGES, problem, "two texts with one space between")
    return lines
