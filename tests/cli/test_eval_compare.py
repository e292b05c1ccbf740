"""`octavo eval compare`: its table, its JSON, its picture, the page of a report, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Run

SMALL = ("-c", "64", "--chunks", "3", "--device", "reference")


def test_table_json_picture_and_report(octavo: Run, models: tuple[str, str], text: str, tmp_path: Path) -> None:
    base, near = models
    out, plot, page = (str(tmp_path / name) for name in ("found.json", "found.svg", "page.html"))
    done = octavo("eval", "compare", base, near, base, "--text", text, *SMALL, "--calibration", text, "-o", out,
                  "--plot", plot)
    assert done.status == 0
    assert "93 positions, the second half of 3 windows of 64; intervals of 95% by 3 clusters" in done.out
    lines = done.out.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("rank"))
    assert lines[heading].split() == ["rank", "file", "size", "bits", "head", "KL", "95%", "median", "p99", "p99.9",
                                      "same", "top", "95%", "ppl", "/", "base", "95%", "noise", "worth"]
    assert [line.split()[1] for line in lines[heading + 1 : heading + 3]] == [Path(base).name, Path(near).name]
    assert "overlap: 100.00%" in done.out
    assert "noise: " in done.out
    found = json.loads(Path(out).read_text())
    assert [f["kl"]["value"] > 0 for f in found["files"]] == [False, True]
    assert found["files"][1]["kl"]["low"] < found["files"][1]["kl"]["value"] < found["files"][1]["kl"]["high"]
    assert len(found["text_sha256"]) == 64
    names = "".join(ElementTree.parse(plot).getroot().itertext())
    assert all(Path(name).stem in names for name in models)
    assert octavo("report", near, "-o", page, "--judged", out).status == 0
    assert "Files judged" in Path(page).read_text()
    assert f"{found['files'][1]['kl']['value']:.3g}" in Path(page).read_text()


def test_json(octavo: Run, models: tuple[str, str], text: str) -> None:
    done = octavo("eval", "compare", *models, "--text", text, *SMALL, "--all-positions", "--exact", "--json")
    found = json.loads(done.out)
    assert (found["every"], found["exact"], found["positions"]) == (True, True, 189)


def test_the_text_that_is_shipped(octavo: Run, models: tuple[str, str]) -> None:
    done = octavo("eval", "compare", *models, *SMALL)
    assert "text judge.jsonl, sha256 " in done.out


@pytest.mark.parametrize(("arguments", "message"), [
    (("--plot", "found.txt"), "--plot is found.txt (allowed: a name that ends in .svg, .png, .pdf)"),
    (("--text", "none.txt"), "none.txt: can't be opened"),
    (("-c", "1"), "-c is 1 (allowed: 4 or more)"),
    (("--calibration", "none.txt"), "none.txt: can't be opened"),
])
def test_what_is_refused(octavo: Run, models: tuple[str, str], arguments: tuple[str, ...], message: str) -> None:
    assert message in octavo("eval", "compare", *models, "--device", "reference", *arguments).error()


def test_results_are_not_written_over_a_model(octavo: Run, models: tuple[str, str]) -> None:
    before = Path(models[1]).read_bytes()
    done = octavo("eval", "compare", *models, "-o", models[1])
    assert "the model that is read; write to another file" in done.error()
    assert Path(models[1]).read_bytes() == before


def test_a_picture_needs_matplotlib(octavo: Run, models: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "matplotlib" in octavo("eval", "compare", *models, "--plot", "found.svg").error()


@pytest.mark.parametrize("content", ["{}", "[1]", "nothing", '{"base": 5}'])
def test_other_files_are_refused(octavo: Run, models: tuple[str, str], tmp_path: Path, content: str) -> None:
    (tmp_path / "found.json").write_text(content)
    done = octavo("report", models[0], "-o", str(tmp_path / "page.html"), "--judged", str(tmp_path / "found.json"))
    assert "is not a result of `octavo eval compare -o`" in done.error()
