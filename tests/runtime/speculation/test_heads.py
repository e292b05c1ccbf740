"""Drafts by a layer that guesses tokens: the same tokens as without, in fewer steps where it is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.errors import BackendError, HostMemoryError, ModelError, UsageError
from octavo.io.gguf import GGUFFile
from octavo.io.system_memory import Room
from octavo.models import read_model
from octavo.models.shared.next_layer import head_of
from octavo.runtime import loading
from octavo.runtime.cache.hidden_rows import BEYOND, MOST, HiddenRows
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.grammar.grammar import Grammar, Grammars
from octavo.runtime.loading import open_model
from octavo.runtime.sampling.sampler import SamplingParams
from octavo.runtime.scheduler.request import Request
from octavo.runtime.speculation import open_draft
from octavo.runtime.speculation.head_drafter import CATCH_UP, HeadDrafter
from octavo.runtime.speculation.layered_drafter import needed_by
from octavo.runtime.speculation.open_head import own_head
from octavo.server.worker import info_of
from tests.runtime import tiny
from tests.runtime.speculation.heads import block, blocks, several, write_head, write_with_head
from tests.runtime.speculation.test_verification import DRAWN, GREEDY, PENALTY, PROMPTS, replies, request

HOT = SamplingParams(temperature=1.0, seed=11)
LONG = np.random.default_rng(0).integers(0, 256, 3 * CATCH_UP).tolist()


def engines(path: str, **config: Any) -> tuple[Engine, Engine]:
    """A model's engine, and that of the head in its file."""
    file = GGUFFile.open(path)
    main = read_model(file)
    head = head_of(main)
    assert head is not None
    options = EngineConfig(**{"n_ctx": 256, "cache_type": "f32", "speculate": "mtp", **config})
    engine = Engine(main, [ReferenceBackend()], options, head=head)
    return engine, Engine(head, [ReferenceBackend()], options, shares=engine)


@pytest.fixture(scope="module")
def random_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_with_head(tmp_path_factory.mktemp("heads") / "random.gguf", tiny.tensors(), block())


@pytest.fixture(scope="module")
def alphabet_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    weights = tiny.alphabet(endless=True)
    return write_with_head(tmp_path_factory.mktemp("heads") / "alphabet.gguf", weights, block(exact=True))


@pytest.fixture
def plain(random_path: str) -> Iterator[Engine]:
    with GGUFFile.open(random_path) as file:
        config = EngineConfig(n_ctx=256, cache_type="f32", max_sequences=4)
        yield Engine(read_model(file), [ReferenceBackend()], config)


@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize("params", [GREEDY, DRAWN, HOT, PENALTY])
def test_the_same_tokens(random_path: str, plain: Engine, params: SamplingParams) -> None:
    """Greedy and sampled, several at once, and again with prompts that are in the cache."""
    prompts = (*PROMPTS, LONG)
    _, want = replies(plain, *(request(p, params) for p in prompts))
    engine, head = engines(random_path, max_sequences=4)
    core = EngineCore(engine, head=head)
    for _ in range(2):
        requests = [request(p, params) for p in prompts]
        for one in requests:
            core.add(one)
        while not core.scheduler.idle:
            core.step()
        assert [list(one.output_tokens) for one in requests] == want
    assert core.stats().drafted_tokens > 0
    assert core.stats().cached_tokens > 0


@pytest.mark.usefixtures("_free")
def test_nothing_is_drafted_behind_an_end(alphabet_path: str) -> None:
    """A draft stops before the token that ends the reply."""
    engine, head = engines(alphabet_path)
    core, one = EngineCore(engine, head=head), request(list(b"pqrs"), GREEDY, stop_ids=frozenset(b"y"))
    core.add(one)
    list(core.drain())
    assert bytes(one.output_tokens) == b"tuvwxy"
    assert one.drafts.drafted == one.drafts.accepted > 0


@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize("params", [GREEDY, DRAWN])
def test_a_head_that_is_right_takes_few_steps(alphabet_path: str, params: SamplingParams) -> None:
    engine, head = engines(alphabet_path, max_sequences=2)
    core, texts = replies(engine, request([97], params, 60), request([105], params, 60), head=head)
    letters = [tiny.ALPHABET[(i + 1) % 26] for i in range(60)]
    assert bytes(texts[0]).decode() == "".join(letters)
    stats = core.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 0
    assert stats.steps < 60 * 0.4


@pytest.mark.usefixtures("_free")
def test_it_reads_true_hidden_states_in_place_of_drafted_ones(random_path: str) -> None:
    """After wrong drafts it guesses what it would have if there had been none before."""
    engine, head = engines(random_path)
    core = EngineCore(engine, head=head)
    core.add(one := request(LONG, most=24))
    seen: list[tuple[int, list[int]]] = []
    drafter = core.speculator.drafters[0]  # type: ignore[union-attr]
    drafts = drafter.drafts

    def watched(lengths: dict[Request, int]) -> dict[Request, list[int]]:
        found = drafts(lengths)
        seen.append((len(one.tokens), found[one]))
        return found

    drafter.drafts = watched  # type: ignore[method-assign]
    list(core.drain())
    assert len(seen) > 5
    text = list(one.tokens)
    for n, found in (seen[1], seen[-1]):
        engine, head = engines(random_path)
        fresh = request(text[:n])
        engine.prefill(fresh.sequence, text[: n - 1])
        assert HeadDrafter(head, 260).drafts({fresh: len(found)})[fresh] == found


@pytest.mark.usefixtures("_free")
def test_pages_of_the_head_are_given_back(random_path: str) -> None:
    engine, head = engines(random_path, max_sequences=3)
    core, _ = replies(engine, *(request(p) for p in PROMPTS), head=head)
    assert head.pool.held > 0
    core.speculator.drafters[0].drafts({})  # type: ignore[union-attr]
    assert head.pool.held == 0


@pytest.mark.usefixtures("_free")
def test_where_the_head_has_no_room(random_path: str, plain: Engine) -> None:
    _, want = replies(plain, *(request(p, most=60) for p in (*PROMPTS, LONG)))
    engine, _ = engines(random_path, max_sequences=4)
    _, small = engines(random_path, max_sequences=4, n_pages=2)
    core, got = replies(engine, *(request(p, most=60) for p in (*PROMPTS, LONG)), head=small)
    assert got == want
    assert core.stats().drafts > 0


@pytest.mark.usefixtures("_free")
def test_a_head_that_fails_makes_no_more_drafts(
    random_path: str, plain: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, want = replies(plain, request(PROMPTS[2]))
    engine, head = engines(random_path)

    def fails(*_: object, **__: object) -> None:
        raise BackendError("the device is gone")

    monkeypatch.setattr(head, "launch", fails)
    _, got = replies(engine, request(PROMPTS[2]), head=head)
    assert got == want
    assert caplog.messages == ["the head makes no more drafts: the device is gone"]


@pytest.mark.usefixtures("_free")
def test_preempted_requests_and_siblings(random_path: str, plain: Engine) -> None:
    """Where pages run out requests are computed again; replies to one prompt share it."""
    def all_of(engine: Engine, **more: Any) -> list[list[int]]:
        first = request(PROMPTS[0], HOT, 40)
        first.siblings = [request(PROMPTS[0], SamplingParams(temperature=1.0, seed=s), 40) for s in (1, 2)]
        core = EngineCore(engine, **more)
        others = [request(LONG, most=60), request(LONG[:50], most=60)]
        siblings = list(first.siblings)
        for one in (first, *others):
            core.add(one)
        while not core.scheduler.idle:
            core.step()
        return [list(one.output_tokens) for one in (first, *siblings, *others)]

    engine, head = engines(random_path, max_sequences=4, n_pages=5)
    assert all_of(engine, head=head) == all_of(plain)


@pytest.mark.few(1)
@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize("at_once", [1, 16])
def test_on_the_cpu_bit_for_bit(tmp_path: Path, at_once: int) -> None:
    """Greedy, seeded, with penalties, log-probabilities and grammars; the head is often right, and often not."""
    head = block(exact=True)
    joined = head["blk.2.nextn.eh_proj.weight"]
    joined += 0.2 * np.random.default_rng(5).standard_normal(joined.shape).astype(np.float32)
    path = write_with_head(tmp_path / "m.gguf", tiny.alphabet(endless=True), head)
    found, counts = [], []
    for how in ("off", "mtp"):
        with octavo.load(
            path, device="cpu", threads=1, n_ctx=128, max_sequences=at_once, speculate=how, weight_cache=False
        ) as model:
            grammars, made = Grammars(model.tokenizer), list[Request]()
            for i in range(16):
                params = SamplingParams(temperature=(i % 4) * 1.2, seed=i, frequency_penalty=0.1 * (i % 3))
                more: dict[str, Any] = {"logprobs": 2} if i % 5 == 1 else {}
                if i % 5 == 2:
                    more["constraint"] = grammars.constraint(Grammar.regex("[a-z ]{20}"))
                made.append(request([97 + i, 98 + i], params, 30, **more))
                model.core.add(made[-1])
            outputs = model.core.drain()
            shown = [(made.index(o.request), o.token, o.logprobs) for o in outputs if o.token is not None]
            found.append(sorted(shown, key=lambda one: one[0]))
            counts.append(model.core.stats())
    assert found[0] == found[1]
    assert counts[1].accepted_tokens > 40  # how many drafts there are depends on when masks of grammars are ready
    assert counts[1].drafted_tokens > counts[1].accepted_tokens + 20
    assert at_once > 1 or counts[1].steps < counts[0].steps  # of replies at once the slowest decides


@pytest.mark.slow
@pytest.mark.usefixtures("_free")
def test_on_a_gpu(alphabet_path: str) -> None:
    """Its kernels, interpreted, in steps that are padded."""
    config = EngineConfig(n_ctx=64, max_sequences=2, speculate="auto")
    with open_model(alphabet_path, [GpuBackend()], config) as model:
        assert model.head is not None
        assert model.engine.config.speculate == "draft"
        core, texts = replies(
            model.engine, *(request([97 + i], most=20) for i in range(2)), n_known=260, head=model.head
        )
        assert [bytes(text).decode() for text in texts] == [tiny.ALPHABET[1:21], tiny.ALPHABET[2:22]]
        assert core.stats().accepted_tokens == core.stats().drafted_tokens > 5


def test_rows() -> None:
    rows = HiddenRows()
    values = np.arange(40, dtype=np.float32).reshape(20, 2)
    rows.put(0, values[:5])
    assert rows.take(4)[0] == 0
    assert rows.take(5) == (3, rows.rows) or rows.start == 4
    rows.put(5, values[5:8])
    start, found = rows.take(7)
    assert start == 4
    assert np.array_equal(np.stack(found), values[4:7])
    rows.put(7, values[17:18])  # in place of what was refused
    assert np.array_equal(np.stack(rows.take(8)[1]), values[[6, 17]])
    rows.put(12, values[12:14])
    assert rows.start == 12
    assert rows.take(11) == (11, [])
    rows.put(14, np.zeros((MOST, 2), np.float32))
    assert (rows.start, len(rows.rows)) == (14, MOST)
    for i in range(BEYOND + 1):
        assert len(rows.rows) == MOST + i
        rows.add(14 + MOST + i, values[0])
    assert (rows.start, len(rows.rows)) == (14 + BEYOND + 1, MOST)
    rows.add(rows.start + 5, values[1])
    assert np.array_equal(np.stack(rows.rows)[5:], values[1:2])


def test_loading(alphabet_path: str, tmp_path: Path) -> None:
    """By default a file's own head drafts; off and lookup leave it out; a head may be in a file of its own."""
    tiny.write(tmp_path / "m.gguf", weights=tiny.alphabet(endless=True))
    head = write_head(tmp_path / "head.gguf", block(exact=True))
    given: list[tuple[str, dict[str, Any]]] = [
        (alphabet_path, {}), (alphabet_path, {"speculate": "mtp"}), (str(tmp_path / "m.gguf"), {"draft": head}),
        (str(tmp_path / "m.gguf"), {"draft": head, "speculate": "draft"}),
        (str(tmp_path / "m.gguf"), {"draft": head, "speculate": "mtp"}),
    ]
    for path, options in given:
        with octavo.load(path, device="reference", n_ctx=256, **options) as model:
            assert model.head is not None
            assert model.generate("abc", raw=True, max_tokens=30, temperature=0.0).text.startswith("defghijk")
    for how in ("off", "lookup"):
        with octavo.load(alphabet_path, device="reference", n_ctx=256, speculate=how) as model:
            assert model.head is None
    with pytest.raises(ModelError, match=r"no layer that guesses tokens .MTP., or none that can be computed"):
        octavo.load(tmp_path / "m.gguf", device="reference", speculate="mtp")
    with pytest.raises(UsageError, match=r"speculate is mtp, but .*m.gguf is a draft model, no head .allowed: auto"):
        octavo.load(alphabet_path, device="reference", speculate="mtp", draft=tmp_path / "m.gguf")


def test_what_drafts_is_logged(alphabet_path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny.write(tmp_path / "m.gguf", weights=tiny.alphabet(endless=True))
    head = write_head(tmp_path / "head.gguf", block(exact=True))
    model = str(tmp_path / "m.gguf")
    told: list[tuple[str, dict[str, Any], str]] = [
        (alphabet_path, {}, "grammars, the text, replies before, the model's own layer (MTP)"),
        (model, {"draft": head, "speculate": "mtp"}, "grammars, head.gguf (MTP head, "),
        (model, {"draft": model, "speculate": "draft"}, "grammars, m.gguf (draft model"),
        (alphabet_path, {"speculate": "off"}, "none"),
    ]
    with caplog.at_level("INFO", "octavo"):
        for path, options, words in told:
            caplog.clear()
            octavo.load(path, device="reference", n_ctx=64, **options).close()
            assert any(f": drafts: {words}" in one for one in caplog.messages), caplog.messages


def test_what_drafts_is_told_to_the_server(alphabet_path: str, tmp_path: Path) -> None:
    """As /props has it: kinds, files, and the most tokens of a draft."""
    layers = write_with_head(tmp_path / "layers.gguf", tiny.tensors(), blocks(3), **several(3))
    tiny.write(tmp_path / "m.gguf")
    plain = [("grammar", 7, None), ("text", 7, None), ("replies", 7, None)]
    given: list[tuple[str, dict[str, Any], list[tuple[str, int, str | None]]]] = [
        (layers, {}, [*plain, ("mtp", 3, layers)]),
        (alphabet_path, {"speculate": "mtp"}, [plain[0], ("mtp", 7, alphabet_path)]),
        (alphabet_path, {"draft": tmp_path / "m.gguf", "speculate": "draft"},
         [plain[0], ("draft", 7, str(tmp_path / "m.gguf"))]),
        (alphabet_path, {"speculate": "lookup"}, plain),
        (alphabet_path, {"speculate": "off"}, []),
    ]
    for path, options, want in given:
        with octavo.load(path, device="reference", n_ctx=64, **options) as model:
            info = info_of(model)
            assert [(one.kind, one.tokens, one.file) for one in info.drafts] == want
            assert info.has_draft == any(file for _, _, file in want)


@pytest.mark.parametrize("option", ["tensor_parallel", "pipeline"])
def test_a_model_that_is_divided_has_no_head(
    option: str, alphabet_path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What asks for one is refused before anything is started; by default a line says that it is left out."""
    tiny.write(tmp_path / "m.gguf", weights=tiny.alphabet(endless=True))
    head, divided = write_head(tmp_path / "head.gguf", block(exact=True)), {option: 2}
    given: list[tuple[Any, dict[str, Any], str]] = [
        (alphabet_path, {"speculate": "mtp"}, "speculate lookup"), (tmp_path / "m.gguf", {"draft": head}, "no draft"),
    ]
    for path, options, otherwise in given:
        problem = f"{option} is 2, but a head computes with a whole model .allowed: 1, or {otherwise}"
        with pytest.raises(UsageError, match=problem):
            octavo.load(path, device="cpu", threads=2, n_ctx=64, weight_cache=False, **options, **divided)
    with GGUFFile.open(alphabet_path) as file:
        backend: Any = SimpleNamespace(communicator=SimpleNamespace(ranks=2) if option == "tensor_parallel" else None)
        config = EngineConfig(speculate="auto", pipeline=2 if option == "pipeline" else 1)
        assert own_head(read_model(file), config, backend) is None
    (told,) = caplog.messages
    assert told.startswith(f"alphabet.gguf: its layer that guesses tokens is left out: {option} is 2")


def test_what_drafts_is_counted_before_it_is_loaded(
    alphabet_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head with the step that makes its guesses at once, all of its layers, and a draft model beside a head."""
    with octavo.load(alphabet_path, device="cpu", threads=1, n_ctx=64, weight_cache=False) as model:
        assert model.head is not None
        main, head = model.engine.needs().total, needed_by(model.head)
        assert head > model.head.needs().total
    path = write_with_head(tmp_path / "m.gguf", tiny.alphabet(endless=True), blocks(3), **several(3))
    with octavo.load(path, device="cpu", threads=1, n_ctx=64, weight_cache=False) as model:
        assert model.head is not None
        assert needed_by(model.head) == 3 * model.head.needs().total
    tiny.write(tmp_path / "small.gguf")
    small: dict[str, Any] = {"draft": tmp_path / "small.gguf"}
    with octavo.load(alphabet_path, device="cpu", threads=1, n_ctx=64, weight_cache=False, **small) as model:
        assert model.head is not None
        assert model.draft is not None
        draft = model.draft.needs().total
    given: list[tuple[dict[str, Any], int, str]] = [
        ({"speculate": "mtp"}, main + head - 1, "for its head"),
        (small, main + head + draft - 1, "for its draft model and head"),
    ]
    for options, free, words in given:
        monkeypatch.setattr(open_draft, "room", lambda free=free: Room(free))
        with pytest.raises(HostMemoryError, match=words):
            octavo.load(alphabet_path, device="cpu", threads=1, n_ctx=64, weight_cache=False, **options)
    monkeypatch.setattr(open_draft, "room", lambda: Room(main + head))
    octavo.load(alphabet_path, device="cpu", threads=1, n_ctx=64, speculate="mtp", weight_cache=False).close()


def test_a_head_that_does_not_fit_is_left_out(
    alphabet_path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise HostMemoryError("2 GiB are needed")

    monkeypatch.setattr(loading, "open_head", full)
    with octavo.load(alphabet_path, device="reference", n_ctx=64) as model:
        assert model.head is None
    assert caplog.messages == ["the layer that guesses tokens is left out: 2 GiB are needed"]
    with pytest.raises(HostMemoryError):
        octavo.load(alphabet_path, device="reference", n_ctx=64, speculate="mtp")
