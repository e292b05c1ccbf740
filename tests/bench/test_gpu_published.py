"""The benchmark of published formats: models that are made, cases, resuming, and the tables of a result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import octavo
from octavo.bench.synthetic import SHAPES, ModelShape
from octavo.bench.synthetic_folder import make_folder
from octavo.errors import FileError, UsageError
from octavo.huggingface.writers import WRITERS
from tests.bench.conftest import ROOT
from tests.cli.conftest import Run
from tests.sampling import slow

SCRIPT = ROOT / "bench" / "gpu_published.py"
EACH = [("compressed-tensors", "BF16"), *((layout, scheme) for layout, w in WRITERS.items() for scheme in w.rows)]
QUICK = {("compressed-tensors", "BF16"), ("gptq", "w4a16-g32"), ("awq", "w4a16-g128"), ("qqq", "w4a8-g128")}


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shapes called dense and experts."""
    dense = ModelShape("llama", 2, 256, 256, 4, 2, 64, 300, False)
    keys = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 128}
    monkeypatch.setitem(SHAPES, "dense", dense)
    monkeypatch.setitem(SHAPES, "experts", replace(dense, arch="qwen3moe", keys=keys))


@pytest.mark.parametrize(("layout", "scheme"), [one if one in QUICK else slow(one) for one in EACH])
def test_a_folder_in_a_scheme_runs(tmp_path: Path, shapes: None, layout: str, scheme: str) -> None:
    for shape in ("dense", "experts"):
        make_folder(shape, scheme, tmp_path / shape, layout=layout)
        with octavo.load(tmp_path / shape, device="reference") as model:
            kinds = {info.type_name for info in model.file.tensors.values()}
            assert ("BF16" in kinds)
            assert (len(kinds - {"BF16", "F32"}) > 0) == (scheme != "BF16")
            assert 0.3 < model.engine.logits([1, 2, 3]).std() < 3.0


def test_layers_have_the_same_bytes_and_rows_repeat(tmp_path: Path, shapes: None) -> None:
    seen: list[tuple[int, int]] = []
    make_folder("dense", "int8-w8a8", tmp_path / "a", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    with octavo.load(tmp_path / "a", device="reference") as model:
        first, other = (model.file.tensor(f"blk.{i}.ffn_up.weight").data for i in range(2))
        assert (first == other).all()
        assert (first[:64] == first[64:128]).all()
        assert (first[0] != first[1]).any()


def test_static_scales(tmp_path: Path, shapes: None) -> None:
    make_folder("dense", "fp8", tmp_path / "a", static=True)
    with octavo.load(tmp_path / "a", device="reference") as model:
        assert "blk.0.ffn_down.input_scale" in model.file.tensors
    with pytest.raises(UsageError, match="static activations of experts in fp8"):
        make_folder("experts", "fp8", tmp_path / "b", static=True)


def test_make_folder_refuses(tmp_path: Path, shapes: None) -> None:
    with pytest.raises(UsageError, match=r"unknown scheme 'w3a3' \(allowed: BF16, F16, int8-w8a8"):
        make_folder("dense", "w3a3", tmp_path / "a")
    with pytest.raises(UsageError, match="layout qqq does not hold fp8"):
        make_folder("dense", "fp8", tmp_path / "a", layout="qqq")
    with pytest.raises(UsageError, match="layout qqq does not hold BF16, which needs none"):
        make_folder("dense", "bf16", tmp_path / "a", layout="qqq")
    with pytest.raises(FileError, match="has files in it"):
        make_folder("dense", "fp8", tmp_path.parent)
    assert not list(tmp_path.iterdir())


def test_the_command_makes_folders(octavo: Run, tmp_path: Path, shapes: None) -> None:
    made = octavo("bench", "make", "dense", "w4a16-g64", str(tmp_path / "a"), "--layout", "awq")
    assert made.out.startswith(f"{tmp_path / 'a'}: dense with random weights, W4A16-G64, ")
    assert json.loads((tmp_path / "a" / "config.json").read_text())["quantization_config"]["quant_method"] == "awq"
    assert octavo("bench", "make", "dense", "bf16", str(tmp_path / "b")).status == 0
    assert "quantization_config" not in json.loads((tmp_path / "b" / "config.json").read_text())
    refused = octavo("bench", "make", "dense", "Q8_0", str(tmp_path / "c.gguf"), "--layout", "awq").error()
    assert "--layout awq with Q8_0, which is written as a GGUF file" in refused


@pytest.fixture
def published(script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = script("gpu_published")
    for name in ("llama3-8b", "gpt-oss-20b", "qwen3-30b-a3b"):
        monkeypatch.setitem(SHAPES, name, script("published_models").tiny(SHAPES[name]))
    monkeypatch.setitem(script("engine").WORKLOADS, "a", module.DRY.workload)
    return module


CASES = {
    "decode": ["decode 1", "decode 2"], "decode-256": ["decode 3"], "decode-512": ["decode 4"], "prompt": ["prompt 24"],
    "start": ["start"], "depth": ["prompt 40", "decode 1 @40", "decode 8 @40"],
    "cache": ["decode 1", "decode 2", "decode 3"],
}


@pytest.mark.few(3)
@pytest.mark.parametrize("part", CASES)
def test_every_part_has_cases(published: ModuleType, tmp_path: Path, part: str) -> None:
    path = published.MODELS["8b-bf16"].path(tmp_path, "8b-bf16")
    published.MODELS["8b-bf16"].make(path, "llama3-8b")
    measured = published.Measured("8b-bf16", path, part, "reference", published.DRY, 0.0)
    found = [case["test"] for case in measured.cases(set())]
    assert found == CASES[part]
    assert part in ("prompt", "start") or not list(measured.cases(set(found)))


def test_a_first_part_whose_process_ends_without_a_word(
    published: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is killed for its memory: it counts as failed, and the next one is tried."""
    asked = Namespace(folder=tmp_path, models=["8b-bf16"], parts=["prompt", "start"], budget=1e6, dry=True,
                      again=False, delete=False, output=tmp_path, commit="none")
    published.MODELS["8b-bf16"].path(tmp_path, "8b-bf16").mkdir()
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    run = published.Run(asked)
    monkeypatch.setattr(published.sys, "executable", shutil.which("false"))
    run.all()
    assert [(case["part"], case["test"]) for case in run.cases] == [
        ("prompt", "prompt"), ("prompt", "done"), ("start", "start"), ("start", "done"),
    ]
    assert run.cases[0]["failed"] == "ended with status 1"


def test_the_parts(published: ModuleType) -> None:
    assert set(CASES) == set(published.PARTS)


def test_aims_and_limits(published: ModuleType) -> None:
    model = published.MODELS["8b-w4a8-g128"]
    assert model.aims == {"decode 1": 700, "decode 8": 4400, "decode 32": 12000, "decode 128": 20000,
                          "decode 256": 22000, "prompt 2048": 60000}
    bound = published.Bound(reading=0.001, multiplying=0.002)
    assert published._case("decode 8", 2200.0, 8, bound, model.aims) == {
        "test": "decode 8", "rate": 2200.0, "aim": 4400, "of_aim": 0.5, "limit": 0.55, "bound": "multiplying",
    }
    assert published._case("decode 9", 2200.0, 8, published.Bound(), model.aims) == {"test": "decode 9", "rate": 2200.0}


def test_markdown(published: ModuleType) -> None:
    cases: list[dict[str, Any]] = [
        {"model": "a", "part": "decode", "test": "decode 1", "rate": 250.4, "limit": 0.81, "bound": "reading",
         "aim": 270, "of_aim": 0.927},
        {"model": "a", "part": "prompt", "test": "prompt 2048", "rate": 44100.0, "aim": 44000, "of_aim": 1.002},
        {"model": "a", "part": "start", "test": "start", "answers": 3.96, "ready": 9.5, "reserved_mib": 812},
        {"model": "a", "part": "depth", "test": "decode 1 @32768", "rate": 200.0, "limit": 0.7},
        {"model": "b", "part": "decode", "test": "decode", "failed": "BackendError: out of memory"},
    ]
    assert published.published_table.markdown({"cases": cases}) == """\
| model | 1 | prompt 2048 |
|---|---:|---:|
| a | 250 (81%, 0.93 of the aim) | 44,100 |
| b |  |  |

| model | decode 1 @32768 |
|---|---:|
| a | 200 (70%) |

| model | answers after, s | ready after, s | captured, MiB |
|---|---:|---:|---:|
| a | 4.0 | 9.5 | 812 |

- b, decode: BackendError: out of memory"""


def _run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), str(folder / "models"), "--dry", "--commit", "x", "-o", str(folder)]
    env = os.environ | {"TRITON_INTERPRET": "0"}  # on the CPU
    return subprocess.run([*command, *arguments], env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    asked = ("--models", "8b-w4a8", "30b-a3b-q4_k_m", "--parts", "decode", "prompt")
    assert "--budget is over before decode of 8b-w4a8" in _run(tmp_path, *asked, "--budget", "0")
    first = _run(tmp_path, *asked[:2], *asked[3:])
    assert first.count("'test': 'decode ") == 2
    assert (tmp_path / "models" / "8b-w4a8").is_dir()
    second = _run(tmp_path, *asked, "--delete")
    assert "8b-w4a8'" not in second
    assert second.count("'test': ") == 3
    assert not list((tmp_path / "models").iterdir())
    (result,) = tmp_path.glob("gpu-published-cpu-*.json")
    cases = json.loads(result.read_text())["cases"]
    assert [(c["model"], c["test"]) for c in cases] == [
        (model, test) for model in asked[1:3] for test in ("decode 1", "decode 2", "prompt 24")
    ]
    assert all(0 < case["limit"] < 1 and case["fallbacks"] == [] for case in cases if "steps" in case)


@pytest.mark.slow
def test_a_part_that_fails_is_kept_and_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "models" / "8b-q8_0.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF")
    asked = ("--models", "8b-q8_0", "--parts", "prompt")
    assert "'failed': 'GGUFError: " in _run(tmp_path, *asked)
    path.unlink()
    assert "'test'" not in _run(tmp_path, *asked)
    assert "'test': 'prompt 24'" in _run(tmp_path, *asked, "--again")
