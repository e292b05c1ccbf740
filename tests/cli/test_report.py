"""`octavo report`: the page it writes, and what it refuses."""

from __future__ import annotations

import re
import shlex
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from octavo.quantizers import quantize_checkpoint, quantize_file
from octavo.quantizers.imatrix import Imatrix, SquareSums
from octavo.runtime import resolve
from tests.cli.conftest import Run
from tests.evals.no_pictures import leave_out_pictures
from tests.quantizers import small
from tests.runtime import tiny

REFERENCE = ("--device", "reference", "--threads", "1")


@pytest.fixture
def out(tmp_path: Path) -> str:
    return str(tmp_path / "report.html")


def test_tensors(octavo: Run, models: tuple[str, str], out: str) -> None:
    base, near = models
    done = octavo("report", near, "--base", base, "-o", out)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{out}: 25 tensors, 32 bits per weight, measured error ")
    page = Path(out).read_text(encoding="utf-8")
    assert "Size against quality" not in page
    assert 1.5 < float(done.out.split()[-1].rstrip("%")) < 2.5
    assert f"<dd>{done.out.split()[-1].rstrip('%')} %</dd>" in page


def test_a_text_and_presets(
    octavo: Run, models: tuple[str, str], out: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_pictures(monkeypatch)
    base, near = models
    options = ("--text", text, "-c", "64", "--chunks", "2", *REFERENCE)
    assert octavo("report", near, "--base", base, "--presets", "Q8_0, q5_0", *options, "-o", out).status == 0
    page = Path(out).read_text(encoding="utf-8")
    for name in ("near.gguf", "base.gguf", "Q8_0", "Q5_0"):
        assert f"{name}<" in page[page.index("Models on the text") :]
    assert "62 tokens scored in 2 windows of 64" in page
    assert octavo("report", near, *options, "-o", out).status == 0
    assert "KL divergence</dt>" not in Path(out).read_text(encoding="utf-8")


def test_methods_next_to_presets(
    octavo: Run, models: tuple[str, str], out: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_pictures(monkeypatch)
    options = ("--text", text, "-c", "64", "--chunks", "2", *REFERENCE)
    made = ("--presets", "Q4_0,F16", "--methods", "gptq,awq", "--calibration", text)
    assert octavo("report", models[0], *made, *options, "-o", out).status == 0
    page = Path(out).read_text(encoding="utf-8")
    rows = re.findall(r">(Q4_0|F16)</t[dh]>\s*<td[^>]*>(preset[^<]*)<", page[page.index("Models on the text") :])
    wanted = [("Q4_0", "preset"), ("Q4_0", "preset, gptq"), ("F16", "preset")]  # presets have no awq, floats no methods
    assert sorted(rows) == sorted(wanted)


def test_methods_that_there_are_not_are_left_out_and_said(
    octavo: Run, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_pictures(monkeypatch)
    tiny.widen(monkeypatch)
    keys = {"tokens": [*tiny.TOKENS, "<|pad|>"], "token_type": [1] * 256 + [3, 3, 1, 3]}
    model = tiny.write(tmp_path / "model.gguf", keys={f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    text = tiny.write_letters(tmp_path / "text.txt", 600)
    options = ("--text", text, "--calibration", text, "-c", "64", "--chunks", "1", *REFERENCE)
    done = octavo("report", model, "--schemes", "fp8-block,w8a16", "--methods", "rptq,gptq", *options, "-o", out)
    assert done.status == 0
    assert all("tokens are run: about" in line for line in done.err.splitlines())
    page = unescape(Path(out).read_text(encoding="utf-8"))
    rows = re.findall(r">(fp8-block|w8a16)</t[dh]>\s*<td[^>]*>(scheme[^<]*)<", page)
    assert rows == [("fp8-block", "scheme"), ("w8a16", "scheme"), ("w8a16", "scheme, gptq")]
    said = re.findall(r"Left out, as it can't be made: ([^:]*): ([^(<]*) \(allowed", page)
    assert said == [
        ("fp8-block by rptq", "method rptq does not apply to fp8-block, whose scales are for whole blocks"),
        ("fp8-block by gptq", "method gptq does not apply to fp8-block, whose scales are for whole blocks"),
        ("w8a16 by rptq", "static activations with scheme w8a16"),
    ]


def test_a_scheme_that_a_model_can_not_have_is_refused_before_anything_is_run(
    octavo: Run, out: str, models: tuple[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.evals.report.quality.open_subject", None)
    options = ("--schemes", "w4a16-g128", "--text", text, "-c", "64", *REFERENCE)
    done = octavo("report", models[0], *options, "-o", out)
    assert "a row of 264 values (allowed: multiples of 128; schemes of such rows: " in done.err.splitlines()[-1]


def test_the_demo_has_a_text(octavo: Run, out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pictures(monkeypatch)
    done = octavo("report", "demo", "-o", out, "--presets", "", "--chunks", "1", *REFERENCE)
    assert done.status == 0
    assert "trial error" in done.out
    assert "On demo, test" in Path(out).read_text(encoding="utf-8")


@pytest.mark.slow  # compiles the encoders of every type on offer
def test_the_command_of_a_page_runs(octavo: Run, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model made with an importance matrix, which the command names; where it is gone, the page says so."""
    base, made, matrix = tmp_path / "the base.gguf", tmp_path / "made.gguf", tmp_path / "my imatrix.gguf"
    small.write(base)
    sums = np.ones(256, np.float32)
    Imatrix({f"blk.{i}.attn_v.weight": SquareSums(sums[None], np.ones(1, np.int64)) for i in range(2)}).save(matrix)
    quantize_file(base, made, "Q4_K_M", imatrix=matrix, threads=1)
    assert octavo("report", str(made), "--base", str(base), "-o", out, "--threads", "1").status == 0
    page = unescape(Path(out).read_text(encoding="utf-8"))
    (command,) = re.findall(r"<pre><code>octavo (.*?)</code></pre>", page)
    words = shlex.split(command)
    assert words[words.index("--imatrix") + 1] == str(matrix)
    assert "It is not there now" not in page
    monkeypatch.chdir(tmp_path)
    assert octavo(*words, "--threads", "1").status == 0
    assert (tmp_path / "made-better.gguf").exists()
    matrix.unlink()
    assert octavo("report", str(made), "--base", str(base), "-o", out, "--threads", "1").status == 0
    assert "It is not there now" in Path(out).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_checkpoint_folder(octavo: Run, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the file that it was made of; a report does not take the place of one of its files."""
    leave_out_pictures(monkeypatch)
    folder = tmp_path / "w8"
    quantize_checkpoint(resolve("demo"), folder, "int8-w8a8")
    done = octavo("report", str(folder), "--base", "demo", "-o", out, "--presets", "", "--chunks", "1", *REFERENCE)
    assert done.status == 0
    assert done.out.startswith(f"{out}: 112 tensors, 8.4 bits per weight, measured error 0.65")
    config = (folder / "config.json").read_bytes()
    refused = octavo("report", str(folder), "-o", str(folder / "config.json"), "--threads", "1")
    assert "is the model that is read" in refused.error()
    assert (folder / "config.json").read_bytes() == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("MODEL",), "-o"),
        (("none.gguf", "-o", "OUT"), "none.gguf"),
        (("MODEL", "-o", "MODEL"), "is the model that is read"),
        (("MODEL", "-o", "/nowhere/r.html"), "/nowhere/r.html: there is no folder"),
        (("MODEL", "-o", "OUT", "--base", "none.gguf"), "none.gguf"),
        (("MODEL", "-o", "OUT", "--presets", "Q8_0"), "--presets needs --text"),
        (("MODEL", "-o", "OUT", "--text", "demo", "--presets", "Q9_0"), "'Q9_0'"),
        (("MODEL", "-o", "OUT", "--text", "demo", "--schemes", "w9"), "scheme 'w9'"),
        (("MODEL", "-o", "OUT", "--text", "demo", "--presets", "Q8_0", "--methods", "best"), "method 'best'"),
        (("MODEL", "-o", "OUT", "--text", "MODEL", "--presets", "Q8_0", "--methods", "gptq"), "with --calibration"),
        (("MODEL", "-o", "OUT", "--methods", "gptq"), "--methods needs --text"),
        (("MODEL", "-o", "OUT", "--text", "none.txt"), "none.txt: can't be opened"),
        (("MODEL", "-o", "OUT", "--base", "MODEL", "--text", "demo", "-c", "3"), "error: -c is 3"),
    ],
)
def test_bad_input(octavo: Run, models: tuple[str, str], out: str, arguments: tuple[str, ...], message: str) -> None:
    given = [models[0] if a == "MODEL" else out if a == "OUT" else a for a in arguments]
    assert message in octavo("report", *given, "--threads", "1").error()
    assert not Path(out).exists()
