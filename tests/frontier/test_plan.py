"""What is said before anything is run, and what is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.errors import FileError, OctavoError, UsageError
from octavo.formats import by_name
from octavo.frontier.plan import Options, Subject, file_name, plan, require_folder, rounded, targets
from octavo.quantizers import Target, quantize_file
from tests.runtime import tiny


def test_sizes() -> None:
    assert targets("2.5, 3,700MB") == [Target(2.5), Target(3.0), Target(file_size=700_000_000)]
    assert [file_name("a/m-F16.gguf", t) for t in targets("3,7kB")] == ["m-3bpw.gguf", "m-7kB.gguf"]


@pytest.mark.parametrize(("sizes", "message"), [
    ("", "--sizes is ''"), ("3,3.0", "3.0 twice"), ("x", "size 'x'"), ("0", "0 bits a weight"), ("-3", "size '-3'"),
    ("nan", "size 'nan'"), ("99", "99 bits a weight"), ("0kB", "a file of 0 bytes"), ("1e9", "size '1e9'"),
    ("3,3.000000001", "twice"), ("9" * 400 + "KB", "size '9999"), ("9" * 400, "inf bits"),
])
def test_sizes_that_are_none(sizes: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        targets(sizes)


def test_sizes_that_differ_by_little() -> None:
    assert len({file_name("m.gguf", t) for t in targets("3,3.0001,4.2GiB,4200MB,4200000001B")}) == 5


def test_a_plan(source: str, options: Options, tmp_path: Path) -> None:
    with Subject(source, options) as subject:
        made = plan(subject, str(tmp_path / "out"), targets("3,5"), options)
        values = sum(t.size for t in subject.source.tensors)
        for_cpu = subject.offered("cpu", targets("3"))
        for_any = subject.offered("any", targets("3.3"))
    assert [f.budget for f in made.files] == [int(bits * values / 8) for bits in (3, 5)]
    assert made.disk > sum(f.budget for f in made.files)
    assert made.seconds is None  # the reference backend is not for runs
    assert made.groups == len(for_any)
    assert not any(f.codebook for kinds in for_cpu.values() for f in kinds)
    assert by_name("IQ3_S") in for_any["blk.0.attn_q.weight"]
    assert by_name("IQ1_S") not in for_any["blk.0.attn_q.weight"]  # of fewer bits than half
    assert [rounded(s) for s in (0.2, 59, 600, 9000)] == ["1 s", "59 s", "10 min", "3 h"]


def test_time_on_a_cpu(source: str, options: Options, tmp_path: Path) -> None:
    with Subject(source, options) as subject:
        found = [plan(subject, str(tmp_path / "out"), targets("5"), replace(options, device="cpu", rounds=r)).seconds
                 for r in (0, 8)]
    assert all(f is not None and f > 0 for f in found)


def test_what_is_refused(
    source: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Subject(source, options) as subject:
        with pytest.raises(UsageError, match=r"its smallest types take \d\.\d\d bits per weight"):
            plan(subject, str(tmp_path / "out"), targets("1.1"), options)
        with pytest.raises(UsageError, match="--for any"):
            plan(subject, str(tmp_path / "out"), targets("2.2"), replace(options, made_for="cpu"))
        for more in ("4GiB", "32"):  # of what the model has already
            with pytest.raises(UsageError, match=rf"--sizes has {more}.*, but the model is .* \(allowed: less"):
                plan(subject, str(tmp_path / "out"), targets(f"5,{more}"), options)
        with monkeypatch.context() as full:
            full.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
            with pytest.raises(FileError, match="disk"):
                plan(subject, str(tmp_path / "out"), targets("5"), options)
    quantize_file(source, tmp_path / "q.gguf", "Q8_0")
    with Subject(str(tmp_path / "q.gguf"), options) as subject, pytest.raises(UsageError) as refused:
        plan(subject, str(tmp_path / "out"), targets("5"), options)
    assert "is Q8_0: a frontier is made of a model of floats" in str(refused.value)
    assert "requantize" not in str(refused.value)


def test_sizes_of_odd_rows(options: Options, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd = str(tiny.write(tmp_path / "odd.gguf"))  # rows of 48, 64 and 264
    with Subject(odd, options) as subject:
        with pytest.raises(UsageError, match=r"rows of 48, 64, 264 values are not whole blocks of 256, which"):
            plan(subject, str(tmp_path / "out"), targets("2.5,20"), options)
        made = plan(subject, str(tmp_path / "out"), targets("2.5,20"), options, leave_out=True)
    assert [f.name for f in made.files] == ["odd-20bpw.gguf"]
    assert "2.5 bits per weight can't be" in caplog.text
    assert "left out" in caplog.text


@pytest.mark.parametrize(("change", "message"), [
    ({"calibration": "none.txt"}, "can't be opened"), ({"text": "none.txt"}, "can't be opened"),
    ({"samples": 0}, "0 samples"), ({"probes": 0}, "0 probes"), ({"rounds": -1}, "-1 rounds"),
    ({"groups": 0}, "0 groups"), ({"context": 1}, "n_ctx is 1"), ({"context": 1 << 20}, "less than one sample"),
    ({"chunks": 0}, "0 windows of it are to be read"), ({"context": 399}, "has 344 tokens"),
])
def test_options_that_are_refused(source: str, options: Options, change: dict[str, object], message: str) -> None:
    with pytest.raises(OctavoError, match=message):
        Subject(source, replace(options, **change))  # type: ignore[arg-type]


def test_folders(tmp_path: Path) -> None:
    require_folder(str(tmp_path / "new"))
    (tmp_path / "file").touch()
    for name, message in (("", "has no name"), ("file", "is a file"), (".", "has files in it"), ("a/b", "there is no")):
        with pytest.raises(FileError, match=message):
            require_folder(str(tmp_path / name) if name else "")
    (tmp_path / "work").mkdir()
    with pytest.raises(FileError, match="has files in it"):  # a folder of somebody's work
        require_folder(str(tmp_path))
    (tmp_path / "file").unlink()
    require_folder(str(tmp_path))  # as a run leaves that was killed at once
    run = tmp_path / "work" / "run.json"
    for text in ("", "{", "[]", '{"frontier": 3}', '{"run": "x"}'):
        run.write_text(text)
        with pytest.raises(FileError, match="does not say what a frontier is of"):
            require_folder(str(tmp_path))
    run.unlink()
    os.mkfifo(run)
    with pytest.raises(FileError, match="not a regular file"):
        require_folder(str(tmp_path))
    run.unlink()
    run.write_text('{"frontier": {"run": "x"}}')
    require_folder(str(tmp_path))
