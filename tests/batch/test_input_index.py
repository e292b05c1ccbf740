"""A file of requests, read once: where its lines are, in which order they are asked, and what it takes."""

from __future__ import annotations

import json
import os
import tracemalloc
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from octavo.batch import input_index
from octavo.batch.input_index import InputIndex, index_input, input_state
from octavo.batch.prefix_order import PREFIXES, prefix_marks, prefix_order
from octavo.batch.request_line import CHAT, EMBEDDINGS, LineError
from octavo.errors import FileError
from tests.batch.files import openai_line, write_lines


def indexed(path: Path | str) -> tuple[InputIndex, dict[int, LineError]]:
    bad: dict[int, LineError] = {}
    return index_input(str(path), CHAT, bad.__setitem__), bad


def chat(system: str, user: str) -> dict[str, object]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]}


def test_lines_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "in"
    text = '\ufeff"first"\r\n\n   \n{"prompt":"second","custom_id":"s"}\n{\n"dritté"'
    path.write_bytes(text.encode())
    index, bad = indexed(path)
    assert (index.lines, index.numbers.tolist(), [*bad]) == (4, [1, 4, 6], [5])
    found = [index.request(i) for i in range(3)]
    assert [(one.number, one.custom_id) for one in found] == [(1, "line-1"), (4, "s"), (6, "line-6")]
    assert json.loads(bytes(found[2].fields["messages"]))[0]["content"] == "dritté"
    assert not index.embeds
    index.close()


def test_no_lines(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\n \n")
    index, bad = indexed(tmp_path / "in")
    assert (index.lines, len(index.order), bad) == (0, 0, {})
    index.close()


def test_repeated_ids_are_those_after_the_first(tmp_path: Path) -> None:
    lines = [{"custom_id": name, "input": "x"} for name in ("a", "b", "a", "b")]
    index, bad = indexed(write_lines(tmp_path / "in", lines))
    assert {number: error.code for number, error in bad.items()} == dict.fromkeys((3, 4), "repeated_custom_id")
    assert "that of line 1" in bad[3].message
    assert sorted(index.order.tolist()) == [0, 1]
    assert index.embeds
    index.close()


def test_a_line_without_an_id_makes_way_for_those_with_one(tmp_path: Path) -> None:
    names = [None, "line-2-2", "line-1", "line-6", "line-1", None, "line-7", "line-4", None, None, "line-9-2", "line-9"]
    lines = [{"input": "x"} | ({"custom_id": name} if name else {}) for name in names]
    lines[6:6] = [{"input": "y", "custom_id": "line-2"}]
    index, bad = indexed(write_lines(tmp_path / "in", lines))
    found = {index.request(int(i)).number: index.request(int(i)).custom_id for i in index.order}
    assert [*bad] == [5]
    assert len(set(found.values())) == len(found) == len(lines) - 1
    assert (found[1], found[6]) == ("line-1-2", "line-6-2")
    assert all(found[i + 1] == line["custom_id"] for i, line in enumerate(lines) if "custom_id" in line and i != 4)
    index.close()


def test_ids_whose_marks_are_alike_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_index, "_id_mark", lambda custom_id: 7)
    index, bad = indexed(write_lines(tmp_path / "in", [{"custom_id": str(i), "input": "x"} for i in range(4)]))
    assert (bad, len(index.order)) == ({}, 4)
    index.close()


@pytest.mark.parametrize("extra", [0, 1, 7, 100, 101, 202, 1000])
def test_a_line_that_is_too_long_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: int) -> None:
    monkeypatch.setattr(input_index, "LONGEST", 100)
    (tmp_path / "in").write_text(f'"a"\n"{"x" * (99 + extra)}"\n"b"\n')
    index, bad = indexed(tmp_path / "in")
    assert [error.code for error in bad.values()] == ["line_too_long"]
    assert index.numbers.tolist() == [1, 3]
    assert [index.request(i).custom_id for i in range(2)] == ["line-1", "line-3"]
    index.close()


def test_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "in"
    index, _ = indexed(write_lines(path, [openai_line("a", {"messages": []})]))
    path.write_text("nothing")
    with pytest.raises(FileError, match="in: changed during the batch"):
        index.request(0)
    index.close()


def test_a_change_in_place_is_an_error_before_and_after_the_reading(tmp_path: Path) -> None:
    """Of the same length, and each line is a request."""
    path = Path(write_lines(tmp_path / "in", [chat("a" * 100, f"{i}") for i in range(9)]))
    state = input_state(str(path))
    index, _ = indexed(path)
    assert index.state == state
    index.request(8)
    index.require_unchanged()
    with open(path, "r+b") as file:
        file.write(path.read_bytes().replace(b"a", b"b"))
    os.utime(path, ns=(0, state[3] + 1))  # clocks of file systems are coarse
    for look in (index.require_unchanged, lambda: index.request(8)):
        with pytest.raises(FileError, match=r"in: changed during the batch: .*--restart"):
            look()
    index.close()
    with pytest.raises(FileError, match="in: changed during the batch"):
        index_input(str(path), CHAT, lambda number, error: None, state=state)


def test_an_input_that_is_replaced_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "in"
    state = input_state(write_lines(path, ["a"]))
    write_lines(tmp_path / "other", ["a"])
    os.utime(tmp_path / "other", ns=(0, state[3]))
    os.replace(tmp_path / "other", path)
    with pytest.raises(FileError, match="in: changed during the batch"):
        index_input(str(path), CHAT, lambda number, error: None, state=state)


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be"])
def test_utf_16_is_named(tmp_path: Path, coding: str) -> None:
    (tmp_path / "in").write_bytes(("\ufeff" * (coding != "utf-16") + '"a"\n').encode(coding))
    with pytest.raises(FileError, match=r"in: .*is in UTF-16 \(allowed: UTF-8\)|in.*byte 0.*is in UTF-16"):
        indexed(tmp_path / "in")


def test_a_file_of_texts_without_quotation_marks_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("What is 3 plus 4?\n\n12 times 7?\n")
    with pytest.raises(FileError, match=r'in.jsonl: has no line of JSON \(allowed: requests, or prompts as "What is'):
        indexed(path)
    path.write_text('What is 3 plus 4?\n"What is 3 plus 4?"\n')
    found, bad = indexed(path)
    with closing(found):
        assert ([*bad], found.numbers.tolist()) == ([1], [2])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path(os.devnull)):
        with pytest.raises(FileError):
            index_input(str(path), EMBEDDINGS, lambda number, error: None)


def test_prompts_that_begin_alike_come_together(tmp_path: Path) -> None:
    """Three system prompts, of which two begin alike for long, in turns; the order is a tree of prefixes."""
    long = "You are a helpful assistant. " * 30
    systems = [f"{long}Answer in English.", "Be brief.", f"{long}Answer in German."]
    lines = [chat(systems[i % 3], f"Question {i}") for i in range(30)]
    index, _ = indexed(write_lines(tmp_path / "in", lines))
    order = [int(i) % 3 for i in index.order]
    assert order == [0] * 10 + [2] * 10 + [1] * 10
    assert [int(i) for i in index.order[:10]] == [*range(0, 30, 3)]
    index.close()


def test_lines_of_a_model_come_together(tmp_path: Path) -> None:
    """So that a server of several loads each once, though all begin alike."""
    path = tmp_path / "in"
    write_lines(path, [{**chat("Be brief. " * 20, str(i)), "model": f"m{i % 3}"} for i in range(9)])
    index, _ = indexed(path)
    with closing(index):
        assert index.order.tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]


def test_what_begins_with_nothing_alike_stays_as_it_is() -> None:
    marks = np.array([prefix_marks([f"{i} is a number".encode()]) for i in range(100)], np.uint32)
    assert prefix_order(marks).tolist() == [*range(100)]
    assert prefix_order(np.zeros((0, PREFIXES), np.uint32)).tolist() == []


@pytest.mark.parametrize("seed", range(20))
def test_a_shared_prefix_is_never_left_and_come_back_to(seed: int) -> None:
    """For each length at which there is a mark, those with the same first bytes stand together."""
    rng = np.random.default_rng(seed)
    words = [b"a" * 40, b"b" * 40, b"c" * 25]
    texts = [b"".join(words[j] for j in rng.integers(3, size=rng.integers(1, 12))) for _ in range(60)]
    order = prefix_order(np.array([prefix_marks([text]) for text in texts], np.uint32))
    assert sorted(order) == [*range(60)]
    for length in (64, 96, 128, 192, 256):
        heads = [texts[i][:length] for i in order if len(texts[i]) >= length]
        runs = 1 + sum(a != b for a, b in pairwise(heads))
        assert runs == len(set(heads)) or not heads


def test_memory_is_of_numbers_not_of_lines(tmp_path: Path) -> None:
    """10,000 lines of 2 KB: 20 MB, of which 130 bytes a line stay."""
    path = write_lines(tmp_path / "in", (chat(f"{i % 5}" * 1500, f"question {i}" * 20) for i in range(10_000)))
    assert Path(path).stat().st_size > 15_000_000
    tracemalloc.start()
    index, bad = indexed(path)
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(index.order), bad) == (10_000, {})
    assert kept < 10_000 * 60 + (1 << 21)
    assert most < 10_000 * 600 + (1 << 22)
    assert {int(i) % 5 for i in index.order[:2000]} == {0}
    index.close()
