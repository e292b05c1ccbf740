"""Texts: files, and the demo model's questions as a chat."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from octavo.calibrate.texts import named_text
from octavo.data import demo_model_path
from octavo.data.questions import questions
from octavo.errors import FileError
from octavo.evals import demo_text, read_text
from octavo.text import Tokenizer
from tests.runtime import tiny


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(tiny.TOKENIZER)


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return Tokenizer.from_gguf(demo_model_path())


def write(folder: Path, data: bytes) -> Path:
    (folder / "text.txt").write_bytes(data)
    return folder / "text.txt"


def test_a_file_is_its_tokens_without_the_last_line_end(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = read_text(write(tmp_path, b"a\nb\n\n"), tokenizer)
    assert (text.name, text.tokens, text.scored) == ("text.txt", tokenizer.encode("a\nb\n"), None)


def test_control_tokens_are_text_unless_asked_for(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write(tmp_path, b"a<|im_end|>b")
    assert tiny.END not in read_text(path, tokenizer).tokens
    a, b = (tokenizer.encode(letter) for letter in "ab")
    assert read_text(path, tokenizer, parse_special=True).tokens == [*a, tiny.END, *b]


@pytest.mark.parametrize(
    ("data", "message"), [(b"", "is empty"), (b"\n", "is empty"), (b"abc\xff", "byte 3: not UTF-8")]
)
def test_what_is_no_text(tokenizer: Tokenizer, tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(FileError, match=message) as caught:
        read_text(write(tmp_path, data), tokenizer)
    assert caught.value.file == str(tmp_path / "text.txt")


def test_no_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.txt: can't be opened"):
        read_text(tmp_path / "none.txt", tokenizer)
    with pytest.raises(FileError, match="not a regular file"):
        read_text(tmp_path, tokenizer)


def test_texts_without_an_end(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not a regular file"):
        read_text("/dev/zero", tokenizer)
    (tmp_path / "large.txt").touch()
    os.truncate(tmp_path / "large.txt", 1 << 40)
    with pytest.raises(FileError, match=r"too large: .* \(allowed: at most 134,217,728 bytes\)"):
        read_text(tmp_path / "large.txt", tokenizer)


def test_answers_of_the_demo_text_are_scored(demo: Tokenizer) -> None:
    text = demo_text(demo, "test", 20, seed=3)
    assert text.scored is not None
    edges = np.flatnonzero(np.diff(np.concatenate([[False], text.scored, [False]]).astype(int)))
    answers = [demo.decode(text.tokens[a:b]) for a, b in edges.reshape(-1, 2)]
    assert answers == [f"{q.answer}<|im_end|>" for q in questions(3, 20)]
    for q in questions(3, 20):
        assert f"<|im_start|>user\n{q.prompt}<|im_end|>\n<|im_start|>assistant\n{q.answer}" in demo.decode(text.tokens)


def test_the_demo_text_is_tokenized_as_a_chat_is(demo: Tokenizer) -> None:
    text = demo_text(demo, "test", 20)
    assert text.tokens == demo.encode(demo.decode(text.tokens))


def test_calibration_and_test_text_share_no_question(demo: Tokenizer) -> None:
    test, train = (
        demo.decode(demo_text(demo, split, 300).tokens).split("<|im_start|>user") for split in ("test", "train")
    )
    assert not {t for t in test if any(c.isdigit() for c in t)} & set(train)


def test_a_name_is_a_file_or_demo(demo: Tokenizer, tmp_path: Path) -> None:
    assert named_text("demo", demo, "train").tokens == demo_text(demo, "train").tokens
    assert named_text(str(write(tmp_path, b"1 + 1")), demo, "train").tokens == demo.encode("1 + 1")
