"""Each type of the KV cache, on the CPU: texts are those of each request alone, whatever shares or takes its pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.bench import synthetic
from octavo.formats import quantize_reference
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.formats.table import by_name
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import ModelSpec, read_model
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.sampling.sampler import Sampler, SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from tests.sampling import slow

N, WINDOW = 24, 40
RNG = np.random.default_rng(5)
COMMON = RNG.integers(0, 255, 100).tolist()
PROMPTS = [[*COMMON[:n], *RNG.integers(0, 255, 3 + 9 * i).tolist()] for i, n in enumerate((0, 70, 100, 100))]
QUICK = ("q8_0", "int4", "int8 static")
"""Types that run by default."""
MakeCore = Callable[..., EngineCore]


def small(path: Path, arch: str) -> ModelSpec:
    """Two layers with heads of 64 values, whose kernels the tests of the CPU compile too, and magnitudes for static
    scales; of a Gemma 3 the first has a window."""
    windows = {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": 2}
    real = synthetic.SHAPES["gemma3-4b" if arch == "gemma3" else "qwen3-0.6b"]
    keys = {**real.keys, **(windows if arch == "gemma3" else {})}
    shape = replace(real, n_layer=2, n_embd=64, n_ff=64, n_head=4, n_head_kv=2, head_dim=64, n_vocab=300, keys=keys)
    largest = {f"blk.{i}.cache_{kind}.max": np.full(2, 6, np.float32) for i in range(2) for kind in "kv"}
    tensors = [quantize_reference(values, by_name("F32"), name) for name, values in largest.items()]
    weights = [*synthetic.tensors(shape, "F32", 0), *(tensors if path.stem.endswith("static") else ())]
    write_gguf(path, shape.arch, synthetic.metadata("small", shape), weights)
    return read_model(GGUFFile.open(path))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelSpec]:
    folder, made = tmp_path_factory.mktemp("caches"), dict[str, ModelSpec]()

    def of(name: str) -> ModelSpec:
        if name not in made:
            made[name] = small(folder / f"{name}.gguf", name.split("-", maxsplit=1)[0])
        return made[name]

    return of


TYPES = (*(name for name in CACHE_FORMATS if name != "f16"), "int8 static", "fp8 static")


@pytest.fixture(params=[name if name in QUICK else slow(name) for name in TYPES])
def make_core(request: pytest.FixtureRequest, models: Callable[[str], ModelSpec]) -> MakeCore:
    """Makes engines of a model with a type of cache; keyword arguments are fields of EngineConfig."""
    cache_type, _, static = request.param.partition(" ")

    def make(arch: str = "qwen3", **config: int) -> EngineCore:
        model = models(f"{arch}-{static}" if static else arch)
        options = EngineConfig(**{"n_ctx": 256, "n_batch": 64, "cache_type": cache_type, **config})  # type: ignore[arg-type]
        return EngineCore(Engine(model, [CpuBackend(threads=2)], options))

    return make


def texts(core: EngineCore, prompts: list[list[int]], siblings: int = 0) -> list[list[int]]:
    """What is said to prompts that come while others run, of which the last is answered several times."""
    requests = [Request(prompt, _sampler(7), N) for prompt in prompts]
    forks = [Request(prompts[-1], _sampler(8 + i), N) for i in range(siblings)]
    requests[-1].siblings = list(forks)
    for one in requests:
        core.add(one)
        core.step()
    while not core.scheduler.idle:
        core.step()
    assert core.stats().held == 0
    return [list(one.output_tokens) for one in (*requests, *forks)]


def _sampler(seed: int) -> Sampler:
    return make_sampler(SamplingParams(temperature=1.5, top_k=20, seed=seed))


@pytest.mark.few(1)
def test_pages_that_are_shared_and_copied(make_core: MakeCore) -> None:
    """Prompts that begin alike, one that was there before, and forks of it that go on in the middle of a page."""
    alone = [texts(make_core(), [prompt])[0] for prompt in PROMPTS]
    core = make_core(max_sequences=6)
    found = texts(core, PROMPTS, siblings=2)
    assert found[:4] == alone
    assert found[4] != found[5]
    assert texts(core, PROMPTS[3:], siblings=2) == found[3:]
    assert core.stats().cached_tokens >= 2 * 64 + len(PROMPTS[3]) - 1


@pytest.mark.few(1)
def test_those_that_give_way_come_back(make_core: MakeCore) -> None:
    prompts = [[n] * 50 for n in range(4)]
    alone = [texts(make_core(), [prompt])[0] for prompt in prompts]
    core = make_core(n_pages=5, max_sequences=4)
    assert texts(core, prompts) == alone
    assert core.stats().preemptions > 0


@pytest.mark.few(1)
def test_layers_with_a_window(make_core: MakeCore) -> None:
    """Their pages are others, and go back when the window has left them."""
    prompts = [RNG.integers(0, 255, 640).tolist(), *PROMPTS[:2]]
    alone = [texts(make_core("gemma3", n_ctx=1408), [prompt])[0] for prompt in prompts]
    core = make_core("gemma3", n_ctx=1408, max_sequences=3)
    assert core.engine.pool.windows is not None
    assert texts(core, prompts) == alone
