"""Texts to evaluate on: a file, or questions and answers of the demo model."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.data.questions import Question, Split
from octavo.data.questions import questions as draw
from octavo.errors import FileError
from octavo.io import regular
from octavo.text import Tokenizer

Mask = npt.NDArray[np.bool_]

DEMO_QUESTIONS = 1000
MAX_BYTES = 1 << 27


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
    text = regular.read_text(path, MAX_BYTES).removesuffix("\n")
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
