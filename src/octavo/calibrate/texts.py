"""Texts to evaluate on and to calibrate with: a file, questions and answers of the demo model, windows and records.

Samples are windows of tokens, or records of a JSONL file, drawn by a seed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.data.questions import Question, Split, most
from octavo.data.questions import questions as draw
from octavo.errors import FileError, UsageError
from octavo.io import regular_file
from octavo.io.gguf import GGUFFile
from octavo.text import Tokenizer

Mask = npt.NDArray[np.bool_]

DEMO_QUESTIONS = 1000
MAX_BYTES = 1 << 27
MAX_SAMPLES_BYTES = 1 << 28
LEAST_CONTEXT = 2
"""Tokens of a sample at least: of one alone nothing can be attended to."""
TOKENS_OF_A_QUESTION = 32
"""Fewer tokens than any question of the demo model's has, with its answer."""


@dataclass(frozen=True, eq=False)
class Text:
    """A text as tokens. `scored` says of each whether it counts in an evaluation, None that all do."""

    name: str
    tokens: list[int]
    scored: Mask | None = None


def read_text(path: str | os.PathLike[str], tokenizer: Tokenizer, *, parse_special: bool = False) -> Text:
    """A UTF-8 file as tokens. Of a line end at its end nothing is kept, as llama.cpp does.

    `parse_special`: text such as "<|im_end|>" becomes the control token of that name. Raises FileError for a file that
    can't be opened, is not a regular file, is empty, has more than MAX_BYTES, or is not UTF-8.
    """
    text = regular_file.read_text(path, MAX_BYTES).removesuffix("\n")
    if not text:
        raise FileError("the text is empty", file=path, offset=0)
    return Text(os.path.basename(path), tokenizer.encode(text, parse_special=parse_special))


def demo_text(tokenizer: Tokenizer, split: Split, questions: int = DEMO_QUESTIONS, seed: int = 0) -> Text:
    """Questions and answers of the demo model's domain as one long chat; only the answers are scored.

    `split` "test" asks what the demo model was not trained on, "train" is for calibration. Each answer is scored with
    the end of its turn. The chat format is ChatML, the demo model's own.
    """
    tokens: list[int] = []
    scored: list[bool] = []
    for part, is_answer in _turns(draw(seed, questions, split)):
        ids = tokenizer.encode(part, add_special=False)
        tokens += ids
        scored += [is_answer] * len(ids)
    return Text(f"demo, {split}, {questions} questions, seed {seed}", tokens, np.array(scored, bool))


def named_text(name: str, tokenizer: Tokenizer, split: Split, *, parse_special: bool = False) -> Text:
    """What a command line's TEXT names: "demo" is `demo_text` of that split, all else a file."""
    return demo_text(tokenizer, split) if name == "demo" else read_text(name, tokenizer, parse_special=parse_special)


def _turns(questions: list[Question]) -> list[tuple[str, bool]]:
    """Pieces of a chat and whether they are an answer."""
    return [
        piece
        for q in questions
        for piece in (
            (f"<|im_start|>user\n{q.prompt}<|im_end|>\n<|im_start|>assistant\n", False),
            (f"{q.answer}<|im_end|>", True),
            ("\n", False),
        )
    ]


@dataclass(frozen=True, eq=False)
class CalibrationText:
    """Samples of a text.

    name     of the file
    digest   SHA-256 of the text, by which it is told apart from one that a model is measured with
    samples  tokens of each
    """

    name: str
    digest: str
    samples: list[list[int]]


def has_records(path: str | os.PathLike[str]) -> bool:
    """Whether a text is called as files of records are, JSONL."""
    return os.path.basename(path).lower().endswith(".jsonl")


def read_calibration(
    path: str | os.PathLike[str], tokenizer: Tokenizer, *, samples: int = 128, context: int = 2048, seed: int = 0,
    parse_special: bool = False,
) -> CalibrationText:
    """At most `samples` samples of a UTF-8 text, or of a JSONL file if it is called so.

    Of a text these are windows of `context` tokens that do not overlap; of a JSONL file the first `context` tokens of
    records, each with a "text", or with "messages" that the model's chat template is for. Which ones, `seed` says; they
    keep their order. The first token of a window is BOS where the model wants one.

    Raises FileError for a file that can't be read, naming the line of a record that is wrong, and UsageError for a text
    of less than a window.
    """
    require_sizes(samples, context)
    raw = regular_file.read_text(path, MAX_SAMPLES_BYTES)
    name, digest = os.path.basename(path), sha256(raw.encode()).hexdigest()
    if has_records(path):
        lines = _lines(path, raw)
        chosen = (lines[i] for i in drawn(len(lines), samples, seed))
        found = [
            record_tokens(path, i, _record(path, i, line), tokenizer, parse_special)[:context] for i, line in chosen
        ]
    else:
        tokens = tokenizer.encode(raw.removesuffix("\n"), parse_special=parse_special)
        found = windows(tokens, samples, context, seed, tokenizer.bos_id if tokenizer.add_bos else None)
    return CalibrationText(name, digest, found)


def text_samples(name: str, file: GGUFFile, samples: int, context: int, seed: int) -> CalibrationText:
    """The samples of a text, or of the demo model's training questions."""
    tokenizer = Tokenizer.from_gguf(file)
    if name != "demo":
        return read_calibration(name, tokenizer, samples=samples, context=context, seed=seed)
    require_sizes(samples, context)
    wanted = samples * context // TOKENS_OF_A_QUESTION + 1
    text = demo_text(tokenizer, "train", min(wanted, most("train")), seed)
    digest = sha256(np.asarray(text.tokens, "<i4").tobytes()).hexdigest()
    return CalibrationText(text.name, digest, windows(text.tokens, samples, context, seed))


def require_sizes(samples: int, context: int) -> None:
    """Raise UsageError for fewer than one sample, or samples of fewer than LEAST_CONTEXT tokens."""
    if samples < 1:
        raise UsageError(f"samples is {samples} (allowed: 1 or more)", argument="samples")
    if context < LEAST_CONTEXT:
        raise UsageError(f"n_ctx is {context} (allowed: {LEAST_CONTEXT} or more)", argument="n_ctx")


def windows(tokens: Sequence[int], samples: int, context: int, seed: int, bos: int | None = None) -> list[list[int]]:
    """At most `samples` windows of tokens, in their order; `bos` takes the place of the first token of each.

    Raises UsageError for less than a window.
    """
    if len(tokens) < context:
        problem = f"the text has {len(tokens)} tokens, less than one sample of {context}"
        raise UsageError(f"{problem} (allowed: a longer text, or a smaller --ctx-size)")
    found = []
    for i in drawn(len(tokens) // context, samples, seed):
        window = list(tokens[i * context : (i + 1) * context])
        found.append(window if bos is None else [bos, *window[1:]])
    return found


def drawn(count: int, samples: int, seed: int) -> list[int]:
    """At most `samples` of `count` places, each once, in order."""
    if samples >= count:
        return list(range(count))
    return sorted(np.random.default_rng(seed).choice(count, samples, replace=False).tolist())


def records(path: str | os.PathLike[str], raw: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a JSONL file's text, each with its line's number. Raises FileError for none, or a wrong one."""
    return ((line, _record(path, line, text)) for line, text in _lines(path, raw))


def _lines(path: str | os.PathLike[str], raw: str) -> list[tuple[int, str]]:
    found = [(i, line) for i, line in enumerate(raw.split("\n"), 1) if line.strip()]
    if not found:
        raise FileError("has no records", file=path, offset=0)
    return found


def _record(path: str | os.PathLike[str], line: int, text: str) -> dict[str, Any]:
    """What a line of a JSONL file holds."""
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise _fault(path, line, "is not valid JSON", "an object on each line") from None
    if not isinstance(record, dict):
        raise _fault(path, line, f"is a {type(record).__name__}", "an object")
    return record


def require_said(path: str | os.PathLike[str], line: int, record: dict[str, Any]) -> None:
    """Raise FileError, with its line, for a record without a text and messages."""
    if not isinstance(record.get("text"), str) and not _are_messages(record.get("messages")):
        raise _fault(path, line, "has no text", '"text", or "messages" with a role and a content each')


def record_tokens(
    path: str | os.PathLike[str], line: int, record: dict[str, Any], tokenizer: Tokenizer, parse_special: bool
) -> list[int]:
    """The tokens of a record. Raises FileError, with its line, for one that has no text, or too little."""
    require_said(path, line, record)
    if isinstance(record.get("text"), str):
        tokens = tokenizer.encode(record["text"], parse_special=parse_special)
    else:
        tokens = tokenizer.encode_chat(tokenizer.chat_template(), record["messages"], add_generation_prompt=False)
    if len(tokens) < LEAST_CONTEXT:
        raise _fault(path, line, f"has {len(tokens)} tokens", f"{LEAST_CONTEXT} or more")
    return tokens


def _fault(path: str | os.PathLike[str], line: int, problem: str, allowed: str) -> FileError:
    return FileError(problem, file=path, field=f"line {line}", allowed=allowed)


def _are_messages(found: Any) -> bool:
    return (
        isinstance(found, list)
        and bool(found)
        and all(isinstance(m, dict) and all(isinstance(m.get(k), str) for k in ("role", "content")) for m in found)
    )
