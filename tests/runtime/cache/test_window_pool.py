"""Layers with a window keep the pages in its reach; results are those of layers that keep all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.bench import synthetic
from octavo.cli.inspect.facts import cache_bytes
from octavo.errors import UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.runtime.cache import window_pool
from octavo.runtime.cache.page_pool import PagePool, Sequence
from octavo.runtime.cache.window_pool import WindowPool, most_pages
from octavo.runtime.engine import engine as engines
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.sampling.sampler import SamplingParams
from tests.runtime.engine.test_core import request, run
from tests.runtime.sampling.test_device_sampling import Eager

WINDOW, CONTEXT, BATCH = 40, 640, 48
TOKENS = np.random.default_rng(0).integers(0, 300, CONTEXT).tolist()


@pytest.fixture(autouse=True)
def little_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_pool, "SLACK", 70)


def held(pool: WindowPool | None) -> int:
    assert pool is not None
    return pool.n_pages - pool.free


def test_a_sequence_has_the_pages_that_its_window_reaches() -> None:
    windows = WindowPool(WINDOW, most_pages(WINDOW, BATCH, CONTEXT))
    pool, sequence = PagePool(20, windows), Sequence()
    for length in range(BATCH, CONTEXT, BATCH):
        pool.grow(sequence, length)
        first = max(0, len(sequence) + 1 - WINDOW - window_pool.SLACK) // PAGE_SIZE
        assert held(windows) == len(sequence.window.pages) - first
        assert len(sequence.window.pages) == len(sequence.pages)
        own = sequence.window.pages[first:]
        assert len(set(own)) == len(own)
        sequence.tokens = [0] * length
    pool.release(sequence)
    assert held(windows) == 0


def test_going_back_further_than_the_window_is_kept_forgets_all() -> None:
    windows = WindowPool(WINDOW, 20)
    pool, sequence = PagePool(20, windows), Sequence()
    for length in (600, 640):
        pool.grow(sequence, length)
        sequence.tokens = [0] * length
    pool.shrink(sequence, 640 - window_pool.SLACK)
    assert len(sequence) == 640 - window_pool.SLACK
    pool.shrink(sequence, 400)
    assert (len(sequence), sequence.pages, held(windows)) == (0, [], 0)
    pool.grow(sequence, 100)
    assert held(windows) == 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """A Gemma 3 of two layers, of which the first has a window."""
    path: Path = tmp_path_factory.mktemp("windows") / "small.gguf"
    real = synthetic.SHAPES["gemma3-4b"]
    keys = {**real.keys, "attention.sliding_window": WINDOW, "attention.sliding_window_pattern": 2}
    small = replace(real, n_layer=2, n_embd=32, n_ff=32, n_head=2, n_head_kv=1, head_dim=16, n_vocab=300, keys=keys)
    synthetic.SHAPES["small"] = small
    try:
        synthetic.make("small", "F32", path)
    finally:
        del synthetic.SHAPES["small"]
    return read_model(GGUFFile.open(path))


def make_engine(
    model: ModelSpec, monkeypatch: pytest.MonkeyPatch, *, parted: bool, sequences: int = 1,
    backend: type[ReferenceBackend] = ReferenceBackend,
) -> Engine:
    monkeypatch.setattr(engines, "most_pages", most_pages if parted else lambda *sizes: 1 << 30)
    config = EngineConfig(n_ctx=CONTEXT, n_batch=BATCH, n_outputs=BATCH, max_sequences=sequences, cache_type="f32")
    made = Engine(model, [backend()], config)
    assert (made.pool.windows is not None) == parted
    return made


def fails(engine: Engine, sequence: Sequence) -> None:
    """A step that has got its pages, and then ends with an error."""
    with engine.appending([Feed(sequence, [1])]):
        engine.pool.grow(sequence, len(sequence) + BATCH)
        raise UsageError("no")


def test_logits_are_those_of_a_cache_that_keeps_all(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt in steps, replies of two sequences at once, and a step that fails."""
    found = []
    for parted in (True, False):
        engine = make_engine(model, monkeypatch, parted=parted, sequences=2)
        first, second = Sequence(), Sequence()
        logits = [engine.prefill(first, TOKENS[:500]), engine.prefill(second, TOKENS[100:330])]
        logits += [engine.step([Feed(first, [TOKENS[i]]), Feed(second, TOKENS[i : i + 2], 2)]) for i in range(3)]
        with pytest.raises(UsageError):
            fails(engine, first)
        logits.append(engine.step([Feed(first, TOKENS[7:9])]))
        found.append([np.atleast_2d(x) for x in logits])
    np.testing.assert_array_equal(np.concatenate(found[0]), np.concatenate(found[1]))


def test_caches_of_windows_do_not_grow_with_the_context(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(model, monkeypatch, parted=True)
    nodes = [n for n in engine.schedule.graph.nodes if not n.is_leaf]
    row = 2 * 16 * 4  # of keys and values, in float32
    rows = CONTEXT + most_pages(WINDOW, BATCH, CONTEXT) * PAGE_SIZE
    caches = {i for n in nodes for i in n.inputs if i.op == "cache"}
    assert sorted(str(c.shape[0]) for c in caches) == ["rows", "rows", "window_rows", "window_rows"]
    assert sum(engine.limits[str(c.shape[0])] for c in caches) * 16 * 4 == row * rows


def test_what_the_window_has_let_go_of_is_computed_again(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(model, monkeypatch, parted=True)
    sequence = Sequence()
    engine.prefill(sequence, TOKENS[:500])
    engine.pool.shrink(sequence, 200)
    again = engine.prefill(sequence, TOKENS[len(sequence) : 210])
    want = make_engine(model, monkeypatch, parted=False).logits(TOKENS[:210])[-1]
    np.testing.assert_allclose(again, want, rtol=1e-4, atol=1e-5)


def test_a_fork_has_pages_of_its_own(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(model, monkeypatch, parted=True, sequences=2)
    first = Sequence()
    engine.prefill(first, TOKENS[:300])
    second = engine.pool.fork(first)
    a, b = engine.step([Feed(first, [1]), Feed(second, [2])])
    plain = make_engine(model, monkeypatch, parted=False)
    for token, row in ((1, a), (2, b)):
        np.testing.assert_allclose(row, plain.logits([*TOKENS[:300], token])[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", [ReferenceBackend, Eager])
def test_requests_together(
    model: ModelSpec, monkeypatch: pytest.MonkeyPatch, backend: type[ReferenceBackend]
) -> None:
    """In steps as they are, and in those that are filled up; two prompts begin alike."""
    prompts = [TOKENS[:300], [*TOKENS[:280], 1, 2], TOKENS[77:90]]
    plain = EngineCore(make_engine(model, monkeypatch, parted=False))
    greedy = SamplingParams(temperature=0)
    alone = [run(plain, request(prompt, params=greedy))[0] for prompt in prompts]
    core = EngineCore(make_engine(model, monkeypatch, parted=True, sequences=3, backend=backend))
    assert run(core, *(request(prompt, params=greedy) for prompt in prompts)) == alone
    core.scheduler.forget()
    assert held(core.engine.pool.windows) == 0


@pytest.mark.parametrize("backend", [ReferenceBackend, Eager])
def test_a_prompt_of_more_pages_than_windows_have(
    model: ModelSpec, monkeypatch: pytest.MonkeyPatch, backend: type[ReferenceBackend]
) -> None:
    greedy = SamplingParams(temperature=0)
    plain = EngineCore(make_engine(model, monkeypatch, parted=False))
    core = EngineCore(make_engine(model, monkeypatch, parted=True, backend=backend))
    prompts = [TOKENS[:500], TOKENS[40:600]]
    assert run(core, *(request(p, params=greedy) for p in prompts)) == [
        run(plain, request(p, params=greedy))[0] for p in prompts
    ]


def test_what_inspect_says_of_the_cache(model: ModelSpec) -> None:
    rows = 22 * PAGE_SIZE, 11 * PAGE_SIZE  # of the layer that sees all, and of that with a window of 40
    assert cache_bytes(model.hparams, rows[0], "f32") == sum(rows) * 2 * 16 * 4
    assert cache_bytes(model.hparams, rows[1], "f32") == 2 * rows[1] * 2 * 16 * 4


def test_what_a_prompt_shares_with_the_sequence_that_ended_last_is_kept(
    model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, params = EngineCore(make_engine(model, monkeypatch, parted=True)), SamplingParams(temperature=0)
    first = request(TOKENS[:90], params=params)
    run(core, first)
    alone, again = (request([*TOKENS[:90], *first.output_tokens, 5], params=params) for _ in range(2))
    run(core, again)
    assert again.cached == 90 + len(first.output_tokens) - 1
    core.scheduler.forget()
    run(core, alone)
    assert (alone.cached, alone.output_tokens) == (0, again.output_tokens)
    other = request([*TOKENS[:90], 7], params=params)
    other.cache_salt = "another"
    run(core, other)
    assert other.cached == 0
