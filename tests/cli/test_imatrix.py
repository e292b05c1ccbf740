"""`octavo imatrix`: a file from a model and a text, going on from it, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.quantizers.imatrix import Imatrix
from tests.cli.conftest import Run, users_environment
from tests.limits import HANG_S
from tests.runtime import tiny

REFERENCE = ("--device", "reference")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.write(tmp_path_factory.mktemp("imatrix") / "random.gguf")


def test_makes_a_file(octavo: Run, model: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    done = octavo("imatrix", model, text, "-o", str(path), "-c", "64", "--chunks", "3", *REFERENCE)
    assert (done.status, done.out, done.err) == (0, f"{path}: 14 weights, 3 windows of 64 tokens\n", "")
    matrix = Imatrix.load(path)
    assert (matrix.datasets, matrix.chunk_count, matrix.chunk_size) == (("text.txt",), 3, 64)
    assert matrix.importance("blk.0.attn_q.weight") is not None


def test_a_model_of_less_context_than_the_default(octavo: Run, text: str, tmp_path: Path) -> None:
    """Its own is taken, by `eval` too."""
    model = tiny.write(tmp_path / "short.gguf", keys={"qwen3.context_length": 48})
    assert "1 windows of 48 tokens" in octavo(
        "imatrix", model, text, "-o", str(tmp_path / "out.gguf"), "--chunks", "1", *REFERENCE
    ).out
    assert "in 1 windows of 48" in octavo("eval", "ppl", model, text, "--chunks", "1", *REFERENCE).out
    other = tiny.write(tmp_path / "shorter.gguf", keys={"qwen3.context_length": 40})
    assert "in 1 windows of 40" in octavo("eval", "kl", model, text, "--base", other, "--chunks", "1", *REFERENCE).out
    assert "-c is 3 (allowed: 4 or more)" in octavo("eval", "ppl", model, text, "-c", "3", *REFERENCE).error()


def test_goes_on_and_begins_anew(octavo: Run, model: str, text: str, tmp_path: Path) -> None:
    command = ("imatrix", model, text, "-o", str(tmp_path / "out.gguf"), *REFERENCE)
    assert "2 windows of 64" in octavo(*command, "-c", "64", "--chunks", "2").out
    assert "5 windows of 64" in octavo(*command, "-c", "64", "--chunks", "5").out
    assert "--restart" in octavo(*command, "-c", "32").error()
    assert "4 windows of 32" in octavo(*command, "-c", "32", "--chunks", "4", "--restart").out


def test_tells_of_experts_that_met_no_token(octavo: Run, tmp_path: Path) -> None:
    weights = tiny.tensors("qwen3moe")
    for layer in range(2):
        weights[f"blk.{layer}.ffn_gate_inp.weight"][:] = 0  # of equals the first two are taken
    model = tiny.write(tmp_path / "moe.gguf", "qwen3moe", weights=weights)
    (tmp_path / "text.txt").write_text("abc " * 50)
    path = str(tmp_path / "out.gguf")
    done = octavo("imatrix", model, str(tmp_path / "text.txt"), "-o", path, "-c", "64", "--chunks", "1", *REFERENCE)
    assert done.status == 0
    assert "12 of 24 experts' weights met no token" in done.err
    assert Imatrix.load(path).entries["blk.0.ffn_gate_exps.weight"].counts.tolist() == [64, 64, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": "none.txt"}, "none.txt: can't be opened"),
        ({"text": "empty.txt"}, "empty.txt.*is empty"),
        ({"text": "short.txt"}, "the text has 3 tokens"),
        ({"output": "nowhere/out.gguf"}, "nowhere/out.gguf: there is no folder"),
        ({"output": "."}, "is a folder"),
        ({"output": "text.txt"}, "text.txt"),
        ({"context": "2"}, "error: -c is 2"),
        ({"context": "4096"}, "-c is 4096, but the model was made for 512"),
    ],
)
def test_bad_input(
    octavo: Run, model: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("")
    Path("short.txt").write_text("abc")
    before = Path(text).read_text()
    given = {"text": "text.txt", "output": "out.gguf", "context": "64"} | change
    command = ("imatrix", model, given["text"], "-o", given["output"], "-c", given["context"], "--chunks", "1")
    error = octavo(*command, *REFERENCE).error()
    assert re.search(message, error)
    assert Path(text).read_text() == before
    assert not Path("out.gguf").exists()


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_interrupted_it_saves_and_says_how_to_go_on(model: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The quick brown fox. " * 20000)
    path = tmp_path / "out.gguf"
    options = ("-c", "64", "--save-every", "1", *REFERENCE)
    command = [sys.executable, "-m", "octavo", "imatrix", model, str(tmp_path / "text.txt"), "-o", str(path), *options]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=users_environment())
    while not path.exists():
        assert started.poll() is None
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    _, error = started.communicate(timeout=HANG_S)
    assert started.returncode == 130
    assert error == f"octavo: stopped; the same command goes on from {path}\n"
    assert Imatrix.load(path).chunk_count >= 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.gguf", "text.txt"]
