"""`octavo quantize`: the table, JSON, the options, and errors in one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from octavo.evals.sensitivity import MeasuredSlopes
from octavo.io.gguf import GGUFFile
from octavo.quantizers.imatrix import Imatrix
from tests.cli.conftest import Run
from tests.quantizers import small
from tests.sampling import slow


@pytest.fixture
def src(tmp_path: Path) -> str:
    return str(small.write(tmp_path / "src.gguf"))


@pytest.fixture
def dst(tmp_path: Path) -> str:
    return str(tmp_path / "dst.gguf")


def types(path: str) -> dict[str, str]:
    with GGUFFile.open(path) as file:
        return {name: info.type_name for name, info in file.tensors.items()}


def test_rows_of_tensors(octavo: Run, src: str, dst: str) -> None:
    """Those of several blocks share one where they were treated alike."""
    got = octavo("quantize", src, dst, "Q4_K_M")
    assert (got.status, got.err) == (0, "")
    lines = [line.split() for line in got.out.splitlines()]
    stored = types(dst)
    end = next(i for i, line in enumerate(lines) if line[0] == "relative")
    rows = {line[0]: line for line in lines[1:end]}
    names = [name for row in rows for name in each(row)]
    assert sorted(names) == sorted(stored)
    (row,) = [line for name, line in rows.items() if "blk.2.attn_v.weight" in each(name)]
    assert row[1:6] == ["64", "x", "256", "F16", "Q6_K"]
    assert row[8].endswith("%")
    assert rows["output_norm.weight"][1:] == ["256", "F32", "1.0", "kB"]
    assert f"{dst} is Q4_K_M: " in got.out
    assert "bits per weight" in got.out
    assert re.fullmatch(rf"done in [\d.]+ s; next: octavo run {re.escape(dst)}", got.out.splitlines()[-1])


def test_a_file_called_as_the_built_in_model_is_told_apart(
    octavo: Run, src: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "demo-mtp"):
        assert octavo("quantize", src, name, "Q4_K_M").out.endswith(f"; next: octavo run ./{name}\n")


def test_presets_and_their_sizes(octavo: Run, src: str, dst: str) -> None:
    found = json.loads(octavo("quantize", src, "--list", "--json").out)["presets"]
    sizes = {row["preset"]: row["bytes"] for row in found}
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)
    assert {"F16", "Q8_0", "Q4_K_M", "IQ2_XS"} <= set(sizes)
    assert {row["preset"] for row in found if row["needs_imatrix"]} >= {"IQ2_XS", "IQ1_S", "Q2_K_S"}
    assert json.loads(octavo("quantize", src, dst, "Q4_K_M", "--dry-run", "--json").out)["bytes"] == sizes["Q4_K_M"]
    shown = octavo("quantize", src, "--list")
    assert (shown.status, shown.err, len(shown.out.splitlines())) == (0, "", len(found) + 2)
    assert "octavo quantize SRC --list" in octavo("quantize", src).error()
    assert "no such file" in octavo("quantize", "/nowhere.gguf", "--list").error()


def each(row: str) -> list[str]:
    """The names of tensors that share a row: `blk.0-1,3.attn_v.weight`."""
    found = re.fullmatch(r"blk\.([\d,-]+)\.(.*)", row)
    if found is None:
        return [row]
    runs = [part.split("-") for part in found[1].split(",")]
    return [f"blk.{i}.{found[2]}" for run in runs for i in range(int(run[0]), int(run[-1]) + 1)]


def test_json(octavo: Run, src: str, dst: str) -> None:
    got = octavo("quantize", src, dst, "q4_k", "--json", "--threads", "1")
    report = json.loads(got.out)
    assert (report["preset"], report["source"], report["target"], report["dry_run"]) == ("Q4_K_M", src, dst, False)
    assert {t["name"]: t["type"] for t in report["tensors"]} == types(dst)
    assert report["bytes"] == sum(t["bytes"] for t in report["tensors"])
    by_name = {t["name"]: t for t in report["tensors"]}
    assert by_name["output_norm.weight"]["error"] is None
    assert 0 < by_name["output.weight"]["error"] < 0.1
    assert by_name["output.weight"]["shape"] == [16, 256]


def test_dry_run(octavo: Run, src: str, dst: str) -> None:
    got = octavo("quantize", src, dst, "Q8_0", "--dry-run")
    assert "would be Q8_0" in got.out
    assert not Path(dst).exists()


def test_options(octavo: Run, src: str, dst: str) -> None:
    options = ["--output-tensor-type", "q8_0", "--token-embedding-type", "Q5_0", "--tensor-type", "attn_v=F16"]
    assert octavo("quantize", src, dst, "Q4_K_M", "--pure", *options, "--tensor-type", "exps=iq4_xs").status == 0
    got = types(dst)
    kinds = [got[name] for name in ("output.weight", "token_embd.weight", "blk.0.attn_v.weight")]
    assert kinds == ["Q8_0", "Q5_0", "F16"]
    assert got["blk.3.ffn_down_exps.weight"] == "IQ4_XS"
    assert octavo("quantize", src, dst, "Q4_K_M", "--leave-output-tensor").status == 0
    assert types(dst)["output.weight"] == "F16"


def test_importance(octavo: Run, src: str, dst: str, tmp_path: Path) -> None:
    made = Imatrix(datasets=("text",), chunk_count=1, chunk_size=1)
    made.add("blk.0.attn_v.weight", np.ones(small.WIDTH), 1)
    path = str(tmp_path / "imatrix.gguf")
    made.save(path)
    got = octavo("quantize", src, dst, "Q4_0", "--imatrix", path)
    (starred,) = [line for line in got.out.splitlines() if "%*" in line]
    assert starred.split()[0] == "blk.0.attn_v.weight", "the others have no importance"
    assert "* weighted by importance" in got.out


def test_again(octavo: Run, src: str, dst: str, tmp_path: Path) -> None:
    octavo("quantize", src, dst, "Q8_0")
    again = str(tmp_path / "again.gguf")
    assert "allow_requantize" in octavo("quantize", dst, again, "Q4_0").error()
    assert octavo("quantize", dst, again, "Q4_0", "--allow-requantize").status == 0
    assert types(again)["blk.0.attn_v.weight"] == "Q4_0"
    narrow = str(small.write(tmp_path / "narrow.gguf", {"blk.0.attn_v.weight": np.ones((64, 96), np.float32)}))
    assert octavo("quantize", narrow, dst, "Q8_0").status == 0
    assert "allow_requantize" in octavo("quantize", dst, again, "Q4_K").error(), "alone, without a warning before it"
    told = octavo("quantize", dst, again, "Q4_K", "--allow-requantize").err
    assert "1 of 19 tensors have rows that are not whole blocks: blk.0.attn_v.weight (96 values, not a m" in told
    for kind in ("F16", "F32"):
        got = octavo("quantize", dst, again, kind)
        assert got.status == 0, "floats lose nothing, so nobody has to allow it"
        assert "saves nothing" not in got.err, "nobody makes floats to save"
        assert types(again)["blk.0.attn_v.weight"] == kind


def test_rows_of_576(octavo: Run, dst: str, tmp_path: Path) -> None:
    """The type of these rows is the smallest that errs no more than the K-quant would."""
    rng = np.random.default_rng(0)
    rows = {"blk.0.attn_v.weight": rng.standard_normal((64, 576)), "blk.1.attn_v.weight": rng.laplace(size=(64, 576))}
    rows["blk.2.attn_v.weight"] = 3 + rng.standard_normal((64, 576)) / 16
    src = str(small.write(tmp_path / "odd.gguf", {name: x.astype(np.float32) for name, x in rows.items()}))
    got = octavo("quantize", src, dst, "Q4_K", "--pure")
    assert "blk.0.attn_v.weight (576 values, not a multiple of 256) is IQ4_NL instead of Q4_K" in got.err
    assert [types(dst)[name] for name in rows] == ["IQ4_NL", "IQ4_NL", "Q4_1"], "the last has minima far from zero"
    octavo("quantize", src, dst, "Q6_K", "--pure")
    assert [types(dst)[name] for name in rows] == ["Q8_0", "Q8_0", "Q4_1"]
    octavo("quantize", src, dst, "Q3_K", "--pure")
    assert types(dst)["blk.1.attn_v.weight"] == "IQ4_NL"


def test_a_preset_that_saves_nothing(octavo: Run, src: str, dst: str, tmp_path: Path) -> None:
    octavo("quantize", src, dst, "Q4_0", "--pure")
    got = octavo("quantize", dst, str(tmp_path / "again.gguf"), "Q5_K_M", "--allow-requantize")
    assert got.status == 0
    assert f"that is not smaller than {dst}: the preset saves nothing here" in got.err
    assert "saves nothing" not in octavo("quantize", src, dst, "Q4_0").err


@pytest.mark.parametrize(("arguments", "says"), [
    (["Q9_K"], "preset 'Q9_K' is not known; did you mean Q"),
    (["q4-km"], "did you mean Q4_K_M? (allowed: F32, "),
    (["Q2_0"], "preset 'Q2_0' can be read, but there is no encoder for it (allowed"),
    (["Q4_K_M", "--tensor-type", "attn_v"], "--tensor-type is 'attn_v' (allowed: REGEX=TYPE"),
    (["Q4_K_M", "--tensor-type", "=Q4_K"], "--tensor-type is '=Q4_K'"),
    (["Q4_K_M", "--tensor-type", "a(=Q4_K"], "'a(' is not a regular expression"),
    (["Q4_K_M", "--tensor-type", "a{99999999999}=Q4_K"], "a regular expression: the repetition number is too large"),
    (["Q4_K_M", "--tensor-type", f"{'(' * 3000}{')' * 3000}=Q4_K"], "not a regular expression: groups are nested too"),
    (["Q4_K_M", "--output-tensor-type", "Q4"], "'Q4' (allowed: F32"),
    (["Q4_K_M", "--imatrix", "/nowhere/i.gguf"], "/nowhere/i.gguf"),
    (["Q2_K_S"], "importance"),
    (["Q4_K_M", "--threads", "-5"], "threads"),
])
def test_errors_are_one_line(octavo: Run, src: str, dst: str, arguments: list[str], says: str) -> None:
    assert says in octavo("quantize", src, dst, *arguments).error()
    assert not Path(dst).exists()


def test_files_that_are_wrong(octavo: Run, src: str, dst: str, tmp_path: Path) -> None:
    assert "is the model that is read" in octavo("quantize", src, src, "Q4_K_M").error()
    (tmp_path / "empty.gguf").write_bytes(b"")
    assert "empty" in octavo("quantize", str(tmp_path / "empty.gguf"), dst, "Q4_K_M").error()
    missing = octavo("quantize", src, str(tmp_path / "no" / "out.gguf"), "Q4_K_M").error()
    assert f"there is no folder {tmp_path / 'no'}" in missing
    assert "is a folder" in octavo("quantize", src, str(tmp_path), "Q4_K_M").error()
    for path in (str(tmp_path), str(tmp_path / "none.gguf")):
        assert path in octavo("quantize", path, dst, "Q4_K_M").error()


def test_a_disk_without_room(octavo: Run, src: str, dst: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    assert "only 1,000 are free" in octavo("quantize", src, dst, "Q4_K_M").error()
    assert octavo("quantize", src, dst, "Q4_K_M", "--dry-run").status == 0


@pytest.mark.parametrize(
    ("arguments", "bits"), [(["--target-bpw", "4.7"], 4.7), slow((["--target-size", "0.2MB"], 5.9))]
)
def test_a_size(octavo: Run, src: str, dst: str, arguments: list[str], bits: float) -> None:
    got = octavo("quantize", src, dst, *arguments, "--tensor-type", "attn_v=Q8_0", "--leave-output-tensor")
    assert (got.status, got.err) == (0, "")
    kinds = types(dst)
    assert (kinds["output.weight"], kinds["blk.0.attn_v.weight"]) == ("F16", "Q8_0")
    *_, what, expected, left, _ = got.out.splitlines()
    assert f"{dst} is fitted to " in what
    assert "expected relative squared error of the output: 0.0" in expected
    assert "--text TEXT measures" in expected
    assert "bytes left of" in left
    report = json.loads(octavo("quantize", src, dst, *arguments, "--dry-run", "--json").out)
    assert 0 <= report["bytes_left"] < 0.05 * report["budget"]
    assert report["bytes_left"] == report["budget"] - report["bytes"]
    assert report["bits_per_weight"] <= bits
    assert report["loss_is"] == "relative squared error of the output"


@pytest.mark.slow
def test_a_size_measured_on_a_text(octavo: Run, dst: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeasuredSlopes, "__call__", lambda self, source, names: dict.fromkeys(names, 0.1))
    got = octavo("quantize", "demo", dst, "--target-bpw", "4", "--text", "demo", "--dry-run")
    assert "expected KL divergence: " in got.out
    assert "guess" not in got.out


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "no preset given: `octavo quantize SRC DST Q4_K_M` has one, `octavo quantize SRC --list` lists them"),
    (["Q4_K_M", "--target-bpw", "4"], "PRESET and --target-bpw can't be used together"),
    (["--target-bpw", "4", "--target-size", "1MB"], "--target-bpw and --target-size can't be used together"),
    (["--target-bpw", "0"], "--target-bpw is 0"),
    (["--target-bpw", "nan"], "--target-bpw is nan"),
    (["--target-bpw", "four"], "'--target-bpw'"),
    (["--target-bpw", "2"], "a model of 2 bits per weight can't be: its smallest types take "),
    (["--target-size", "9kB"], "a model of 9,000 bytes can't be: its smallest types take "),
    (["--target-bpw", "40"], "40 bits a weight (allowed: above 0, up to 32)"),
    (["--target-bpw", "6", "--tensor-type", "nomatch=Q8_0"], "tensor type 'nomatch' matches no tensor"),
    (["Q8_0", "--tensor-type", "nomatch=Q4_0"], "tensor type 'nomatch' matches no tensor"),
    (["--target-size", "4GX"], "size '4GX' (allowed: a number and B, kB, "),
    (["--target-bpw", "5", "--pure"], "--pure is for a PRESET, whose type it means, not for --target-bpw"),
    (["--target-bpw", "5", "--imatrix", "/nowhere/i.gguf"], "/nowhere/i.gguf"),
    (["Q4_K_M", "--text", "demo"], "--text is for --target-bpw and --target-size, not for a PRESET (Q4_K_M)"),
])
def test_sizes_that_are_wrong(octavo: Run, src: str, dst: str, arguments: list[str], says: str) -> None:
    assert says in octavo("quantize", src, dst, *arguments).error()
    assert not Path(dst).exists()


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (["--method", "gptq"], "--method gptq needs --calibration"),
        (["--calibration", "demo"], "--calibration demo needs --method"),
        (["--method", "gptq", "--calibration", "demo", "--pure", "--tensor-type", ".=F16"],
         "leaves a method nothing to quantize"),
        (["--method", "awq", "--calibration", "demo"], "(allowed: gptq, qronos; awq is for --scheme)"),
        (["--samples", "8"], "--samples needs --method"),
    ],
)
def test_a_method_wants_a_text(octavo: Run, src: str, dst: str, given: list[str], wrong: str) -> None:
    got = octavo("quantize", src, dst, "Q4_K_M", *given)
    assert got.status == 2
    assert wrong in got.err
    assert "needs" in got.err or "allowed" in got.err
