"""On the CPU each text is that of the request alone, bit for bit, whatever else is in its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octavo.io.model_path import resolve
from octavo.quantizers import quantize_file
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.loading import load
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from tests.sampling import slow


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """The demo model, quantized to a preset where that is not "F16"."""
    made: dict[str, Model] = {}

    def model(preset: str) -> Model:
        path = Path("demo")
        if preset != "F16":
            path = tmp_path_factory.mktemp("models") / f"{preset}.gguf"
            quantize_file(resolve("demo"), path, preset)
        return load(path, device="cpu", threads=2, n_ctx=512, max_sequences=12)

    return lambda preset: made.get(preset) or made.setdefault(preset, model(preset))


def requests(model: Model, count: int, longest: int) -> list[Request]:
    """Greedy and seeded ones, with and without penalties, of prompts of 1 to 300 tokens, some of which begin alike."""
    rng, made = np.random.default_rng(count), []
    common = rng.integers(5, model.tokenizer.n_vocab, 200).tolist()
    for i in range(count):
        length = int(rng.choice([1, 7, 40, 100])) % longest or 1
        prompt = [
            *common[: int(rng.choice([0, 0, 70, 200])) % (2 * longest)],
            *rng.integers(5, model.tokenizer.n_vocab, length).tolist(),
        ]
        how: dict[str, float] = {"temperature": 0} if i % 2 else {"temperature": 1.2, "seed": i}
        if i % 3 == 0:
            how |= {"presence_penalty": 0.5, "repeat_penalty": 1.1}
        sampler = make_sampler(SamplingParams(**how), n_prompt=len(prompt))  # type: ignore[arg-type]
        made.append(Request(prompt, sampler, int(rng.integers(4, 4 + longest // 4))))
    return made


def texts(model: Model, given: list[Request], every: int) -> list[list[int]]:
    """Results of requests that are added one by one, one every few steps; 0: each when the one before has ended."""
    core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab, itl_target=0.01)
    left, steps = list(given), 0
    while left or not core.scheduler.idle:
        if left and (steps % every == 0 if every else core.scheduler.idle):
            core.add(left.pop(0))
        core.step()
        steps += 1
    model.engine.prefixes.clear()
    return [list(r.output_tokens) for r in given]


@pytest.mark.parametrize(
    ("preset", "count", "longest"), [("F16", 6, 41), *(slow((p, 200, 144)) for p in ("F16", "Q4_K_M", "IQ3_S", "Q8_0"))]
)
def test_together_and_alone(models: Callable[[str], Model], preset: str, count: int, longest: int) -> None:
    model = models(preset)
    together = texts(model, requests(model, count, longest), every=2)
    assert together == texts(model, requests(model, count, longest), every=0)
