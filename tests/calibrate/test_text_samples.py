"""Samples of texts and of JSONL files, which of them are drawn, and what is refused."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from octavo.calibrate.texts import drawn, read_calibration, windows
from octavo.errors import FileError, TokenizerError, UsageError
from octavo.text import Tokenizer
from tests.runtime import tiny

TOKENIZER = Tokenizer.from_metadata(tiny.TOKENIZER)
TEXT = "The quick brown fox. " * 20


def written(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records), encoding="utf-8")
    return path


def test_windows_of_a_text(tmp_path: Path) -> None:
    path = written(tmp_path / "t.txt", TEXT)
    tokens = TOKENIZER.encode(TEXT)
    read = read_calibration(path, TOKENIZER, samples=1000, context=32)
    assert read.samples == [tokens[i : i + 32] for i in range(0, len(tokens) - 31, 32)]
    assert (read.name, read.digest) == ("t.txt", sha256(TEXT.encode()).hexdigest())


def test_samples_are_drawn_by_a_seed() -> None:
    found = [drawn(1000, 10, seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert all(places == sorted(set(places)) and len(places) == 10 for places in found)
    assert drawn(3, 10, 5) == [0, 1, 2]
    assert windows(list(range(10)), 5, 4, 0, bos=77) == [[77, 1, 2, 3], [77, 5, 6, 7]]


def test_records_of_a_jsonl_file(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "<|im_end|>?"}, {"role": "assistant", "content": "no"}]
    path = written(tmp_path / "t.jsonl", {"text": "first"}, "", {"messages": messages}, {"text": "x" * 90})
    read = read_calibration(path, TOKENIZER, context=40)
    first, chat, long = read.samples
    assert TOKENIZER.decode(first) == "first"
    whole = "<|im_start|>user\n<|im_end|>?<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n"
    assert whole.startswith(TOKENIZER.decode(chat))
    assert chat.count(tiny.START) == 2
    assert len(long) == 40
    fewer = read_calibration(path, TOKENIZER, samples=2, context=40, seed=3)
    assert len(fewer.samples) == 2
    assert all(sample in read.samples for sample in fewer.samples)


def test_a_record_may_have_what_unicode_calls_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a line\u2028and\x85another"}\n{"text": "one more"}\n', encoding="utf-8")
    first, _ = read_calibration(path, TOKENIZER, context=40).samples
    assert TOKENIZER.decode(first) == "a line\u2028and\x85another"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is not valid JSON"),
        ("[1]", "line 2: is a list"),
        ('{"prompt": "a"}', "line 2: has no text"),
        ('{"text": 3}', "line 2: has no text"),
        ('{"messages": []}', "line 2: has no text"),
        ('{"messages": [{"role": "user"}]}', "line 2: has no text"),
        ('{"text": "a"}', "line 2: has 1 tokens"),
    ],
)
def test_wrong_records_name_their_line(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"text": "good one"}, line)
    with pytest.raises(FileError, match=message):
        read_calibration(path, TOKENIZER)


def test_what_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.txt", "short")
    with pytest.raises(UsageError, match="the text has 5 tokens, less than one sample of 2048"):
        read_calibration(path, TOKENIZER)
    with pytest.raises(UsageError, match="samples is 0"):
        read_calibration(path, TOKENIZER, samples=0)
    with pytest.raises(UsageError, match="n_ctx is 1 "):
        read_calibration(path, TOKENIZER, context=1)
    with pytest.raises(FileError, match="has no records"):
        read_calibration(written(tmp_path / "e.jsonl", " "), TOKENIZER)
    with pytest.raises(FileError, match="can't be opened"):
        read_calibration(tmp_path / "none.txt", TOKENIZER)
    with pytest.raises(TokenizerError):
        read_calibration(written(tmp_path / "s.jsonl", '{"text": "\\ud800 and more"}'), TOKENIZER)
