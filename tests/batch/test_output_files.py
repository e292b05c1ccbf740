"""What a batch writes: whole lines, by one process, and what an earlier run has left is gone on from."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from octavo.batch.output_files import LineFile, OutputFiles, files_of
from octavo.batch.request_line import BatchRequest, LineError
from octavo.errors import FileError, UsageError
from tests.batch.files import read_lines


def request(number: int) -> BatchRequest:
    return BatchRequest(number, f"id-{number}", "/v1/completions", {})


def begun(path: Path, *numbers: int) -> None:
    with OutputFiles(str(path), restart=False) as files:
        files.begin({"input": "a", "seed": 0})
        for number in numbers:
            files.respond(request(number), 200, f"req_{number}", b'{"n":1}')


def test_responses_and_errors_are_as_openai_has_them(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    begun(path, 2)
    with OutputFiles(str(path), restart=False) as files:
        files.begin({"input": "a", "seed": 0})
        files.respond(request(3), 400, "req_3", b'{"error":{}}')
        files.refuse(4, LineError("invalid_json", "what is wrong"))
        files.refuse(4, LineError("invalid_json", "what is wrong"))
    assert read_lines(path) == [{
        "id": "batch_req_2", "custom_id": "id-2", "error": None,
        "response": {"status_code": 200, "request_id": "req_2", "body": {"n": 1}},
    }]
    assert read_lines(tmp_path / "out.errors.jsonl") == [
        {"id": "batch_req_3", "custom_id": "id-3", "error": None, "line": 3,
         "response": {"status_code": 400, "request_id": "req_3", "body": {"error": {}}}},
        {"id": "batch_req_4", "custom_id": None, "response": None, "line": 4,
         "error": {"code": "invalid_json", "message": "what is wrong"}},
    ]


@pytest.mark.parametrize("torn", range(1, 60, 7))
def test_a_torn_line_is_cut_off(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "out.jsonl"
    begun(path, 5, 6)
    whole = path.read_bytes()
    path.write_bytes(whole[:-torn])
    with OutputFiles(str(path), restart=False) as files:
        assert files.done.tolist() == [5]
        files.begin({"input": "a", "seed": 0})
        files.respond(request(6), 200, "req_6", b'{"n":1}')
    assert path.read_bytes() == whole


@pytest.mark.parametrize("text", ["no JSON\n", "{}\n", '{"id":"batch_req_x"}\n', '{"id":"other_1"}\n', "\0" * 9 + "\n",
                                  '{"id":"batch_req_99999999999999999999999"}\n', '{"id":' + "[" * 5000 + "\n"])
def test_what_is_not_of_a_batch_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.jsonl"
    begun(path, 1)
    kept = path.read_bytes() + text.encode()
    path.write_bytes(kept)
    with pytest.raises(FileError, match=r"byte \d+: is not a line of a batch \(--restart"):
        OutputFiles(str(path), restart=False)
    assert path.read_bytes() == kept


def test_a_file_without_its_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("something\n")
    for restart in (False, True):
        with pytest.raises(FileError, match=r"out\.jsonl: was not written by octavo batch; take another name"):
            OutputFiles(str(path), restart=restart)
        assert path.read_text() == "something\n"
        assert os.listdir(tmp_path) == ["out.jsonl"]


@pytest.mark.parametrize("name", ["out.errors.jsonl", "out.jsonl.journal"])
@pytest.mark.parametrize("restart", [False, True])
def test_files_of_others_beside_the_output_are_left_alone(tmp_path: Path, name: str, restart: bool) -> None:
    (tmp_path / name).write_text("something\n")
    with pytest.raises(FileError, match=f"{name}: was not written by octavo batch"):
        OutputFiles(str(tmp_path / "out.jsonl"), restart=restart)
    assert (os.listdir(tmp_path), (tmp_path / name).read_text()) == ([name], "something\n")


def test_responses_without_their_journal_are_only_left_on_purpose(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    begun(path, 1)
    os.unlink(files_of(str(path))["journal"])
    with pytest.raises(FileError, match=r"--restart begins anew"):
        OutputFiles(str(path), restart=False)
    OutputFiles(str(path), restart=True).close()
    assert path.read_bytes() == b""


def test_a_batch_that_answers_nothing_leaves_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "out.jsonl")
    with suppress(FileError), OutputFiles(path, restart=False) as files:
        files.begin({"input": "a"})
        files.refuse(1, LineError("invalid_json", "what is wrong"))
        raise FileError("the model can't be loaded")
    assert os.listdir(tmp_path) == []
    with suppress(FileError), OutputFiles(path, restart=False) as files:
        files.begin({"input": "a"})
        files.respond(request(1), 500, "req_1", b"{}")
        raise FileError("it died")
    assert sorted(os.listdir(tmp_path)) == ["out.errors.jsonl", "out.jsonl", "out.jsonl.journal"]


def test_without_errors_there_is_no_file_of_them(tmp_path: Path) -> None:
    begun(tmp_path / "out.jsonl", 1)
    assert sorted(os.listdir(tmp_path)) == ["out.jsonl", "out.jsonl.journal"]


def test_a_file_that_another_batch_removes_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"

    def lock(fd: int) -> bool:
        path.unlink()
        return True

    monkeypatch.setattr("octavo.batch.output_files.locked_if_any", lock)
    with pytest.raises(FileError, match="another batch writes to it"):
        LineFile(str(path))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id":"batch_req_5","custom_id":"a"}\n', "the response to line 5 is there for the second time"),
        ('{"id":"batch_req_999","custom_id":"a"}\n', "the response to line 999 is of no request of the input"),
    ],
)
def test_responses_that_are_repeated_or_of_another_batch_are_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "out.jsonl"
    begun(path, 4, 5, 6)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second + line.encode() + third)
    kept = path.read_bytes()
    with OutputFiles(str(path), restart=False) as files, pytest.raises(FileError) as found:
        files.require_of(np.array([4, 5, 6, 7], np.uint64))
    assert (found.value.offset, words in str(found.value)) == (len(first + second), True)
    assert path.read_bytes() == kept
    path.write_bytes(first + second + third)
    with OutputFiles(str(path), restart=False) as files:
        files.require_of(np.array([4, 5, 6, 7], np.uint64))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', "[" * 100_000, '{"a":' * 100_000, "\xff"])
def test_a_journal_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.jsonl"
    begun(path, 1)
    Path(files_of(str(path))["journal"]).write_bytes(text.encode("latin-1"))
    with pytest.raises(FileError, match="is not the journal of a batch"):
        OutputFiles(str(path), restart=False)
    OutputFiles(str(path), restart=True).close()
    assert path.read_bytes() == b""


def test_what_has_changed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    begun(path, 1)
    with OutputFiles(str(path), restart=False) as files:
        with pytest.raises(UsageError, match=r"begun with another input: .*--restart .* deletes what .* \(1\)"):
            files.begin({"input": "b", "seed": 0})
        with pytest.raises(UsageError, match=r"begun with another seed \(0, and now it is 1\)"):
            files.begin({"input": "a", "seed": 1})
        with pytest.raises(UsageError, match=r"begun with another max tokens \(not set, and now it is 3\)"):
            files.begin({"input": "a", "seed": 0, "max tokens": 3})
        files.begin({"seed": 0, "input": "a"})
    with OutputFiles(str(path), restart=True) as files:
        files.begin({"input": "b", "seed": 0})
        assert not files.done
    assert path.read_bytes() == b""


def test_without_a_response_what_has_changed_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    begun(path)
    for seed in (1, 2):
        with OutputFiles(str(path), restart=False) as files:
            files.begin({"input": "a", "seed": seed})
            files.refuse(1, LineError("invalid_json", "what is wrong"))
    assert len(read_lines(tmp_path / "out.errors.jsonl")) == 1
    begun_again = Path(files_of(str(path))["journal"]).read_text()
    assert '"seed": 2' in begun_again


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "out.jsonl")
    with OutputFiles(path, restart=False), pytest.raises(FileError, match="another batch writes to it"):
        OutputFiles(path, restart=False)
    OutputFiles(path, restart=False).close()


def full_after(room: int) -> Callable[[int, bytes], int]:
    """os.write to a disk with room for this many bytes."""
    real, left = os.write, room

    def write(fd: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        n = real(fd, data[: min(left, 10)])
        left -= n
        return n

    return write


@pytest.mark.parametrize("room", [0, 1, 25, 80])
def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    file = LineFile(str(tmp_path / "out.jsonl"))
    monkeypatch.setattr(os, "write", full_after(room))
    said = rf"out\.jsonl: can't be written: {os.strerror(errno.ENOSPC)}; the same command"
    with pytest.raises(FileError, match=said):
        [file.write(b'{"id":"batch_req_%d"}' % number) for number in range(1, 9)]
    monkeypatch.undo()
    assert [*file.numbers()] == [*range(1, room // 21 + 1)]
    assert file.size == room // 21 * 21
    file.close()
