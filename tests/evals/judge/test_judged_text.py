"""Texts to judge with: the one that comes with Octavo, one's own, and what of them was calibrated with."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import FileError
from octavo.evals.judge import judged_text
from octavo.evals.judge.judged_text import DEMO, SHIPPED, read_judged, words_of
from octavo.text import Tokenizer
from tests.runtime import tiny


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    from octavo.io.gguf import GGUFFile

    with GGUFFile.open(tiny.write(tmp_path / "tiny.gguf")) as file:
        return Tokenizer.from_gguf(file)


def test_the_text_that_is_shipped(tokenizer: Tokenizer) -> None:
    """Several languages, code and conversation, in documents that say where they are from; small."""
    raw = (files("octavo.data") / "judge.jsonl").read_bytes()
    records = [json.loads(line) for line in raw.splitlines()]
    assert len(raw) < 300_000
    assert all(record["source"] and record["language"] for record in records)
    kinds = Counter(record["kind"] for record in records)
    assert set(kinds) == {"prose", "verse", "code", "chat"}
    assert len({r["language"] for r in records if r["kind"] == "prose"}) >= 12
    found = read_judged(SHIPPED, tokenizer)
    assert found.documents is not None
    assert len(found.words) == len(records) >= 80
    assert set(found.documents.tolist()) == set(range(len(records)))
    assert found.digest == judged_text.DIGEST
    first = {kind.split(",")[0] for kind in found.kinds[:12]}
    assert first >= {"prose", "code", "chat"}  # the first windows are a sample of all


def test_a_changed_one_is_refused(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged_text, "DIGEST", "another")
    with pytest.raises(FileError, match="is not the text"):
        read_judged(SHIPPED, tokenizer)


def test_documents_of_a_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"text": "abc", "kind": "prose"}, {"messages": messages}])))
    found = read_judged(str(path), tokenizer)
    chat = tokenizer.encode_chat(tokenizer.chat_template(), messages, add_generation_prompt=False)
    assert found.tokens == [*b"abc", *chat]
    assert found.documents is not None
    assert np.bincount(found.documents).tolist() == [3, len(chat)]
    assert found.kinds == ["prose", ""]


def test_the_demo_models_questions_are_documents() -> None:
    import octavo
    from octavo.calibrate.texts import DEMO_QUESTIONS, demo_text

    with octavo.load("demo", device="reference", n_ctx=64) as model:
        read = read_judged(DEMO, model.tokenizer)
        assert read.tokens == demo_text(model.tokenizer, "test").tokens
        assert read.documents is not None
        for document in (0, 1, DEMO_QUESTIONS - 1):
            said = model.tokenizer.decode(np.array(read.tokens)[read.documents == document].tolist())
            assert said.count("assistant") == 1
            assert [w for w in read.words[document] if w not in words_of(said)] == []
    assert len(read.words) == len(read.kinds) == DEMO_QUESTIONS


def test_a_plain_text_has_no_documents(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("some words\n")
    found = read_judged(str(tmp_path / "own.txt"), tokenizer)
    assert (found.documents, bytes(found.tokens)) == (None, b"some words")


@pytest.mark.parametrize("line", ['{"text": 5}', "[]", "{", '{"messages": [{"role": "user"}]}'])
def test_a_wrong_record_is_told_by_its_line(tokenizer: Tokenizer, tmp_path: Path, line: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(f'{{"text": "right"}}\n{line}\n')
    with pytest.raises(FileError, match="line 2"):
        read_judged(str(path), tokenizer)


def test_overlap_is_of_runs_of_twelve_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(31)]
    (tmp_path / "own.txt").write_text(" ".join(words))
    found = read_judged(str(tmp_path / "own.txt"), tokenizer)
    for taken, share in ((words, 1.0), (words[:11], 0.0), (words[:16], 5 / 20), (words[::-1], 0.0)):
        (tmp_path / "calibration.txt").write_text(", ".join(taken).upper())
        assert found.overlap(tmp_path / "calibration.txt") == share
    (tmp_path / "calibration.jsonl").write_text(json.dumps({"text": " ".join(words[5:])}))
    assert found.overlap(tmp_path / "calibration.jsonl") == 15 / 20


@pytest.mark.parametrize("line", ['{"messages": 5}', '{"messages": [5]}', '{"text": 5}', "{}"])
def test_a_wrong_record_to_calibrate_with_is_told_by_its_line(
    tokenizer: Tokenizer, tmp_path: Path, line: str
) -> None:
    (tmp_path / "theirs.jsonl").write_text(f'{{"text": "a b"}}\n{line}\n')
    (tmp_path / "mine.txt").write_text("a b c")
    with pytest.raises(FileError, match="line 2"):
        read_judged(str(tmp_path / "mine.txt"), tokenizer).overlap(tmp_path / "theirs.jsonl")


def test_words() -> None:
    assert words_of("It's 3 o'clock: ICH_bin da.") == ["it", "s", "3", "o", "clock", "ich", "bin", "da"]
    assert words_of("我们走，yes") == ["我", "们", "走", "yes"]
