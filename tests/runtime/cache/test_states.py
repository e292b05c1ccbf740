"""Layers with states: what sequences give together, in steps, as forks and after failures is what each does alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.cli.inspect.facts import cache_bytes, facts, lines, size, state_bytes
from octavo.errors import CacheFullError, UsageError
from octavo.formats.spec import F32
from octavo.graph.node import PAGE_SIZE
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.models.shared.states import Hybrid
from octavo.runtime.cache.page_pool import Sequence, page_bytes
from octavo.runtime.cache.state_pool import slots_for
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.sampling.sampler import SamplingParams
from octavo.runtime.token_vectors import VectorSteps
from tests.runtime.engine.test_core import request, run
from tests.runtime.sampling.test_device_sampling import Eager
from tests.runtime.stateful import SMALL, write
from tests.sampling import some

CONTEXT, BATCH = 320, 48
TOKENS = np.random.default_rng(0).integers(0, 300, CONTEXT).tolist()
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module", params=some(SMALL, 3))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder: Path = tmp_path_factory.mktemp("states")
    return read_model(GGUFFile.open(write(request.param, folder / "small.gguf")))


def make_engine(model: ModelSpec, sequences: int = 1, backend: type[ReferenceBackend] = ReferenceBackend) -> Engine:
    config = EngineConfig(
        n_ctx=CONTEXT, n_batch=BATCH, n_outputs=BATCH, max_sequences=sequences, cache_type="f32", speculate="lookup"
    )
    return Engine(model, [backend()], config)


def free_slots(engine: Engine) -> int:
    assert engine.pool.states is not None
    return engine.pool.states.n_slots - engine.pool.states.free


def one_by_one(engine: Engine, tokens: list[int]) -> F32:
    """The logits after each of `tokens`, in a sequence of their own."""
    sequence = Sequence()
    found = [engine.step([Feed(sequence, [token])])[0] for token in tokens]
    engine.pool.release(sequence)
    return np.stack(found)


def fails(engine: Engine, feeds: list[Feed]) -> None:
    """A step that is computed, and then ends with an error."""
    with engine.appending(feeds):
        engine.compute(feeds)
        raise UsageError("no")


def close(found: F32, want: F32) -> None:
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=5e-5)  # of values up to 5


def test_sequences_together_and_in_steps(model: ModelSpec) -> None:
    """Replies beside prompts, and prompts of a few tokens, which are fewer than a state keeps."""
    engine = make_engine(model, 3)
    want = one_by_one(engine, TOKENS[:90]), one_by_one(engine, TOKENS[100:160])
    first, second = Sequence(), Sequence()
    found = engine.step([Feed(first, TOKENS[:45], 40), Feed(second, TOKENS[100:102], 2)])
    close(found, np.concatenate([want[0][5:45], want[1][:2]]))
    found = engine.step([Feed(second, TOKENS[102:103]), Feed(first, TOKENS[45:48], 3)])
    close(found, np.concatenate([want[1][2:3], want[0][45:48]]))
    found = engine.step([Feed(first, TOKENS[48:49]), Feed(second, TOKENS[103:104])])
    close(found, np.stack([want[0][48], want[1][3]]))
    found = engine.step([Feed(first, TOKENS[49:72]), Feed(second, TOKENS[104:128])])
    close(found, np.stack([want[0][71], want[1][27]]))


def test_a_sequence_is_as_it_was_after_a_step_that_failed(model: ModelSpec) -> None:
    engine, sequence = make_engine(model), Sequence()
    engine.prefill(sequence, TOKENS[:60])
    with pytest.raises(UsageError):
        fails(engine, [Feed(sequence, [1, 2, 3])])
    assert sequence.tokens == TOKENS[:60]
    close(engine.step([Feed(sequence, TOKENS[60:61])])[0], one_by_one(engine, TOKENS[:61])[-1])


def test_going_back_is_going_on_from_there(model: ModelSpec) -> None:
    engine, sequence = make_engine(model), Sequence()
    engine.prefill(sequence, TOKENS[:130])
    engine.pool.shrink(sequence, 70)
    close(engine.prefill(sequence, [5, 6]), one_by_one(engine, [*TOKENS[:70], 5, 6])[-1])


def test_a_slot_given_back_begins_anew(model: ModelSpec) -> None:
    engine = make_engine(model)
    want = engine.logits(TOKENS[:20])
    engine.logits(TOKENS[20:90])
    np.testing.assert_array_equal(engine.logits(TOKENS[:20]), want)
    assert free_slots(engine) == 0


def test_a_fork_has_a_state_of_its_own(model: ModelSpec) -> None:
    engine, first = make_engine(model, 2), Sequence()
    engine.prefill(first, TOKENS[:70])
    second = engine.pool.fork(first)
    a, b = engine.step([Feed(first, [1]), Feed(second, [2])])
    for token, row in ((1, a), (2, b)):
        close(row, one_by_one(make_engine(model), [*TOKENS[:70], token])[-1])


def test_slots_are_as_many_as_there_are(model: ModelSpec) -> None:
    engine = make_engine(model)
    held = [Sequence() for _ in range(slots_for(1))]
    for sequence in held:
        engine.step([Feed(sequence, [1])])
    with pytest.raises(CacheFullError, match="no slot left"):
        engine.step([Feed(Sequence(), [1])])
    engine.pool.release(held[0])
    engine.step([Feed(Sequence(), [1])])


@pytest.mark.parametrize("backend", [ReferenceBackend, Eager])
def test_requests_together(model: ModelSpec, backend: type[ReferenceBackend]) -> None:
    """In steps as they are, and in those that are filled up; two prompts begin alike, and one request has a sibling."""
    prompts = [TOKENS[:130], [*TOKENS[:110], 1, 2], TOKENS[77:90]]
    alone = [run(EngineCore(make_engine(model)), request(p, params=GREEDY))[0] for p in prompts]
    core = EngineCore(make_engine(model, 4, backend))
    core.warm_up()
    last, sibling = (request(prompts[2], params=GREEDY) for _ in range(2))
    last.siblings.append(sibling)
    others = [request(prompt, params=GREEDY) for prompt in prompts[:2]]
    assert run(core, *others, last) == alone
    assert list(sibling.output_tokens) == alone[2]
    core.scheduler.forget()
    assert free_slots(core.engine) == 0


def test_requests_that_give_way(model: ModelSpec) -> None:
    """Pages are too few for all, so that some are computed again; one is cancelled."""
    prompts = [TOKENS[i : i + 60] for i in range(0, 120, 30)]
    alone = [run(EngineCore(make_engine(model)), request(p, 20, params=GREEDY))[0] for p in prompts]
    engine = Engine(model, [ReferenceBackend()], EngineConfig(n_ctx=CONTEXT, n_batch=BATCH, max_sequences=4, n_pages=5))
    core, gone = EngineCore(engine), request(TOKENS[:50], 20, params=GREEDY)
    core.add(gone)
    core.step()
    core.cancel(gone)
    assert run(core, *(request(p, 20, params=GREEDY) for p in prompts)) == alone
    assert core.scheduler.preemptions
    core.scheduler.forget()
    assert free_slots(engine) == 0


@pytest.mark.parametrize("backend", [ReferenceBackend, Eager])
def test_a_conversation_goes_on(model: ModelSpec, backend: type[ReferenceBackend]) -> None:
    """With all of it, nothing is computed twice; where its end is another one, what comes after the last mark."""
    core = EngineCore(make_engine(model, backend=backend))
    first = request(TOKENS[:150], params=GREEDY)
    run(core, first)
    alone, again = (request([*TOKENS[:150], *first.output_tokens, 5], params=GREEDY) for _ in range(2))
    run(core, again)
    assert again.cached == 150 + len(first.output_tokens) - 1
    core.engine.prefixes.clear()
    run(core, alone)
    assert (alone.cached, alone.output_tokens) == (0, again.output_tokens)
    other, plain = (request([*TOKENS[:145], 7, 8, 9], params=GREEDY) for _ in range(2))
    run(core, other)
    assert other.cached == 2 * PAGE_SIZE
    assert run(EngineCore(make_engine(model)), plain)[0] == list(other.output_tokens)


def test_prompts_that_begin_alike(model: ModelSpec) -> None:
    """The second one keeps a state where the first went on otherwise, and the third one begins there."""
    core = EngineCore(make_engine(model, 2))
    prompts = [[*TOKENS[:140], *[i] * 80] for i in (1, 2, 3)]
    requests = [request(p, params=GREEDY) for p in prompts]
    for each in requests:
        run(core, each)
    assert [r.cached for r in requests] == [0, 0, 2 * PAGE_SIZE]
    for each, prompt in zip(requests, prompts, strict=True):
        assert run(EngineCore(make_engine(model)), request(prompt, params=GREEDY))[0] == list(each.output_tokens)


def test_a_prompt_waits_for_a_state_that_is_coming(model: ModelSpec) -> None:
    core = EngineCore(make_engine(model, 2))
    first, second = (request([*TOKENS[:150], i], params=GREEDY) for i in (1, 2))
    run(core, first, second)
    assert (first.cached, second.cached) == (0, 2 * PAGE_SIZE)


@pytest.mark.few(2)
def test_conversations_in_turn(model: ModelSpec) -> None:
    """More of them than states are kept: who was away for long begins again, and none gets another's."""
    core, lengths = EngineCore(make_engine(model)), [10, 20, 30]
    told = [TOKENS[i : i + 40] for i in range(0, 240, 30)]
    for turn, length in enumerate(lengths):
        for i in range(len(told)):
            this = request([*told[i], *TOKENS[: length + i]], params=GREEDY)
            run(core, this)
            want = run(EngineCore(make_engine(model)), request(this.prompt, params=GREEDY))
            assert [list(this.output_tokens)] == want
            assert this.cached == 0 or turn
            told[i] = list(this.tokens)
    assert core.engine.pool.states is not None
    assert core.engine.pool.states.kept <= slots_for(1)
    core.engine.prefixes.clear()
    assert core.engine.pool.states.kept == free_slots(core.engine) == 0
    assert core.engine.pool.empty == core.engine.pool.n_pages


def test_a_state_that_is_gone_is_computed_again(model: ModelSpec) -> None:
    """It is found, and its slot is taken before the sequence gets one."""
    core = EngineCore(make_engine(model))
    first = request(TOKENS[:70], params=GREEDY)
    run(core, first)
    sequence, states = core.engine.prefixes.match_prefix([*first.tokens, 5]), core.engine.pool.states
    assert states is not None
    assert sequence.tokens == first.tokens[:-1]
    for slot in [states.take() for _ in range(states.free)]:
        states.give_back(slot)
    found = core.engine.step([Feed(sequence, [first.tokens[-1]])])[0]
    close(found, one_by_one(make_engine(model), first.tokens)[-1])


def test_an_interrupted_step_is_computed_again(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    want = run(EngineCore(make_engine(model)), request(TOKENS[:70], params=GREEDY))
    core = EngineCore(make_engine(model))
    going = request(TOKENS[:70], params=GREEDY)
    core.add(going)
    core.step()
    core.step()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(core, "_commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            core.step()
    assert run(core) == []
    assert [list(going.output_tokens)] == want


def test_a_step_of_several_that_fails_is_computed_one_by_one(
    model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it has changed their states."""
    prompts = [TOKENS[:60], TOKENS[90:110]]
    alone = [run(EngineCore(make_engine(model)), request(p, params=GREEDY))[0] for p in prompts]
    core = EngineCore(make_engine(model, 2))
    compute, failures = core.sampler.step, [1]

    def step(feeds: list[Feed], *more: object) -> object:
        found = compute(feeds, *more)  # type: ignore[arg-type]
        if failures and len(feeds) == 2 and len(feeds[0].sequence):
            failures.clear()
            raise UsageError("no")
        return found

    monkeypatch.setattr(core.sampler, "step", step)
    assert run(core, *(request(p, params=GREEDY) for p in prompts)) == alone
    assert not failures


def test_vectors_of_texts(model: ModelSpec) -> None:
    engine = make_engine(model, 2)
    texts = [TOKENS[:30], TOKENS[40:130], TOKENS[3:9]]
    steps = VectorSteps(engine)
    together = engine.thread.finish(steps.computed(texts, lambda: BATCH))
    for text, rows in zip(texts, together, strict=True):
        (alone,) = engine.thread.finish(steps.computed([text], lambda: 7))
        close(rows, alone)
    assert free_slots(engine) == 0


def test_memory_is_counted(model: ModelSpec) -> None:
    hp = model.hparams
    assert isinstance(hp, Hybrid)
    state = 4 * 2 * hp.layer_state  # of two layers
    keys_and_values = 2 * hp.n_head_kv * hp.head_dim * 4
    assert cache_bytes(hp, 128, "f32") == 128 * keys_and_values
    assert state_bytes(hp) == state * slots_for(1)
    assert f"{size(state * slots_for(1))} of states" in lines(facts(model.file, 128, device="cpu"))["memory"]
    engine = make_engine(model)
    assert page_bytes(engine.graph) == PAGE_SIZE * keys_and_values
    least = page_bytes(engine.graph) + state * slots_for(1)
    config = EngineConfig(n_ctx=CONTEXT, n_batch=BATCH, cache_type="f32", kv_memory=least)
    pages = 1 if keys_and_values else CONTEXT // PAGE_SIZE  # which take nothing where no layer attends
    assert Engine(model, [ReferenceBackend()], config).pool.n_pages == pages
    with pytest.raises(UsageError, match=f"{least:}"):
        Engine(model, [ReferenceBackend()], replace(config, kv_memory=least - 1))
