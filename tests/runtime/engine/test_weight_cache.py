"""Models whose packed weights come from the cache say what they say without, and the commands show and remove them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.backends.cpu import CpuBackend
from octavo.backends.cpu.packed import cache_folder, store
from octavo.errors import HostMemoryError, UsageError
from octavo.huggingface import SCHEMES, open_model_file
from octavo.io.system_memory import Room
from octavo.models import read_model
from octavo.quantizers import quantize_file
from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.convert.folders import save
from tests.models.adapters import factors, write_lora_gguf
from tests.models.checkpoints import CASES
from tests.models.ranks import on_some
from tests.models.table import save_only
from tests.models.test_ranks import cpu
from tests.models.tiny_checkpoints import TABLE
from tests.runtime import tiny
from tests.sampling import some

TOKENS = np.random.default_rng(7).integers(0, tiny.N_VOCAB, 21).tolist()


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder, which keeps the smallest model too."""
    folder = tmp_path / "weights"
    monkeypatch.setattr(cache_folder, "folder", lambda: folder)
    monkeypatch.setattr(store, "LEAST", 0)
    return folder


def text(path: str | Path, **options: Any) -> str:
    with octavo.load(path, device="cpu", n_ctx=64, threads=2, **options) as model:
        return str(model.generate("hi", temperature=0.0, max_tokens=30))


def test_text_is_the_same_and_the_option_removes_what_is_kept(weights: Path, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf")
    plain = text(path, weight_cache=False)
    assert not weights.exists()
    assert [text(path) for _ in range(2)] == [plain] * 2
    (kept,) = weights.iterdir()
    assert kept.suffix == ".weights"
    assert text(path, weight_cache=False) == plain
    assert not list(weights.iterdir())
    with pytest.raises(UsageError, match="weight_cache"):
        octavo.load(path, weight_cache="yes")  # type: ignore[arg-type]


@pytest.mark.few(1)
@pytest.mark.parametrize("preset", some(["Q4_K_M", "Q8_0", "MXFP4_MOE", "IQ3_S", "BF16", "TQ2_0"], 2))
def test_logits_of_a_preset(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str) -> None:
    tiny.widen(monkeypatch)
    quantize_file(tiny.write(tmp_path / "wide.gguf"), tmp_path / "model.gguf", preset)
    require_same_logits(tmp_path / "model.gguf", weights)


@pytest.mark.parametrize("scheme", some(SCHEMES, 2))
def test_logits_of_a_scheme(weights: Path, tmp_path: Path, scheme: str) -> None:
    save(tmp_path / "hf", CASES["llama"])
    quantize_checkpoint(tmp_path / "hf", tmp_path / "out", scheme)
    require_same_logits(tmp_path / "out", weights)
    config = tmp_path / "out" / "config.json"  # which says how tensors are made
    config.write_text(config.read_text() + " ")
    require_same_logits(tmp_path / "out", weights)


def require_same_logits(path: Path, weights: Path) -> None:
    """Raise AssertionError unless a model gives the same numbers without the cache, into it and from it."""
    found = []
    for keep in (False, True, True):
        with open_model_file(path) as file:
            engine = Engine(read_model(file), [CpuBackend(threads=2)], EngineConfig(n_ctx=64, weight_cache=keep))
            found.append(engine.logits(TOKENS))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    assert len(list(weights.iterdir())) == 1


def test_an_adapter_is_not_kept_with_the_model(weights: Path, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", weights=tiny.alphabet())
    a, b = factors(tiny.N_VOCAB, tiny.N_EMBD)
    adapter = str(write_lora_gguf(tmp_path / "other.gguf", {"output.weight": (a, 100 * b)}, "qwen3"))
    changed = text(path, lora=adapter, weight_cache=False)
    assert [text(path), text(path, lora=adapter), text(path, lora={adapter: 0})] == [
        tiny.ALPHABET, changed, tiny.ALPHABET,
    ]
    assert changed != tiny.ALPHABET
    assert len(list(weights.iterdir())) == 1


def test_ranks_have_files_of_their_own(weights: Path, tmp_path: Path) -> None:
    save_only(tmp_path / "hf", TABLE["llama"])
    found = [
        [rows for rows, _ in on_some(tmp_path / "hf", 2, cpu, weight_cache=keep)] for keep in (False, True, True)
    ]
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    assert len(list(weights.iterdir())) == 2


def test_a_model_larger_than_memory_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", weights=tiny.alphabet())
    with octavo.load(path, device="cpu", n_ctx=64) as model:
        schedule, backend = model.engine.schedule, model.engine.backends[0]
        nodes = [n for n in schedule.graph.nodes if not n.is_leaf]
        weights = backend.weight_bytes(nodes)  # type: ignore[attr-defined]
        others = backend.cache_bytes(nodes, model.engine.limits) + schedule.memory[0]  # type: ignore[attr-defined]
    monkeypatch.setattr("octavo.runtime.engine.memory_plan.room", lambda: Room(others + weights * 2 // 3, 0))
    assert text(path) == tiny.ALPHABET
    assert "read from the disk again and again" in caplog.text
    with pytest.raises(HostMemoryError):
        text(path, weight_cache=False)
    monkeypatch.setattr("octavo.runtime.engine.memory_plan.room", lambda: Room(others - 1000, 0))
    with pytest.raises(HostMemoryError):
        text(path)
