"""Files of several sizes, also by a run that is stopped at each of its steps."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import FileError, UsageError
from octavo.frontier.page import rate, write_page
from octavo.frontier.plan import Method, Options, Subject, plan, targets
from octavo.frontier.run import Frontier, make_frontier, require_same
from octavo.io.gguf import GGUFFile
from octavo.quantizers.job.quantization_record import read_record
from tests.runtime import tiny


class Stopped(BaseException):
    """As a signal ends a run."""


def make(source: str, folder: Path, options: Options, sizes: str = "3.2,5", **how: Any) -> Frontier:
    with Subject(source, options) as subject:
        planned = plan(subject, str(folder), targets(sizes), options)
        return make_frontier(subject, str(folder), planned, options, **how)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.gguf")}


@pytest.mark.slow
def test_files_of_two_sizes(source: str, options: Options, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = replace(options, method="gptq")
    made = make(source, out, options)
    assert [f.name for f in made.files] == ["src-3.2bpw.gguf", "src-5bpw.gguf"]
    for each, bits in zip(made.files, (3.2, 5.0), strict=True):
        with GGUFFile.open(out / each.name) as file:
            assert each.nbytes == file.nbytes
            assert 0.85 * bits < each.bits == 8 * file.nbytes / sum(t.size for t in file.tensors.values()) <= bits
            record = read_record(file)
        assert record is not None
        assert record.about.text == "text.txt"
    small, large = made.files
    assert small.expected > large.expected > 0
    verdicts = {v.name: v.kl.value for v in made.judgement.files}
    assert verdicts[small.name] > verdicts[large.name] > 0
    assert made.judgement.text == "judged.txt"
    assert made.judgement.overlap == 0
    write_page(made, str(out))
    page = (out / "frontier.html").read_text()
    assert page.count("src-5bpw.gguf") >= 3
    assert f"{verdicts[small.name]:.3g}" in page
    assert "3.2 bpw" in page
    assert "octavo eval compare MODEL DIR/*.gguf PRESET.gguf" in page
    found = json.loads((out / "frontier.json").read_text())
    assert [f["bits"] for f in found["files"]] == [small.bits, large.bits]
    assert (out / "frontier.svg").read_text().startswith("<?xml")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["encoder", "gptq"])
def test_a_run_that_is_stopped_goes_on_to_the_same_files(
    source: str, options: Options, tmp_path: Path, method: Method
) -> None:
    options = replace(options, method=method)
    whole, steps = tmp_path / "whole", list[str]()
    make(source, whole, options, progress=lambda what, done, total: steps.append(what))
    stopped, seen, runs = tmp_path / "stopped", list[str](), 0

    def stop(what: str, done: int, total: int) -> None:
        seen.append(what)
        if len(seen) > 37 * runs:  # a run reads the model anew up to where it goes on
            raise Stopped

    while seen[-1:] != ["done"]:
        seen.clear()
        runs += 1
        with suppress(Stopped):
            make(source, stopped, options, progress=stop)
            seen.append("done")
    assert 2 < runs <= len(steps) / 37 + 1
    assert files(stopped) == files(whole)
    seen.clear()
    again = make(source, stopped, options, progress=stop)
    assert not seen  # all was kept
    assert again.files == make(source, whole, options).files


@pytest.mark.slow
def test_another_size_later_uses_what_is_there(source: str, options: Options, tmp_path: Path) -> None:
    one, steps, options = tmp_path / "one", list[str](), replace(options, rounds=0)
    make(source, one, options, "5")
    made = make(source, one, options, "3.2,5", progress=lambda what, done, total: steps.append(what))
    assert {f.name for f in made.files} == {"src-3.2bpw.gguf", "src-5bpw.gguf"}
    assert "costs of errors" not in steps
    assert not [step for step in steps if step.startswith("src-5bpw")]


def test_speeds_have_three_digits_or_a_range() -> None:
    shown = [rate(None, None), rate(2667.6, (2660.0, 2690.0)), rate(0.1234, None), rate(2667.6, (1899.9, 28999.0))]
    assert shown == ["", "2,670", "0.123", "1,900 to 29,000"]


def test_a_folder_of_another_run(source: str, options: Options, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(source, out, replace(options, rounds=0), "5")
    other = replace(options, rounds=0, samples=3)
    with pytest.raises(UsageError, match=r"out is of --samples 4 \(allowed: another folder, or --restart\)"):
        make(source, out, other, "5")
    with Subject(source, other) as subject, pytest.raises(UsageError, match="is of --samples 4"):
        require_same(subject, str(out), other)
    (out / "work" / "thesis.json").write_text("mine")
    make(source, out, other, "5", restart=True)
    assert (out / "work" / "thesis.json").read_text() == "mine"
    model = tiny.write(tmp_path / "other-f16.gguf", keys={"general.name": "other"})
    with Subject(str(model), other) as subject, pytest.raises(UsageError, match=r"out is of another model \(allowed"):
        require_same(subject, str(out), other)


def test_files_of_others_stay(source: str, options: Options, tmp_path: Path) -> None:
    out = tmp_path / "home"
    (out / "work").mkdir(parents=True)
    mine = [out / "notes.txt", *(out / "work" / name for name in ("thesis.json", "data.jsonl", "model.gguf"))]
    for path in mine:
        path.write_text("mine")
    for restart in (False, True):
        with pytest.raises(FileError, match="has files in it, and none of a frontier"):
            make(source, out, options, "5", restart=restart)
    assert [path.read_text() for path in mine] == ["mine"] * 4


@pytest.mark.slow
def test_damage_is_mended(source: str, options: Options, tmp_path: Path) -> None:
    out, options = tmp_path / "out", replace(options, rounds=0)
    make(source, out, options, "5")
    whole, seen = files(out), list[str]()
    path, matrix = out / "src-5bpw.gguf", out / "work" / "imatrix.gguf"
    raw = whole[path.name]
    path.write_bytes(raw[:-100] + bytes(100))  # of the same size
    importance = matrix.read_bytes()
    matrix.write_bytes(b"GGUF")
    make(source, out, options, "5", progress=lambda what, done, total: seen.append(what))
    assert files(out) == whole
    assert matrix.read_bytes() == importance
    assert "importance" in seen
    assert "costs of errors" not in seen
    seen.clear()
    make(source, out, options, "5", progress=lambda what, done, total: seen.append(what))
    assert not seen
