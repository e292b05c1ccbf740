"""`octavo eval compare`: its table, its JSON, its picture, the page of a report, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Run

SMALL = ("-c", "64", "--chunks", "5", "--device", "reference")
FEW = (*SMALL[:3], "1", *SMALL[4:])


def test_table_json_picture_and_report(octavo: Run, models: tuple[str, str], text: str, tmp_path: Path) -> None:
    base, near = models
    out, plot, page = (str(tmp_path / name) for name in ("found.json", "found.svg", "page.html"))
    done = octavo("eval", "compare", base, near, base, "--text", text, *SMALL, "--calibration", text, "-o", out,
                  "--plot", plot)
    assert done.status == 0
    assert "155 positions, the second half of 5 windows of 64; intervals of 95% by 5 clusters" in done.out
    lines = done.out.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("rank"))
    assert lines[heading].split() == ["rank", "file", "body", "bits", "KL", "[95%]", "p99", "same", "top", "[95%]",
                                      "ppl", "/", "base", "[95%]", "noise"]
    assert [line.split()[1] for line in lines[heading + 1 : heading + 3]] == [Path(base).name, Path(near).name]
    assert "worth" not in done.out
    assert f"{Path(near).name}  " in lines[heading + 2]
    assert lines[heading + 2].count("[") == 3
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
    assert (found["every"], found["exact"], found["positions"]) == (True, True, 315)


def test_the_text_that_is_shipped(octavo: Run, models: tuple[str, str]) -> None:
    done = octavo("eval", "compare", *models, *SMALL)
    assert "text judge.jsonl, sha256 " in done.out


@pytest.mark.parametrize(("arguments", "message"), [
    (("--plot", "found.txt"), "--plot is found.txt (allowed: a name that ends in .svg, .png, .pdf)"),
    (("--text", "none.txt"), "none.txt: can't be opened"),
    (("none.gguf",), "none.gguf: can't be opened: No such file or directory"),
    (("-o", "same.svg", "--plot", "same.svg"), "same.svg is what -o writes; write to another file"),
    (("-c", "1"), "-c is 1 (allowed: 4 or more)"),
    (("--calibration", "none.txt"), "none.txt: can't be opened"),
])
def test_what_is_refused(octavo: Run, models: tuple[str, str], arguments: tuple[str, ...], message: str) -> None:
    assert message in octavo("eval", "compare", *models, "--device", "reference", *arguments).error()


def test_few_clusters_have_no_intervals(octavo: Run, models: tuple[str, str], text: str, tmp_path: Path) -> None:
    out, page = str(tmp_path / "found.json"), str(tmp_path / "page.html")
    done = octavo("eval", "compare", *models, "--text", text, *FEW, "-o", out, "--plot", str(tmp_path / "found.svg"))
    assert "no intervals by 1 cluster: they need 5 (more --chunks, or a text with more documents)" in done.out
    assert "nan" not in done.out
    assert "[" not in done.out
    assert octavo("report", models[1], "-o", page, "--judged", out).status == 0
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", Path(page).read_text())
    assert f"{found_kl(out):.3g}" in cells
    assert not any("nan" in cell for cell in cells)


def found_kl(path: str) -> float:
    value: float = json.loads(Path(path).read_text())["files"][0]["kl"]["value"]
    return value


def test_a_file_that_is_broken_is_told_first_and_by_the_status(
    octavo: Run, models: tuple[str, str], text: str, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(models[1]).read_bytes()[:3000])
    done = octavo("eval", "compare", *models, str(broken), "--text", text, *SMALL)
    assert done.status == 1
    assert done.out.startswith("broken.gguf could not be judged: ")
    assert Path(models[1]).name in done.out
    done = octavo("eval", "compare", *models, str(broken), "--text", text, *SMALL, "--json")
    assert done.status == 1
    assert list(json.loads(done.out)["failed"]) == ["broken.gguf"]


def test_the_demo_model_is_judged_on_its_questions(octavo: Run, models: tuple[str, str], text: str) -> None:
    done = octavo("eval", "compare", "demo", "demo", "-c", "256", "--chunks", "2", "--device", "reference")
    assert "text demo, test, 1000 questions, seed 0: " in done.out
    assert "warning" not in done.out
    told = octavo("eval", "compare", "demo", "demo", "--text", "demo", *FEW, "--json")
    assert json.loads(told.out)["text"] == "demo, test, 1000 questions, seed 0"
    assert "text demo, test" in octavo("eval", "compare", *models, "--text", "demo", *FEW).out


def test_a_base_that_does_not_know_the_text_is_told(octavo: Run) -> None:
    done = octavo("eval", "compare", "demo", "demo", "--text", "octavo", *FEW)
    assert done.out.startswith("warning: the base does not know this text (perplexity ")
    assert "give a text of its own with --text FILE" in done.out


def test_figures_that_can_not_be_are_refused(
    octavo: Run, models: tuple[str, str], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    assert octavo("eval", "compare", *models, "--text", text, *SMALL, "-o", str(path)).status == 0
    found = json.loads(path.read_text())
    judged = found["files"][0]
    for kl, body, noise in (
        ({"value": 1e308, "low": -5}, 9, 0), ({"high": 1e308}, 9, 0), ({"value": 1.0, "low": 2.0, "high": 3.0}, 9, 0),
        ({}, -1, 0), ({}, 10**400, 0), ({}, 9, 1e308),
    ):
        changed = {**judged, "kl": judged["kl"] | kl, "sizes": judged["sizes"] | {"body": body}, "noise": noise}
        path.write_text(json.dumps({**found, "files": [changed]}))
        done = octavo("report", models[0], "-o", str(tmp_path / "page.html"), "--judged", str(path))
        assert "files.0: is not a result of `octavo eval compare -o`" in done.error()


@pytest.mark.skipif(os.name != "posix", reason="pipes with names are POSIX")
def test_a_pipe_as_the_base_is_not_waited_for(octavo: Run, models: tuple[str, str], tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    error = octavo("eval", "compare", pipe, models[1]).error()
    assert f"error: {pipe}: not a regular file" in error


def test_results_are_not_written_over_a_model(octavo: Run, models: tuple[str, str]) -> None:
    before = Path(models[1]).read_bytes()
    done = octavo("eval", "compare", *models, "-o", models[1])
    assert "the model that is read; write to another file" in done.error()
    assert Path(models[1]).read_bytes() == before


def test_a_picture_needs_matplotlib(
    octavo: Run, models: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "matplotlib" in octavo("eval", "compare", *models, "--plot", str(tmp_path / "found.svg")).error()


@pytest.mark.parametrize("content", ["{}", "[1]", "nothing", '{"base": 5}'])
def test_other_files_are_refused(octavo: Run, models: tuple[str, str], tmp_path: Path, content: str) -> None:
    (tmp_path / "found.json").write_text(content)
    done = octavo("report", models[0], "-o", str(tmp_path / "page.html"), "--judged", str(tmp_path / "found.json"))
    assert "is not a result of `octavo eval compare -o`" in done.error()
