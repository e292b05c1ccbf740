"""Prefixes that are kept: an engine that starts anew goes on with them as the one that ended would have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.graph.node import PAGE_SIZE
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.runtime.cache import window_pool
from octavo.runtime.cache.tiers.open_tiers import open_tiers
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.sampling.sampler import SamplingParams
from tests.runtime.engine.test_core import request, run
from tests.runtime.stateful import SMALL, WINDOWED, write
from tests.sampling import some

CONTEXT, BATCH, DISK = 640, 48, 64 << 20
TOKENS = np.random.default_rng(0).integers(0, 250, CONTEXT).tolist()
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(autouse=True)
def little_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_pool, "SLACK", 70)


@pytest.fixture(scope="module", params=["plain", *some(SMALL, 3), *WINDOWED])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder: Path = tmp_path_factory.mktemp("tiers")
    if request.param == "plain":
        from tests.runtime import tiny

        return read_model(GGUFFile.open(tiny.write(folder / "tiny.gguf")))
    return read_model(GGUFFile.open(write(request.param, folder / "small.gguf")))


def start(
    model: ModelSpec, folder: Path | None, backend: type[ReferenceBackend] = ReferenceBackend, ram: int = 0,
    **config: object,
) -> EngineCore:
    """An engine whose prefixes are kept in a folder."""
    sizes = {"n_ctx": 512, "n_batch": BATCH, "n_outputs": BATCH, "max_sequences": 3, "cache_type": "f32", **config}
    engine = Engine(model, [backend()], EngineConfig(**sizes))  # type: ignore[arg-type]
    core = EngineCore(engine)
    engine.load()
    if folder is not None or ram:
        tiers = open_tiers(engine, disk=DISK if folder else 0, ram=ram, folder=folder)
        assert tiers is not None
        core.use_tiers(tiers)
    return core


def reply(core: EngineCore, tokens: list[int], n: int = 6, **more: object) -> tuple[list[int], int]:
    """The greedy reply to a prompt, and how many tokens of that were in the cache."""
    one = request(tokens, n, GREEDY, **more)
    run(core, one)
    assert core.engine.pool.held == core.scheduler.kept
    return list(one.output_tokens), one.cached


def two_turns(core: EngineCore, length: int) -> list[int]:
    """A first turn, and the prompt of the second."""
    first = TOKENS[:length]
    return [*first, *reply(core, first)[0], *TOKENS[600:609]]


@pytest.mark.parametrize("length", [40, 3 * PAGE_SIZE - 6, 201])
def test_a_new_engine_goes_on_as_the_one_before(model: ModelSpec, tmp_path: Path, length: int) -> None:
    warm, one = start(model, None), start(model, tmp_path)
    second = two_turns(warm, length)
    assert two_turns(one, length) == second
    one.close()
    expected = reply(warm, second)
    again = start(model, tmp_path)
    assert reply(again, second) == expected
    assert expected[1] >= length
    again.close()
