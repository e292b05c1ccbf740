"""Calibrating a model: the file against what the whole graph computes, experts, a killed run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends import select
from octavo.calibrate.runner import layerwise
from octavo.calibrate.statistics_run import StatisticsOptions, StatisticsRun, collect_statistics
from octavo.errors import FileError, NonFiniteError, UsageError
from octavo.runtime import EngineConfig, open_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from tests.evals.test_importance import model_of
from tests.limits import HANG_S
from tests.runtime import tiny

OPTIONS: dict[str, Any] = {"samples": 3, "context": 24, "device": "reference"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 10)
    return str(path)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {
        arch: tiny.write(folder / f"{arch}.gguf", arch, weights=tiny.tensors(arch)) for arch in ("qwen3", "qwen3moe")
    }


def test_the_file_has_what_the_graph_computes(models: dict[str, str], text: str, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    found = collect_statistics(models["qwen3moe"], text, path, **OPTIONS)
    with StatisticsRun(models["qwen3moe"], text, StatisticsOptions(**OPTIONS)) as calibration:
        want, caches = watched(calibration)
    assert [p.name for p in tmp_path.iterdir()] == ["s.safetensors"]
    weights = {*found.inputs, *found.shared}
    assert weights == {*want}
    for weight in weights:
        x = np.concatenate(want[weight]) if want[weight] else np.zeros((0, 1))
        statistics = found.of(weight)
        row = 1 if "exps" in weight else 0
        assert statistics.tokens[row] == len(x)
        np.testing.assert_allclose(statistics.absmax[row], np.abs(x).max(axis=0), rtol=1e-3, atol=1e-3)
    for name, values in caches.items():
        np.testing.assert_allclose(found.caches[name].max, np.concatenate(values).max(axis=0), rtol=1e-3, atol=1e-3)
    assert {weight for weight, _, _ in found.starved()} == {w for w in found.inputs if "exps" in w}
    assert found.about["text"] == "text.txt"
    assert (found.about["samples"], found.about["context"], len(found.about["text_sha256"])) == ("3", "24", 64)


def watched(calibration: StatisticsRun) -> tuple[dict[str, list[np.ndarray]], dict[str, list[np.ndarray]]]:
    """What products are given (of experts, expert 1) and caches are, in a run of the whole graph."""
    engine = model_of(calibration.file, cache_type="f16").engine
    inputs: dict[str, list[np.ndarray]] = {}
    caches: dict[str, list[np.ndarray]] = {}

    def watch(node: Any, read: Any) -> None:
        if node.op == "mul_mat":
            inputs.setdefault(node.inputs[0].name, []).append(read(1).copy())
        elif node.op == "mul_mat_id":
            x, chosen = read(1), read(2) == 1
            found = x[chosen] if x.ndim == 3 else x[chosen.any(axis=1)]
            inputs.setdefault(node.inputs[0].name, []).append(found.copy())
        elif node.op == "set_rows":
            caches.setdefault(node.name, []).append(read(1).copy())

    for tokens in calibration.samples.tokens:
        sequence = Sequence()
        engine.step([Feed(sequence, tokens, len(tokens))], watch)
        engine.pool.release(sequence)
    return inputs, caches


KILLED = """
import os, signal, sys
from octavo.calibrate.statistics_run import collect_statistics
from octavo.calibrate.runner import layerwise
model, text, path, after, layerwise.IN_MEMORY = *sys.argv[1:5], int(sys.argv[5])
def progress(done, total):
    if done == int(after):
        os.kill(os.getpid(), signal.SIGKILL)
options = {"samples": 3, "context": 24, "device": "reference", "clips": True}
collect_statistics(model, text, path, resume=True, progress=progress, **options)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
@pytest.mark.parametrize("most", [0, 1 << 28])
def test_a_killed_run_goes_on_to_the_same_bytes(
    models: dict[str, str], text: str, tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With values in files, and in memory up to `most` bytes; stages that were done are run again."""
    monkeypatch.setattr(layerwise, "IN_MEMORY", most)
    model, want, path = models["qwen3"], tmp_path / "want.safetensors", tmp_path / "s.safetensors"
    collect_statistics(model, text, want, clips=True, **OPTIONS)
    for after in (8, 17):
        command = [sys.executable, "-c", KILLED, model, text, str(path), str(after), str(most)]
        assert subprocess.run(command, check=False, timeout=HANG_S).returncode == -signal.SIGKILL
        assert not path.exists()
    parts: list[int] = []
    options = {"clips": True, **OPTIONS}
    collect_statistics(model, text, path, resume=True, progress=lambda done, _: parts.append(done), **options)
    assert parts[0] == 1
    assert path.read_bytes() == want.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.safetensors", "want.safetensors"]


class StoppedError(Exception):
    pass


def stop(done: int, total: int) -> None:
    if done > total // 2:
        raise StoppedError


def test_another_run_is_not_gone_on_with(models: dict[str, str], text: str, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    with pytest.raises(StoppedError):
        collect_statistics(models["qwen3"], text, path, progress=stop, **OPTIONS)
    assert (tmp_path / "s.safetensors.work").is_dir()
    (tmp_path / "s.safetensors.work" / "state.json").write_text('{"run": "another", "stage": 1}')
    with pytest.raises(UsageError, match=r"another model, text .* or option"):
        collect_statistics(models["qwen3"], text, path, resume=True, **OPTIONS)
    collect_statistics(models["qwen3"], text, path, **OPTIONS)
    assert [p.name for p in tmp_path.iterdir()] == ["s.safetensors"]


@pytest.mark.parametrize(
    "other", [{"samples": 2}, {"context": 16}, {"seed": 1}, {"clips": True}, {"text": "other"}]
)
def test_a_run_of_another_text_or_option_is_not_gone_on_with(
    models: dict[str, str], text: str, tmp_path: Path, other: dict[str, Any]
) -> None:
    path, other_text = tmp_path / "s.safetensors", tmp_path / "other.txt"
    other_text.write_text(Path(text).read_text()[::-1])
    with pytest.raises(StoppedError):
        collect_statistics(models["qwen3"], text, path, progress=stop, **OPTIONS)
    options = {"text": text, **OPTIONS, **other}
    if options["text"] == "other":
        options["text"] = str(other_text)
    part = "option" if "clips" in other else "text (or other samples of it)"
    with pytest.raises(UsageError, match=re.escape(f"is of a run with another {part}: give the same")):
        collect_statistics(models["qwen3"], path=path, resume=True, **options)
    collect_statistics(models["qwen3"], text, path, resume=True, **OPTIONS)


@pytest.mark.slow
def test_the_demo_model_and_its_text(tmp_path: Path) -> None:
    found = collect_statistics("demo", "demo", tmp_path / "s.safetensors", samples=1, context=32, device="reference")
    assert len(found.inputs) == 41
    assert found.of("blk.9.attn_v.weight").tokens.tolist() == [32]
    with open_model("demo", [select("reference")[0]], EngineConfig(n_ctx=64)) as model:
        assert found.about["model"] == os.path.basename(model.file.path)


def test_what_is_refused(models: dict[str, str], text: str, tmp_path: Path) -> None:
    model, path = models["qwen3"], tmp_path / "s.safetensors"
    with pytest.raises(UsageError, match="n_ctx is 600; the model was made for up to 512"):
        collect_statistics(model, text, path, context=600)
    with pytest.raises(FileError, match="there is no folder"):
        collect_statistics(model, text, tmp_path / "none" / "s.safetensors", **OPTIONS)
    weights = tiny.tensors()
    weights["blk.1.attn_norm.weight"][5] = np.inf
    wrong = tiny.write(tmp_path / "wrong.gguf", weights=weights)
    with pytest.raises(NonFiniteError, match=r"blk\.1\.attn_q\.weight"):
        collect_statistics(wrong, text, path, **OPTIONS)
    assert not path.exists()


@pytest.mark.slow
def test_threads_do_not_matter(text: str, tmp_path: Path) -> None:
    for threads in (1, 2):
        options = {"samples": 1, "context": 200, "device": "cpu", "threads": threads}
        collect_statistics("demo", text, tmp_path / f"{threads}", **options)  # type: ignore[arg-type]
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
