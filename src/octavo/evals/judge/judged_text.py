"""Texts that models are judged on: documents, each of which is a cluster, and what of them was calibrated with.

The one that comes with Octavo is data/judge.jsonl: a document a line, with its kind and language. Its SHA-256 stands
here, so that figures from it mean the same text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibrate.texts import (
    DEMO_QUESTIONS,
    MAX_BYTES,
    demo_text,
    has_records,
    record_tokens,
    records,
    require_said,
)
from octavo.data.questions import questions
from octavo.errors import FileError
from octavo.io import regular_file
from octavo.text import Tokenizer

SHIPPED = "octavo"
"""What the text that comes with Octavo is called."""
DEMO = "demo"
"""What the demo model's questions and answers are called."""
DIGEST = "ba36a6135d36f7f36eebd334aba07362ee898622a86d11346e1946d670e6f3fb"
"""SHA-256 of that file."""
SHINGLE = 12
"""Words in a row that two texts share where one was copied."""
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")
"""A word, or a character of scripts that put no space between words."""


@dataclass(frozen=True, eq=False)
class JudgedText:
    """A text as tokens.

    name       of the file
    digest     SHA-256 of its bytes; empty for one that is not a file
    tokens     of all documents, one after another; a text without documents begins as the model begins one
    documents  int64 [tokens]: the document of each; None for a text that does not say where one ends
    words      the words of each document
    kinds      what each is: "prose, en", empty where a file does not say
    """

    name: str
    digest: str
    tokens: list[int]
    documents: npt.NDArray[np.int64] | None
    words: list[list[str]]
    kinds: list[str]

    def overlap(self, path: str | os.PathLike[str]) -> float:
        """The share of this text's shingles of SHINGLE words that the file at `path`, a calibration text, has too.

        Raises FileError for a file that can't be read.
        """
        raw = regular_file.read_text(path, MAX_BYTES)
        parts = [_said(path, *record) for record in records(path, raw)] if has_records(path) else [raw]
        theirs = {shingle for part in parts for shingle in shingles(words_of(part))}
        mine = [shingle for words in self.words for shingle in shingles(words)]
        return sum(shingle in theirs for shingle in mine) / max(1, len(mine))


def read_judged(name: str, tokenizer: Tokenizer, *, parse_special: bool = False) -> JudgedText:
    """The text that comes with Octavo (SHIPPED), the demo model's held-out questions and answers (DEMO), each a
    document, or a file: plain text, or JSONL with a document a line.

    A document has "text", or "messages" that the model's chat template is for. Raises FileError for a file that can't
    be read, naming the line of a record that is wrong.
    """
    if name == DEMO:
        return _demo(tokenizer)
    path = str(files("octavo.data") / "judge.jsonl") if name == SHIPPED else name
    raw = regular_file.read_text(path, MAX_BYTES)
    digest = sha256(raw.encode()).hexdigest()
    if name == SHIPPED and digest != DIGEST:
        raise FileError(f"is not the text that Octavo came with: SHA-256 {digest}", file=path, allowed=DIGEST)
    if not has_records(path):
        text = raw.removesuffix("\n")
        if not text:
            raise FileError("the text is empty", file=path, offset=0)
        tokens = tokenizer.encode(text, parse_special=parse_special)
        return JudgedText(os.path.basename(path), digest, tokens, None, [words_of(text)], [""])
    found, kinds, words = list[list[int]](), list[str](), list[list[str]]()
    for line, record in records(path, raw):
        ids = record_tokens(path, line, record, tokenizer, parse_special)
        found.append(ids[1:] if tokenizer.add_bos and ids[0] == tokenizer.bos_id else ids)
        kinds.append(", ".join(str(record[key]) for key in ("kind", "language") if key in record))
        words.append(words_of(_said(path, line, record)))
    documents = np.repeat(np.arange(len(found)), [len(ids) for ids in found])
    return JudgedText(os.path.basename(path), digest, [i for ids in found for i in ids], documents, words, kinds)


def _demo(tokenizer: Tokenizer) -> JudgedText:
    """All of it is scored, so that questions are too."""
    text = demo_text(tokenizer, "test")
    assert text.scored is not None
    ends = np.diff(text.scored.astype(np.int64), prepend=0) < 0  # a question ends with its answer
    words = [words_of(f"{q.prompt}\n{q.answer}") for q in questions(0, DEMO_QUESTIONS, "test")]
    return JudgedText(text.name, "", text.tokens, np.cumsum(ends, dtype=np.int64), words, ["questions"] * len(words))


def words_of(text: str) -> list[str]:
    """The words of a text, without case and punctuation."""
    return WORD.findall(text.casefold())


def shingles(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Each SHINGLE words in a row; of fewer all of them."""
    return (tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1)) if words)


def _said(path: str | os.PathLike[str], line: int, record: dict[str, Any]) -> str:
    """The text of a record, or what its messages say. Raises FileError, with its line, for one that has neither."""
    require_said(path, line, record)
    found = record.get("text", record.get("messages", ""))
    return found if isinstance(found, str) else "\n".join(str(m["content"]) for m in found if "content" in m)
