"""The engine: steps, what they refuse, and that refusing leaves everything as it was."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.errors import BackendError, ContextFullError, NonFiniteError, UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed, make_batch
from tests.runtime import tiny

MakeEngine = Callable[..., Engine]
TOKENS = np.random.default_rng(3).integers(0, tiny.N_VOCAB, 150).tolist()


def state(engine: Engine, sequence: Sequence) -> tuple[list[int], list[int], int]:
    return list(sequence.tokens), list(sequence.pages), engine.pool.free


@pytest.mark.parametrize("n_batch", [1, 7, 64, 149, 150, 512])
def test_a_prompt_in_pieces_is_the_prompt_at_once(make_engine: MakeEngine, n_batch: int) -> None:
    want = make_engine().logits(TOKENS)
    engine = make_engine(n_batch=n_batch)
    np.testing.assert_allclose(engine.logits(TOKENS), want, rtol=0, atol=2e-5)
    assert engine.pool.free == engine.pool.n_pages, "logits gives its pages back"
    sequence, seen = Sequence(), []
    last = engine.prefill(sequence, TOKENS, progress=seen.append)
    np.testing.assert_allclose(last, want[-1], rtol=0, atol=2e-5)
    assert seen == [min(n, 150) for n in range(n_batch, 150 + n_batch, n_batch)]
    assert sequence.tokens == TOKENS


def test_a_prompt_asks_for_its_last_logits_only(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = make_engine(n_batch=64), []
    executor = engine.load()
    plan = executor.plan

    def record(sizes: dict[str, int], wanted: Any) -> Any:
        asked.append((sizes["tokens"], sizes["outputs"]))
        return plan(sizes, wanted)

    monkeypatch.setattr(executor, "plan", record)
    engine.prefill(Sequence(), TOKENS)
    assert asked == [(64, 0), (64, 0), (22, 1)]


def test_f16_cache_is_close_to_f32(make_engine: MakeEngine) -> None:
    exact = make_engine(cache_type="f32").logits(TOKENS)
    rounded = make_engine(cache_type="f16").logits(TOKENS)
    assert 0 < np.abs(exact - rounded).max() < 5e-3 * np.abs(exact).max()


def test_a_full_context_leaves_the_sequence_as_it_was(make_engine: MakeEngine) -> None:
    engine = make_engine(n_ctx=70)
    sequence = Sequence()
    engine.step([Feed(sequence, TOKENS[:69])])
    before = state(engine, sequence)
    with pytest.raises(ContextFullError, match="71 tokens do not fit the context of 70"):
        engine.step([Feed(sequence, TOKENS[69:71])])
    with pytest.raises(ContextFullError, match="prompt of 119 tokens does not fit the context of 70"):
        engine.prefill(sequence, TOKENS[:50])
    with pytest.raises(ContextFullError, match="150 tokens do not fit"):
        engine.logits(TOKENS)
    assert state(engine, sequence) == before
    got = engine.step([Feed(sequence, TOKENS[69:70])])[0]
    np.testing.assert_allclose(got, make_engine().logits(TOKENS[:70])[-1], atol=2e-5)


def test_a_full_cache_leaves_every_sequence_as_it_was(make_engine: MakeEngine) -> None:
    engine = make_engine(n_ctx=2 * PAGE_SIZE, max_sequences=2)
    engine.pool.grow(Sequence(), PAGE_SIZE)  # somebody else's page: 3 are left
    first, second = Sequence(), Sequence()
    with pytest.raises(ContextFullError, match="KV cache is full"):
        engine.step([Feed(first, TOKENS[:100]), Feed(second, TOKENS[:100])])
    assert (first.pages, second.pages, engine.pool.free) == ([], [], 3)


@pytest.mark.parametrize(
    ("tokens", "outputs", "message"),
    [
        ([0, tiny.N_VOCAB], 1, r"token 260 is not in the vocabulary \(allowed: 0 to 259\)"),
        ([-1], 1, "token -1 is not in the vocabulary"),
        ([], 0, "a feed of 0 tokens"),
        ([1], 2, "1 tokens has 2 outputs"),
        ([1], -1, "1 tokens has -1 outputs"),
    ],
)
def test_wrong_feeds(make_engine: MakeEngine, tokens: list[int], outputs: int, message: str) -> None:
    engine = make_engine()
    sequence = Sequence()
    engine.step([Feed(sequence, [1, 2])])
    before = state(engine, sequence)
    with pytest.raises(UsageError, match=message):
        engine.step([Feed(sequence, tokens, outputs)])
    assert state(engine, sequence) == before


def test_wrong_steps(make_engine: MakeEngine) -> None:
    engine = make_engine(max_sequences=2, n_batch=4)
    same = Sequence()
    with pytest.raises(UsageError, match="0 sequences in a step"):
        engine.step([])
    with pytest.raises(UsageError, match=r"3 sequences in a step \(allowed: 1 to 2\)"):
        engine.step([Feed(Sequence(), [1])] * 3)
    with pytest.raises(UsageError, match="twice"):
        engine.step([Feed(same, [1]), Feed(same, [2])])
    with pytest.raises(UsageError, match=r"5 tokens in a step \(allowed: up to 4\)"):
        engine.step([Feed(same, [1, 2, 3, 4, 5])])
    with pytest.raises(UsageError, match="no tokens"):
        engine.logits([])
    with pytest.raises(UsageError, match="no tokens"):
        engine.prefill(same, [])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"n_ctx": -1}, "ctx is -1"),
        ({"n_ctx": 513}, r"ctx is 513, but the model was made for 512 tokens"),
        ({"n_batch": 0}, "n_batch is 0"),
        ({"max_sequences": -1}, "max_sequences is -1"),
    ],
)
def test_wrong_sizes(make_engine: MakeEngine, config: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_engine(**config)


def test_a_batch_is_laid_out_by_sequence() -> None:
    first = Sequence(pages=[2], tokens=[9, 9, 9])
    second = Sequence(pages=[0, 3], tokens=[9] * PAGE_SIZE)
    inputs, sizes = make_batch([Feed(first, [5, 6]), Feed(second, [7, 8, 9], outputs=2)], max_pages=3)
    want = {
        "tokens": [5, 6, 7, 8, 9],
        "positions": [3, 4, PAGE_SIZE, PAGE_SIZE + 1, PAGE_SIZE + 2],
        "rows": [2 * PAGE_SIZE + 3, 2 * PAGE_SIZE + 4, *range(3 * PAGE_SIZE, 3 * PAGE_SIZE + 3)],
        "starts": [0, 2, 5],
        "pages": [[2, 0, 0], [0, 3, 0]],
        "outputs": [1, 3, 4],
    }
    assert {name: value.tolist() for name, value in inputs.items()} == want
    assert sizes == {"tokens": 5, "outputs": 3, "sequences": 2, "boundaries": 3}


def broken(path: Path, name: str, value: float) -> GGUFFile:
    weights = tiny.tensors()
    weights[name].reshape(-1)[5] = value
    return GGUFFile.open(tiny.write(path / "broken.gguf", weights=weights))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "output.weight", "blk.0.attn_norm.weight"])
def test_non_finite_weights_warn_and_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, value: float
) -> None:
    with broken(tmp_path, name, value) as file:
        engine = Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64))
        with caplog.at_level(logging.WARNING, "octavo"):
            engine.load()
        assert [r.getMessage() for r in caplog.records] == [f"tensor {name} holds NaN or Inf"]
        sequence = Sequence()
        with pytest.raises(NonFiniteError, match=r"broken\.gguf: the model computed NaN or Inf"):
            engine.step([Feed(sequence, [1, 2, 3])])
        assert state(engine, sequence) == ([], [], engine.pool.n_pages)


def test_too_little_memory_is_an_error_of_ours(architecture: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise MemoryError

    engine = Engine(architecture, [ReferenceBackend()], EngineConfig(n_ctx=64))
    monkeypatch.setattr(np, "zeros", refuse)
    with pytest.raises(BackendError, match=r"not enough memory: 4,096 bytes wanted for a layer's KV cache"):
        engine.load()


def test_a_cache_of_bytes(make_engine: MakeEngine) -> None:
    of_page = 2 * 2 * PAGE_SIZE * tiny.N_HEAD_KV * tiny.HEAD_DIM * 4  # layers, keys and values
    engine = make_engine(kv_memory=3 * of_page + 5, max_sequences=4)
    assert (engine.pool.n_pages, engine.limits["rows"]) == (3, 3 * PAGE_SIZE)
    assert make_engine(kv_memory=of_page, cache_type="f16").pool.n_pages == 2
    with pytest.raises(UsageError, match=rf"kv_memory is 5 \(allowed: {of_page} or more\)"):
        make_engine(kv_memory=5)


def test_sequences_that_share_pages_are_those_computed_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(max_sequences=3)
    want = engine.logits([*TOKENS[:100], 5])[-2:]
    first = Sequence()
    engine.step([Feed(first, TOKENS[:90])])
    forks = [engine.pool.fork(first) for _ in range(2)]
    got = [engine.step([Feed(fork, TOKENS[90:100])]) for fork in forks]
    engine.step([Feed(first, [1, 2, 3])])
    got += [engine.step([Feed(fork, [5])]) for fork in forks]
    np.testing.assert_allclose(np.concatenate(got), want[[0, 0, 1, 1]], rtol=0, atol=2e-5)
    assert engine.pool.held == 4
