"""Tokens chosen where the logits are: the same ones as from all logits, with a step under way while one is read."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.errors import ContextFullError, NonFiniteError
from octavo.formats.spec import AnyArray
from octavo.graph.node import PAGE_SIZE
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.loading import open_model
from octavo.runtime.sampling.greedy import greedy
from tests.runtime import tiny

TOKENS = np.random.default_rng(3).integers(0, tiny.N_VOCAB, 150).tolist()


class Eager(ReferenceBackend):
    """The reference backend as one whose steps may begin before the one before is read; `reads` says what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, ...]] = []

    def begin_read(self, value: AnyArray) -> Callable[[], AnyArray]:
        self.reads.append(value.shape)
        copied = value.copy()
        return lambda: copied

    def copy(self, target: AnyArray, source: AnyArray, places: Sequence_[int] | None = None) -> None:
        found = source if places is None else source[list(places)]
        target.reshape(-1)[: found.size] = found.reshape(-1)


@pytest.fixture
def engines(architecture: ModelSpec) -> Callable[..., tuple[Engine, Engine, Eager]]:
    def make(**config: Any) -> tuple[Engine, Engine, Eager]:
        eager, settings = Eager(), EngineConfig(**{"n_ctx": 300, "max_sequences": 2, **config})
        return Engine(architecture, [ReferenceBackend()], settings), Engine(architecture, [eager], settings), eager

    return make


def take(engine: Engine, feeds: list[Feed], n: int) -> list[list[int]]:
    with closing(greedy(engine, feeds)) as chosen:
        return list(islice(chosen, n))


@pytest.mark.parametrize("lengths", [(5,), (1, 90)])
def test_greedy_is_the_largest_logit_again_and_again(engines: Any, lengths: tuple[int, ...]) -> None:
    plain, eager, backend = engines()
    runs = []
    for engine in (plain, eager):
        sequences = [Sequence() for _ in lengths]
        feeds = [Feed(s, TOKENS[:n]) for s, n in zip(sequences, lengths, strict=True)]
        runs.append((take(engine, feeds, 70), [s.tokens for s in sequences], engine.pool.free))
        assert [len(s.pages) for s in sequences] == [-(-len(s) // PAGE_SIZE) for s in sequences]
    assert runs[0] == runs[1]
    assert not plain.finds_candidates
    assert eager.finds_candidates
    assert {shape[1] for shape in backend.reads} == {3}, "no logits were read"


def test_another_step_between_two_tokens(engines: Any) -> None:
    plain, eager, _ = engines()
    want = take(plain, [Feed(Sequence(), TOKENS[:9])], 6)
    got = []
    with closing(greedy(eager, [Feed(Sequence(), TOKENS[:9])])) as chosen:
        for _ in range(6):
            got.append(next(chosen))
            eager.step([Feed(Sequence(), [7])])
    assert got == want


def test_greedy_ends_where_the_context_is_full(engines: Any) -> None:
    for engine in engines(n_ctx=12)[:2]:
        sequence = Sequence()
        with closing(greedy(engine, [Feed(sequence, TOKENS[:9])])) as chosen:
            assert len([next(chosen) for _ in range(4)]) == 4
            with pytest.raises(ContextFullError, match="13 tokens do not fit the context of 12"):
                next(chosen)
        assert len(sequence) == 12


def test_what_is_not_finite_is_found_without_the_logits(tmp_path: Any) -> None:
    weights = tiny.tensors()
    weights["output.weight"].reshape(-1)[5] = np.nan
    with GGUFFile.open(tiny.write(tmp_path / "broken.gguf", weights=weights)) as file:
        engine, sequence = Engine(read_model(file), [Eager()], EngineConfig(n_ctx=64)), Sequence()
        with pytest.raises(NonFiniteError, match=r"broken\.gguf: the model computed NaN or Inf"):
            next(greedy(engine, [Feed(sequence, [1, 2, 3])]))
        assert (sequence.tokens, sequence.pages) == ([], [])


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "repeat_penalty": 1.3},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "seed": 4},
        {"temperature": 1.5, "top_k": 0, "seed": 4},
    ],
)
def test_replies_do_not_depend_on_where_tokens_are_chosen(random_path: str, sampling: dict[str, Any]) -> None:
    replies = []
    for backend in (ReferenceBackend(), Eager()):
        with open_model(random_path, [backend], EngineConfig(n_ctx=64)) as model:
            generation = model.generate([1, 2, 3], max_tokens=30, **sampling)
            first = "".join(generation)
            again = "".join(model.generate([1, 2, 3, 4], max_tokens=5, temperature=0))
            replies.append((first, generation.tokens, generation.finish_reason, again, model.engine.pool.free))
    assert replies[0] == replies[1]


def test_turns_of_generations_whose_tokens_are_chosen_ahead(random_path: str) -> None:
    prompts = ([1, 2, 3], [1, 2, 9, 4])
    with open_model(random_path, [Eager()], EngineConfig(n_ctx=64)) as model:
        alone = [model.generate(p, max_tokens=5, temperature=0) for p in prompts]
        for generation in alone:
            list(generation)
        turns = [model.generate(p, max_tokens=5, temperature=0) for p in prompts]
        left = list(turns)
        while left:
            left = [generation for generation in left if next(generation, None) is not None]
            model.logits([5])  # takes the only page
        assert [g.tokens for g in turns] == [g.tokens for g in alone]
        first, second = (model.generate(prompts[0], max_tokens=5, temperature=0) for _ in range(2))
        next(first), next(first), next(second)
        first.close()
        assert second.text == alone[0].text_so_far
