"""`octavo calibrate`: a file from a model and a text, what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from octavo.io.gguf import GGUFFile
from octavo.quantizers.statistics.statistics_file import Statistics
from tests.cli.conftest import Run
from tests.runtime import tiny

OPTIONS = ("--device", "reference", "-c", "32", "--samples", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.write(tmp_path_factory.mktemp("calibrate") / "moe.gguf", "qwen3moe", weights=tiny.tensors("qwen3moe"))


def test_makes_a_file_and_prints_a_table(octavo: Run, model: str, text: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s.safetensors")
    done = octavo("calibrate", model, text, "-o", path, *OPTIONS)
    assert done.status == 0
    announced, headings, *rows, last = done.out.splitlines()
    assert announced == "2 samples, 64 tokens"
    assert headings.split()[:2] == ["input", "read"]
    assert len(rows) == 2 * 5 + 1 + 4
    assert last == f"{path}: 11 inputs, 4 caches"
    first = next(row for row in rows if row.startswith("blk.0.attn_q.weight"))
    found = Statistics.load(path).of("blk.0.attn_k.weight")
    assert first.split()[1:5] == ["3", "64", str(tiny.N_EMBD), f"{found.absmax.max():.4g}"]
    assert "experts with fewer tokens than channels: blk.0.ffn_gate_exps.weight expert 0" in done.err
    assert re.search(r"and \d+ more; a longer text helps", done.err)


def test_prints_json(octavo: Run, model: str, text: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s.safetensors")
    done = octavo("calibrate", model, text, "-o", path, "--json", *OPTIONS)
    (found,) = [json.loads(line) for line in [done.out]]
    assert found["file"] == path
    assert found["inputs"][0]["weights"] == [f"blk.0.attn_{n}.weight" for n in "qkv"]
    assert {row["name"] for row in found["caches"]} == {f"blk.{i}.cache_{kind}" for i in range(2) for kind in "kv"}
    assert found["starved"][0]["tokens"] < tiny.N_EMBD


def test_a_dry_run_writes_nothing(octavo: Run, model: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    done = octavo("calibrate", model, text, "-o", str(path), "--dry-run", "--json", *OPTIONS)
    assert json.loads(done.out) == {"samples": 2, "tokens": 64, "disk": 0}
    assert not list(tmp_path.glob("s.*"))


def test_the_model_again_with_scales_for_its_cache(octavo: Run, model: str, text: str, tmp_path: Path) -> None:
    out = tmp_path / "scaled.gguf"
    options = ("-o", str(tmp_path / "s.safetensors"), "--cache-scales", str(out), *OPTIONS)
    assert octavo("calibrate", model, text, *options).status == 0
    with GGUFFile.open(out) as file, GGUFFile.open(model) as plain:
        names = {name.removeprefix("blk.0.") for name in file.tensors.keys() - plain.tensors.keys()}
    assert {"cache_k.max", "cache_v.max", "cache_k.clip", "cache_v.clip"} <= names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text.txt",), "-o FILE is missing"),
        (("none.txt", "-o", "s"), "none.txt: can't be opened"),
        (("short.txt", "-o", "s"), "the text has 3 tokens, less than one sample of 32"),
        (("text.txt", "-o", "s", "--samples", "0"), "samples is 0"),
        (("text.txt", "-o", "s", "-c", "4096"), "-c is 4096; .*made for"),
        (("text.txt", "-o", "nowhere/s"), "there is no folder"),
        (("text.txt", "-o", "."), "is a folder"),
    ],
)
def test_bad_input(
    octavo: Run, model: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("abc")
    assert re.search(message, octavo("calibrate", model, *OPTIONS, *arguments).error())
    assert not Path("s").exists()
