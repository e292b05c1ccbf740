"""Every architecture computes on several backends, each with some of its layers, what it computes on one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends import select
from octavo.graph.communicator import Communicator
from octavo.huggingface import open_model_file
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.lora_adapters import Chosen, with_adapters
from tests.graph.ranks import on_ranks
from tests.models.adapters import factors, modules_of, write_peft
from tests.models.ranks import PROMPT, all_divided, on_one, rows
from tests.models.table import error, save_only
from tests.models.tiny_checkpoints import TABLE
from tests.sampling import slow

QUICK = {"llama", "qwen3moe", "qwen35moe", "deepseek2-v3", "gemma4-e", "rwkv7", "llama4"}


def in_stages(path: Path, stages: int, communicators: list[Communicator] | None = None, lora: Chosen = (),
              **config: object) -> Engine:
    model = with_adapters(read_model(open_model_file(path)), lora)
    options = EngineConfig(
        n_ctx=128, embeds=model.architecture.encoder, pipeline=stages,
        **{"n_batch": 64, "cache_type": "f32", **config},  # type: ignore[arg-type]
    )
    return Engine(model, select("cpu", 1, stages=stages, communicators=communicators or ()), options)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in TABLE])
def test_two_and_three_stages(name: str, tmp_path: Path) -> None:
    """A step goes over each once, in order, also where later layers read what earlier ones have made."""
    save_only(tmp_path, TABLE[name])
    want = rows(in_stages(tmp_path, 1))
    n_layer = in_stages(tmp_path, 1).model.hparams.n_layer
    for stages in (2, 3):
        if n_layer < stages or (stages == 3 and name.startswith(("gemma3n", "gemma4-e"))):
            continue
        engine = in_stages(tmp_path, stages)
        assert sum(engine.stages) == n_layer
        assert [split.backend for split in engine.schedule.splits] == list(range(stages))
        np.testing.assert_array_equal(rows(engine), want)


@pytest.mark.parametrize("cache_type", ["int8", *map(slow, ["f16", "q8_0", "fp8", "int4"])])
def test_caches(cache_type: str, tmp_path: Path) -> None:
    save_only(tmp_path, TABLE["llama"])
    got = rows(in_stages(tmp_path, 2, cache_type=cache_type))
    np.testing.assert_array_equal(got, rows(in_stages(tmp_path, 1, cache_type=cache_type)))


def test_adapters(tmp_path: Path) -> None:
    save_only(tmp_path / "hf", TABLE["llama"])
    modules = enumerate(modules_of(tmp_path / "hf").items())
    write_peft(tmp_path / "lora", {module: factors(*shape, seed=i) for i, (module, shape) in modules})
    lora = ((str(tmp_path / "lora"), 1.0),)
    want = rows(in_stages(tmp_path / "hf", 1, lora=lora))
    assert error(want, on_one(tmp_path / "hf")) > 1e-3
    np.testing.assert_array_equal(rows(in_stages(tmp_path / "hf", 2, lora=lora)), want)


@pytest.mark.parametrize("name", ["llama", "qwen3moe", *map(slow, ["qwen35moe", "deepseek2-v3", "gemma4-e", "rwkv7"])])
def test_two_ranks_of_two_stages(name: str, tmp_path: Path) -> None:
    """Each rank has a part of each layer, of some layers on each backend; also for a prompt of several steps."""
    save_only(tmp_path, TABLE[name])
    one = in_stages(tmp_path, 1, n_batch=16)
    want = one.prefill(Sequence(), PROMPT)

    def work(communicator: Communicator) -> tuple[np.ndarray, Engine]:
        engine = in_stages(tmp_path, 2, [communicator] * 2, n_batch=16)
        return engine.prefill(Sequence(), PROMPT), engine

    with all_divided():
        found = on_ranks(2, work)
    for got, engine in found:
        assert error(got[None], want[None]) < 1e-4
        assert [split.backend for split in engine.schedule.splits] == [0, 1]
        summed = [engine.schedule.backends[id(n)] for n in engine.graph.nodes if n.op == "all_reduce"]
        assert set(summed) == {0, 1}
