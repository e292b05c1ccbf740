"""tokenizer.json, the tokenizer of the `tokenizers` package: its vocabulary, and the engine to compare with."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from octavo.errors import TokenizerError
from octavo.huggingface.tokenizer.added_tokens import AddedToken, read_added
from octavo.io.gguf.header_limits import MAX_STRINGS as MAX_TOKENS
from octavo.io.regular_file import read_bytes
from octavo.io.safetensors.json_file import MAX_BYTES, parse_object
from octavo.text.tokenizers_package import engine_faults
from octavo.text.vocab import SPACE

FILE = "tokenizer.json"
KINDS = ("BPE", "WordPiece", "Unigram")


class TokenizerJson:
    """A tokenizer.json.

    kind           of its model, one of KINDS
    ids            of the tokens by text, added ones included
    added          the added tokens by id
    merges         pairs to join, the most important first
    byte_fallback  characters without a token become tokens of their bytes (SentencePiece's way); otherwise the tokens
                   are written in characters that stand for bytes (GPT-2's way)
    ignore_merges  a word that is a token is that token, whatever the merges give
    scores         of the tokens by id, for Unigram
    """

    def __init__(self, raw: bytes, file: str) -> None:
        self.file, self.raw, self.values = file, raw, parse_object(raw, file)
        values = self.values
        model = values.get("model")
        self.kind = model.get("type", "BPE") if isinstance(model, dict) else model
        if not isinstance(model, dict) or self.kind not in KINDS:
            raise self.error("model.type", f"is {str(self.kind)[:40]!r}", ", ".join(KINDS))
        self.byte_fallback = model.get("byte_fallback") is True
        self.ignore_merges = model.get("ignore_merges") is True
        unknown = model.get("unk_token")
        self.unk_token = unknown if isinstance(unknown, str) else None
        self.added = {token.id: token for token in map(self._added, self._list(values, "added_tokens"))}
        self.merges = [self._merge(i, pair) for i, pair in enumerate(self._list(model, "merges"))]
        self.scores = self._scores(model.get("vocab")) if self.kind == "Unigram" else {}
        self.ids = self._ids(self._listed(model) if self.kind == "Unigram" else model.get("vocab"))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TokenizerJson:
        """Raises FileError for a file that is not valid JSON, TokenizerError for a tokenizer of another kind."""
        return cls(read_bytes(path, MAX_BYTES), os.fsdecode(path))

    @property
    def texts(self) -> dict[int, str]:
        """Texts of the tokens by id. Raises TokenizerError where two share an id."""
        texts = {i: text for text, i in self.ids.items()}
        if len(texts) < len(self.ids):
            twice = next(text for text, i in self.ids.items() if texts[i] != text)
            raise self.error("model.vocab", f"{twice!r} and {texts[self.ids[twice]]!r} have one id", "an id each")
        return texts

    def add(self, tokens: Mapping[int, AddedToken]) -> None:
        """Take the added tokens from elsewhere."""
        self.added = dict(tokens)
        self.ids |= {token.text: i for i, token in tokens.items()}

    def normalized(self, text: str) -> str:
        """What the normalizer makes of a text."""
        normalizer = self._engine.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids that the tokenizer gives to `text`, `special`: with those around it. Raises TokenizerError."""
        engine = self._engine
        with self._faults(f"can't encode {text[:40]!r}"):
            return list(engine.encode(text, add_special_tokens=special).ids)

    def encode_pair(self, first: str, second: str) -> list[int]:
        """The ids that the tokenizer gives to two texts, with those around and between them. Raises TokenizerError."""
        engine = self._engine
        with self._faults(f"can't encode {first[:40]!r} and {second[:40]!r}"):
            return list(engine.encode(first, second).ids)

    def cuts(self, text: str) -> list[tuple[int, int]] | None:
        """Where the pre-tokenizer cuts `text`; None without one. Raises TokenizerError."""
        splitter = self._engine.pre_tokenizer
        if splitter is None:
            return None
        with self._faults(f"can't cut {text[:40]!r} into words"):
            return [place for _, place in splitter.pre_tokenize_str(text)]

    @cached_property
    def _engine(self) -> Any:
        """The tokenizer itself, `tokenizers.Tokenizer`, for whole texts and each by itself."""
        import tokenizers

        with self._faults("can't be used"):
            engine = tokenizers.Tokenizer.from_buffer(self.raw)
            engine.no_truncation()  # training scripts save these two; they say nothing of the tokens
            engine.no_padding()
            return engine

    def _faults(self, problem: str) -> AbstractContextManager[None]:
        allowed = "what the tokenizers package reads"
        return engine_faults(lambda reason: self.error("", f"{problem}: {reason}", allowed), quiet=True)

    def adds_space(self) -> bool:
        """Whether a space goes before a text."""
        parts = [*_parts(self.values.get("normalizer")), *_parts(self.values.get("pre_tokenizer"))]
        return any(
            (part.get("type") == "Prepend" and part.get("prepend") == SPACE)
            or (part.get("type") == "Metaspace" and _metaspace_adds(part))
            for part in parts
        )

    def normalizer_parts(self) -> list[dict[str, Any]]:
        """The normalizers that change text before it is cut, as the file has them."""
        return _parts(self.values.get("normalizer"))

    def pre_tokenizer_parts(self) -> list[dict[str, Any]]:
        """The pre-tokenizers, as the file has them."""
        return _parts(self.values.get("pre_tokenizer"))

    def normalizers(self) -> list[str]:
        """Kinds of the normalizers that change text before it is cut."""
        return [str(part.get("type")) for part in _parts(self.values.get("normalizer"))]

    def error(self, field: str, problem: str, allowed: str | None = None) -> TokenizerError:
        return TokenizerError(problem, file=self.file, field=field or None, allowed=allowed)

    def _list(self, values: dict[str, Any], key: str) -> list[Any]:
        found = values.get(key)
        if found is not None and not isinstance(found, list):
            raise self.error(key, f"is {type(found).__name__}", "a list")
        return found or []

    def _added(self, entry: Any) -> AddedToken:
        return read_added(entry, entry.get("id") if isinstance(entry, dict) else None, self.file, "added_tokens")

    def _merge(self, rank: int, pair: Any) -> tuple[str, str]:
        parts = pair.split(" ") if isinstance(pair, str) else pair
        if not (isinstance(parts, list) and len(parts) == 2 and all(isinstance(p, str) and p for p in parts)):
            raise self.error("model.merges", f"merge {rank} is {str(pair)[:80]!r}", "two texts")
        return parts[0], parts[1]

    def _scores(self, vocab: Any) -> dict[int, float]:
        """The scores of a list of tokens and scores. Raises TokenizerError for one that is not such a list."""
        if not isinstance(vocab, list) or not vocab or len(vocab) > MAX_TOKENS:
            raise self.error("model.vocab", f"is {type(vocab).__name__}", "a list of tokens and their scores")
        for entry in vocab:
            pair = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
            if not (pair and isinstance(entry[1], int | float) and math.isfinite(entry[1])):
                raise self.error("model.vocab", f"holds {str(entry)[:80]}", "tokens and their scores")
        return {i: float(score) for i, (_, score) in enumerate(vocab)}

    def _listed(self, model: dict[str, Any]) -> dict[str, int]:
        """The ids of a list of tokens; its `unk_id` names the unknown one."""
        texts = [text for text, _ in model["vocab"]]
        unknown = model.get("unk_id")
        if unknown is not None and not (self._is_id(unknown) and unknown < len(texts)):
            raise self.error("model.unk_id", f"is {str(unknown)[:40]}", f"0 to {len(texts) - 1}")
        self.unk_token = None if unknown is None else texts[unknown]
        ids = {text: i for i, text in enumerate(texts)}
        if len(ids) < len(texts):
            twice = next(text for i, text in enumerate(texts) if ids[text] != i)
            raise self.error("model.vocab", f"{twice[:80]!r} is there twice", "each token once")
        return ids

    def _ids(self, vocab: Any) -> dict[str, int]:
        if not isinstance(vocab, dict) or not vocab:
            raise self.error("model.vocab", f"is {type(vocab).__name__}", "tokens and their ids")
        wrong = next((text for text, i in vocab.items() if not self._is_id(i)), None)
        if wrong is not None:
            raise self.error(
                "model.vocab", f"token {wrong[:80]!r} has id {str(vocab[wrong])[:40]}", f"0 to {MAX_TOKENS}"
            )
        return {**vocab, **{token.text: token.id for token in self.added.values()}}

    @staticmethod
    def _is_id(value: Any) -> bool:
        return type(value) is int and 0 <= value <= MAX_TOKENS


def _parts(value: Any) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer, or those of a sequence of them."""
    if not isinstance(value, dict):
        return []
    inner = value.get("normalizers", value.get("pretokenizers"))
    return [part for part in inner if isinstance(part, dict)] if isinstance(inner, list) else [value]


def _metaspace_adds(part: dict[str, Any]) -> bool:
    scheme = part.get("prepend_scheme")
    return scheme != "never" if scheme is not None else part.get("add_prefix_space", True) is True
