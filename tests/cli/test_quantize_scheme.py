"""`octavo quantize --scheme`: a folder that `run`, `inspect` and `eval` take, and options that don't go with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import octavo
from octavo.huggingface import SCHEMES
from octavo.quantizers.job.quantization_record import FILE
from tests.cli.conftest import Run
from tests.runtime import tiny
from tests.sampling import some

QUESTIONS = ("What is 12 times 7?", "Convert 3 miles to km", "What is 15% of 240?")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint
    from octavo.runtime import resolve

    made = tmp_path_factory.mktemp("schemes")
    for scheme in SCHEMES:
        quantize_checkpoint(resolve("demo"), made / scheme, scheme)
    return {scheme: made / scheme for scheme in SCHEMES}


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", some(SCHEMES, 2))
def test_the_cpu_says_what_the_reference_says(folders: dict[str, Path], scheme: str) -> None:
    texts = {}
    for device in ("reference", "cpu"):
        with octavo.load(folders[scheme], device=device, threads=1, strict=device == "cpu") as model:
            texts[device] = ["".join(model.generate(q, temperature=0.0)) for q in QUESTIONS]
    assert texts["cpu"] == texts["reference"]
    assert "84" in texts["cpu"][0]


def test_a_folder_is_written_run_and_shown(octavo: Run, tmp_path: Path) -> None:
    out = tmp_path / "demo-int8"
    made = octavo("quantize", "demo", str(out), "--scheme", "int8-w8a8", "--json")
    report = json.loads(made.out)
    assert (report["preset"], report["target"]) == ("int8-w8a8", str(out))
    assert {row["type"] for row in report["tensors"]} == {"INT8", "F16", "F32"}
    assert octavo("run", str(out), "What is 12 times 7?").out == "12 times 7 is 84.\n"
    shown = json.loads(octavo("inspect", str(out), "--json", "--check", "--graph", "--device", "cpu").out)
    assert shown["types"][0]["type"] == "INT8"
    assert shown["non_finite"] == {}
    assert {row["dtype"] for row in shown["graph"]} >= {"int8_token", "f32"}
    assert (shown["version"], shown["alignment"]) == (None, None)
    listed = octavo("inspect", str(out), "--tensors").out
    assert ("blk.0.attn_q.weight" in listed, "offset" in listed) == (True, False)
    head = [line.split() for line in octavo("inspect", str(out)).out.splitlines()]
    assert (["file", str(out)] in head, ["layout", "safetensors"] in head) == (True, True)
    assert "has files in it" in octavo("quantize", "demo", str(out), "--scheme", "fp8").error()
    assert "has no name" in octavo("quantize", "demo", "", "--scheme", "fp8").error()


def test_a_folder_is_not_called_like_a_file(octavo: Run, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    assert "makes a folder (allowed: a name without .gguf)" in octavo(
        "quantize", "demo", str(out), "--scheme", "int8-w8a8").error()
    assert not out.exists()


def test_a_table_for_people(octavo: Run, tmp_path: Path) -> None:
    got = octavo("quantize", "demo", str(tmp_path / "out"), "--scheme", "w4a8-g128", "--dry-run")
    assert "would be w4a8-g128" in got.out
    assert "INT4_G128" in got.out


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["Q4_K_M"], "PRESET"), (["--target-bpw", "4"], "--target-bpw"), (["--imatrix", "x"], "--imatrix"),
        (["--pure"], "options of types"), (["--text", "demo"], "--text"),
    ],
)
def test_options_that_do_not_go_with_a_scheme(octavo: Run, tmp_path: Path, more: list[str], named: str) -> None:
    error = octavo("quantize", "demo", str(tmp_path / "out"), *more, "--scheme", "fp8").error()
    assert f"{named} with --scheme fp8 (allowed: " in error


def test_a_folder_without_a_scheme(octavo: Run, tmp_path: Path) -> None:
    error = octavo("quantize", str(tmp_path), str(tmp_path / "out.gguf"), "Q4_K_M").error()
    assert f"{tmp_path} is a folder: `octavo convert` makes a GGUF file" in error
    assert "--scheme quantizes folders" in error


def test_a_scheme_that_there_is_none_of(octavo: Run, tmp_path: Path) -> None:
    error = octavo("quantize", "demo", str(tmp_path / "out"), "--scheme", "w2a2").error()
    assert "'w2a2' (allowed: int8-w8a8, w4a8, w4a8-g128, fp8, w4a16-g128, " in error


def test_a_folder_of_floats_runs_as_it_is(octavo: Run, tmp_path: Path) -> None:
    """Nothing but the weights' type tells a quantized folder from one that is not."""
    from tests.convert.folders import save
    from tests.models.checkpoints import CASES

    save(tmp_path / "hf", CASES["qwen3"])
    got = octavo("run", str(tmp_path / "hf"), "hi", "-n", "3", "--temp", "0", "--json")
    assert len(json.loads(got.out)["tokens"]) == 3


def test_the_seed_says_which_windows_are_run(octavo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.widen(monkeypatch)
    model, text = tiny.write(tmp_path / "src.gguf"), tiny.write_letters(tmp_path / "text.txt", 600)
    options = ("--scheme", "w8a16", "--method", "gptq", "--calibration", text, "--samples", "3", "-c", "32")
    said = []
    for seed in ("0", "1", "1"):
        out = tmp_path / f"out-{len(said)}"
        assert octavo("quantize", model, str(out), *options, "--device", "reference", "--seed", seed).status == 0
        said.append(json.loads((out / FILE).read_text())["sha256"])
    assert said[0] != said[1] == said[2]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--scheme", "w4a8", "--method", "gptq"], "--method gptq needs --calibration"),
        (["--scheme", "w4a8", "--calibration", "demo"], "no --method is given (allowed: rtn, gptq"),
        (["--scheme", "w4a8", "--method", "quip", "--calibration", "demo"], "'quip' (allowed: rtn, gptq"),
        (["--scheme", "w4a8", "--rotate"], "no --method is given"),
        (["--rotate", "Q4_0"], "--rotate needs --scheme"),
        (["--layout", "gptq", "Q4_0"], "--layout needs --scheme"),
        (["--ignore", "down", "Q4_0"], "--ignore needs --scheme"),
        (["--seed", "1", "Q4_0"], "--seed needs --scheme"),
        (["--seed", "1", "--scheme", "fp8"], "no --method is given"),
        (["--ignore", "down_", "--ignore", "norm", "--scheme", "fp8"], "--ignore is 'norm', which matches no linear"),
        (["--resume", "Q4_0"], "--resume needs --method"),
        (["--device", "gpu", "Q4_0"], "--device gpu needs --method"),
        (["--ctx-size", "64", "--scheme", "fp8"], "--ctx-size needs --method"),
        (["--kv", "fp8", "--scheme", "w4a8"], "no --method is given"),
        (["--scheme", "w4a8", "--layout", "gptq"], "layout gptq does not hold w4a8"),
    ],
)
def test_methods_that_lack_something(octavo: Run, tmp_path: Path, options: list[str], named: str) -> None:
    assert named in octavo("quantize", "demo", str(tmp_path / "out"), *options).error()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_method_on_the_command_line(octavo: Run, tmp_path: Path) -> None:
    out = tmp_path / "demo-w4a16"
    options = ("--scheme", "w4a16-g128", "--method", "auto", "--calibration", "demo", "--samples", "4", "--json")
    report = json.loads(octavo("quantize", "demo", str(out), *options).out)
    made = [row for row in report["tensors"] if row["how"] is not None]
    assert len(made) == 70
    assert all(row["error"] <= row["before"] for row in made)
    assert {row["how"] for row in report["scaled"]} <= {"awq", "smoothquant", "qqq", "ones"}
    assert octavo("run", str(out), "What is 12 times 7?").out == "12 times 7 is 84.\n"
