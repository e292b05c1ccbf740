"""A model that is too large for the system's memory is refused before its weights are read, with what would fit."""

from __future__ import annotations

import errno
import mmap
import os
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.backends.cpu import CpuBackend
from octavo.backends.cpu.device import memory
from octavo.backends.cpu.device.large_pages import Arena
from octavo.backends.cpu.weights import pack
from octavo.errors import HostMemoryError
from octavo.formats import by_name, quantize_reference
from octavo.io.system_memory import Room
from octavo.runtime import Engine, EngineConfig, open_model
from octavo.runtime.engine.memory_plan import require_memory

N_CTX = 1024


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The demo model's engine; its weights, full cache and values take `needed` bytes."""
    with open_model("demo", [CpuBackend(threads=1)], EngineConfig(n_ctx=N_CTX)) as model:
        return model.engine


@pytest.fixture(scope="module")
def parts(engine: Engine) -> tuple[int, int, int]:
    """Bytes of weights, caches, values."""
    (backend,) = engine.backends
    assert isinstance(backend, CpuBackend)
    nodes = [n for n in engine.schedule.graph.nodes if not n.is_leaf]
    return backend.weight_bytes(nodes), backend.cache_bytes(nodes, engine.limits), engine.schedule.memory[0]


def require(engine: Engine, monkeypatch: pytest.MonkeyPatch, room: Room | None, **options: Any) -> None:
    monkeypatch.setattr("octavo.runtime.engine.memory_plan.room", lambda: room)
    config = EngineConfig(n_ctx=N_CTX, **options)
    require_memory(engine.schedule, engine.backends, engine.limits, N_CTX, config)


def test_fewer_ranks_are_advised(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.runtime.engine.memory_plan.room", lambda: Room(1, 0))
    config = EngineConfig(n_ctx=N_CTX)
    with pytest.raises(HostMemoryError, match="are free: fewer ranks than 3 need less; "):
        require_memory(engine.schedule, engine.backends, engine.limits, N_CTX, config, ranks=3)


def test_the_count_is_what_is_taken(engine: Engine, parts: tuple[int, int, int]) -> None:
    weights, caches, _ = parts
    executor = engine.load()
    loaded = {id(v): v for v in executor._leaves.values() if v is not None}.values()
    arrays = [v if isinstance(v, np.ndarray) else v.data for v in loaded]
    assert weights + caches == sum(a.nbytes for a in arrays)


@pytest.mark.parametrize("name", ["Q4_K", "Q2_K", "Q6_K", "Q4_0", "Q5_1", "IQ4_NL", "BF16", "F32"])
@pytest.mark.parametrize("shape", [(40, 512), (3, 8, 256)])
def test_a_packed_weight_is_as_large_as_counted(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "_run", lambda work, spans, threads: None)
    tensor = quantize_reference(np.ones(shape, np.float32), by_name(name))
    assert memory.packed_bytes(tensor) == pack.pack(tensor, 1, Arena()).data.nbytes


def test_what_fits_is_let_through(
    engine: Engine, parts: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    require(engine, monkeypatch, Room(sum(parts)))
    require(engine, monkeypatch, None)
    assert not caplog.records
    require(engine, monkeypatch, Room(sum(parts) - 1, 1))
    assert "the system will swap" in caplog.text


def test_a_context_that_would_fit_is_named(
    engine: Engine, parts: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, caches, values = parts
    with pytest.raises(HostMemoryError, match=r"1024 tokens of context .* a context of 512 tokens would fit") as error:
        require(engine, monkeypatch, Room(weights + values + caches // 2 + 1000))
    assert "GiB of memory are needed" in str(error.value)
    with pytest.raises(HostMemoryError, match=r": a context of 960 tokens or a cache in q8_0 would fit"):
        require(engine, monkeypatch, Room(sum(parts) - 1))
    with pytest.raises(HostMemoryError, match=r": a context of 960 tokens would fit"):
        require(engine, monkeypatch, Room(sum(parts) - 1), cache_type="q8_0")


def test_fewer_sequences_and_less_memory_of_a_cache_are_named(
    engine: Engine, parts: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, caches, values = parts
    monkeypatch.setattr("octavo.runtime.engine.memory_plan.LEAST_CONTEXT", N_CTX)
    with pytest.raises(HostMemoryError, match=r": a cache for 2 of 5 sequences would fit"):
        require(engine, monkeypatch, Room(weights + values + caches // 2), max_sequences=5, cache_type="q8_0")
    monkeypatch.setattr("octavo.runtime.engine.memory_plan.SMALL_CACHE", caches // 4)
    monkeypatch.setattr("octavo.runtime.engine.memory_plan.GIB", caches)
    with pytest.raises(HostMemoryError, match=r": a cache \(kv_memory\) of 0\.50 GiB would fit"):
        require(engine, monkeypatch, Room(weights + values + caches // 2), kv_memory=caches)
    with pytest.raises(HostMemoryError, match=r"weights of less than"):
        require(engine, monkeypatch, Room(weights + values + caches // 8), kv_memory=caches)


def test_weights_that_are_too_large_want_fewer_bits(
    engine: Engine, parts: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, caches, values = parts
    most = caches // 4 + values + (weights >> 1)
    with pytest.raises(HostMemoryError, match=rf": weights of less than {weights / 2**31:.2f} GiB would fit, such as"):
        require(engine, monkeypatch, Room(most))
    with pytest.raises(HostMemoryError, match=r": close other programs"):
        require(engine, monkeypatch, Room(values))


def test_it_is_said_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.runtime.engine.memory_plan.room", lambda: Room(1 << 20))
    monkeypatch.setattr(CpuBackend, "load", lambda self, tensor, joined: pytest.fail("a weight was loaded"))
    with pytest.raises(HostMemoryError, match="GiB of memory are needed"):
        octavo.load("demo", device="cpu", threads=1)


@pytest.mark.parametrize("raised", [OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), OverflowError("too large")])
def test_memory_that_is_short_after_all(monkeypatch: pytest.MonkeyPatch, raised: Exception) -> None:
    """As where nothing tells what is free, or another program takes it meanwhile."""
    real = mmap.mmap

    def refuse(file: int, size: int, **options: int) -> mmap.mmap:
        if file == -1 and size > 1:
            raise raised
        return real(file, size, **options)

    monkeypatch.setattr("octavo.backends.cpu.device.large_pages.mmap.mmap", refuse)
    with pytest.raises(HostMemoryError, match=r"out of memory: [\d,]+ bytes$"):
        octavo.load("demo", device="cpu", threads=1)
