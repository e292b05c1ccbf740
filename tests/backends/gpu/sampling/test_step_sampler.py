"""Tokens that the GPU's kernels choose are those that the host chooses of all logits, with each kind of setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from tests.runtime import tiny
from tests.runtime.sampling.test_step_sampler import requests, run

CONFIG = EngineConfig(n_ctx=64, cache_type="f32", max_sequences=8)
ALONE: list[dict[str, Any]] = [
    {"temperature": 0, "logit_bias": {7: 2.5, 9: -100}},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "seed": 4},
    {"temperature": 1.2, "repeat_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5, "seed": 2},
]


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[tuple[Engine, Engine]]:
    """Of the GPU backend, and of one whose tokens are chosen on the host."""
    with GGUFFile.open(
        tiny.write(tmp_path / "m.gguf", weights=tiny.tensors(n_layer=1), keys={"qwen3.block_count": 1})
    ) as file:
        there, here = (Engine(read_model(file), [backend], CONFIG) for backend in (GpuBackend(), ReferenceBackend()))
        yield there, here


def test_alone(engines: tuple[Engine, Engine]) -> None:
    """Steps of the first two begin before the token of the step before is read."""
    assert all((engine.finds_candidates, engine.supports_async) == (engine is engines[0],) * 2 for engine in engines)
    assert engines[0].draws
    for kind in ALONE:
        there, here = (
            run(engine, [Request([5, 9], make_sampler(SamplingParams(**kind), n_prompt=2), 4)]) for engine in engines
        )
        assert there == here


@pytest.mark.slow
@pytest.mark.parametrize("n_known", [tiny.N_VOCAB, 100])
def test_together(engines: tuple[Engine, Engine], n_known: int) -> None:
    """With masks of constraints and log-probabilities, and with tokens that are not known."""
    (got, found), (want, likely) = (run(engine, requests(), n_known) for engine in engines)
    assert got == want
    for one, other in zip(found, likely, strict=True):
        assert [t for t, _ in one.likely] == [t for t, _ in other.likely]
        assert one.token == pytest.approx(other.token, abs=1e-4)
