"""Drafts of models whose layers have states: what was refused has left nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from octavo.backends import select
from octavo.errors import NonFiniteError
from octavo.formats import dequantize
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import ModelSpec, read_model
from octavo.models.shared.decoder import Decoder
from octavo.models.shared.next_layer import head_of
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.sampling.sampler import SamplingParams
from octavo.runtime.scheduler.request import Request
from octavo.runtime.speculation.verification import NONE, Draft, Speculator
from tests.runtime.speculation.test_verification import request
from tests.runtime.stateful import SMALL, write
from tests.sampling import some

PROMPTS = [np.random.default_rng(i).integers(0, 300, n).tolist() for i, n in enumerate((7, 70, 23))]
PARAMS = [SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=1), SamplingParams(temperature=0.0)]
LENGTH = 40
pytestmark = pytest.mark.usefixtures("_free")


@pytest.fixture(scope="module", params=some(SMALL, 3))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelSpec]:
    with GGUFFile.open(write(request.param, tmp_path_factory.mktemp("states") / "small.gguf")) as file:
        yield read_model(file)


def made(model: ModelSpec, speculate: str) -> EngineCore:
    config = EngineConfig(
        n_ctx=128, n_batch=48, max_sequences=3, speculate=speculate, weight_cache=False,  # type: ignore[arg-type]
    )
    return EngineCore(Engine(model, select("cpu", 1), config))


def run(core: EngineCore) -> list[list[int]]:
    requests = [request(prompt, params, LENGTH) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    for one in requests:
        core.add(one)
    list(core.drain())
    states = core.engine.pool.states
    assert states is not None
    assert states.free == states.n_slots, "no slot is lost"
    return [list(one.output_tokens) for one in requests]


def teller(monkeypatch: pytest.MonkeyPatch, texts: list[list[int]]) -> None:
    """Have drafts made of what comes next, of which two thirds have a wrong token at some place."""
    rng = np.random.default_rng(0)

    def known(self: Speculator, one: Request) -> Draft:
        at = next(i for i, prompt in enumerate(PROMPTS) if prompt == list(one.prompt))
        draft = texts[at][one.num_output_tokens :][: 1 + int(rng.integers(7))]
        if draft and rng.random() < 0.67:
            wrong = int(rng.integers(len(draft)))
            draft[wrong] = (draft[wrong] + 1) % 300
        return Draft(draft) if draft else NONE

    monkeypatch.setattr(Speculator, "_known", known)


def test_the_same_text(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = made(model, "off")
    want = run(plain)
    teller(monkeypatch, want)
    core = made(model, "lookup")
    assert run(core) == want
    stats = core.stats()
    assert stats.drafted_tokens > stats.accepted_tokens > 20
    assert stats.steps < plain.stats().steps


@pytest.mark.few(1)
def test_another_prompt_goes_on_from_the_end(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state after a reply is kept, though drafts of it were longer than it, or were refused."""
    want = run(made(model, "off"))
    for end in range(20, 24):
        for wrong in (0, 3):  # the draft's token of this number
            def known(self: Speculator, one: Request, wrong: int = wrong) -> Draft:
                draft = want[0][one.num_output_tokens :][:5]
                return Draft([token + 1 if wrong and i == wrong else token for i, token in enumerate(draft)])

            monkeypatch.setattr(Speculator, "_known", known)
            core = made(model, "lookup")
            core.add(first := request(PROMPTS[0], PARAMS[0], end))
            list(core.drain())
            assert core.stats().accepted_tokens > 0
            core.draining = False
            core.add(second := request([*first.tokens, 1, 2, 3], PARAMS[0], 4))
            core.speculator = None
            list(core.drain())
            assert second.cached == len(first.tokens) - 1
            plain = made(model, "off")
            plain.add(third := request([*first.tokens, 1, 2, 3], PARAMS[0], 4))
            list(plain.drain())
            assert list(third.output_tokens) == list(second.output_tokens)


def test_a_head_of_such_a_model(tmp_path: Path) -> None:
    """Qwen3.5's layer that guesses tokens, with random weights."""
    rng = np.random.default_rng(0)
    with GGUFFile.open(write("qwen3.5-9b", tmp_path / "plain.gguf")) as file:
        spec = read_model(file)
        network, hp = spec.architecture.network, spec.hparams
        assert isinstance(network, Decoder)
        n, width = hp.n_layer, hp.n_embd
        shapes = {name: want.shape for name, want in network.layer_tensors(hp, n).items() if not want.optional}
        shapes |= {f"nextn.{name}.weight": (width,) for name in ("enorm", "hnorm", "shared_head_norm")}
        shapes["nextn.eh_proj.weight"] = width, 2 * width
        block = {f"blk.{n}.{name}": rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        stored = {name: dequantize(file.tensor(name)) for name in file.tensors}
        keys = {key: file.metadata[key] for key in file.metadata if not key.startswith("general.")}
        more = {"qwen35.block_count": n + 1, "qwen35.nextn_predict_layers": 1}
        write_gguf(tmp_path / "m.gguf", "qwen35", keys | more, stored | block)
        want = run(made(spec, "off"))
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        spec = read_model(file)
        head, config = head_of(spec), EngineConfig(n_ctx=128, n_batch=48, max_sequences=3, speculate="mtp")
        assert head is not None
        backends = select("cpu", 1)
        engine = Engine(spec, backends, config, head=head)
        core = EngineCore(engine, head=Engine(head, backends, config, shares=engine))
        assert run(core) == want
        assert core.stats().drafted_tokens > 0


def test_after_a_step_that_failed(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """States are as they were before it."""
    want = run(made(model, "off"))
    teller(monkeypatch, want)
    core, calls = made(model, "lookup"), 0
    step = core.sampler.step

    def failing(*of: object) -> object:
        nonlocal calls
        found = step(*of)  # type: ignore[arg-type]
        calls += len(of) > 2
        if len(of) > 2 and calls % 3 == 1:
            raise NonFiniteError("no")
        return found

    monkeypatch.setattr(core.sampler, "step", failing)
    assert run(core) == want
    assert calls > 5
