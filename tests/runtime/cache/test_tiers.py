"""Prefixes that are kept: an engine that starts anew goes on with them as the one that ended would have."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import numpy as np
import pytest

from octavo.backends.host_memory import SavedValues
from octavo.backends.reference import ReferenceBackend
from octavo.errors import NonFiniteError, UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.runtime.cache import window_pool
from octavo.runtime.cache.tiers import prefix_tiers, restore
from octavo.runtime.cache.tiers.entry import Entry
from octavo.runtime.cache.tiers.host_tier import HostTier
from octavo.runtime.cache.tiers.open_tiers import open_tiers
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.sampling.sampler import SamplingParams
from tests.limits import HANG_S
from tests.runtime.engine.test_core import request, run
from tests.runtime.sampling.test_device_sampling import Eager
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


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    from tests.runtime import tiny

    return read_model(GGUFFile.open(tiny.write(tmp_path_factory.mktemp("plain") / "tiny.gguf")))


def test_what_was_read_is_not_written_again(plain: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = start(plain, tmp_path)
    reply(one, TOKENS[:300])
    one.close()
    again, saved = start(plain, tmp_path), list[int]()
    save = again.engine.load().save
    monkeypatch.setattr(again.engine.load(), "save", lambda *place: saved.append(place[1]) or save(*place))
    assert reply(again, TOKENS[:320])[1] == 300
    assert len(saved) == 2, "the page that was not full, and the one of the new end"
    again.close()


def test_a_prompt_that_diverges_within_a_page(plain: ModelSpec, tmp_path: Path) -> None:
    one = start(plain, tmp_path)
    reply(one, TOKENS[:300])
    one.close()
    again = start(plain, tmp_path)
    assert reply(again, [*TOKENS[:220], *TOKENS[500:540]])[1] == 220


def test_a_next_turn_without_all_of_the_last_reply(model: ModelSpec, tmp_path: Path) -> None:
    """As of a template that leaves out thinking: the end of the first prompt comes next with other tokens."""
    one, warm = start(model, tmp_path), start(model, None)
    second = [*TOKENS[:290], *TOKENS[500:560]]
    for core in (one, warm):
        reply(core, TOKENS[:300], 40)
    one.close()
    again = start(model, tmp_path)
    found, cached = reply(again, second)
    assert found == reply(warm, second)[0]
    assert cached >= 256
    again.close()


def test_nothing_is_found_with_another_salt_cache_type_context_or_model(plain: ModelSpec, tmp_path: Path) -> None:
    from tests.runtime import tiny

    one = start(plain, tmp_path)
    reply(one, TOKENS[:200], cache_salt="mine")
    one.close()
    other = read_model(GGUFFile.open(tiny.write(tmp_path / "other.gguf", weights=tiny.tensors(seed=1))))
    assert reply(start(plain, tmp_path), TOKENS[:200], cache_salt="yours")[1] == 0
    assert reply(start(plain, tmp_path), TOKENS[:200])[1] == 0
    assert reply(start(plain, tmp_path, cache_type="f16"), TOKENS[:200], cache_salt="mine")[1] == 0
    assert reply(start(plain, tmp_path, n_ctx=300), TOKENS[:200], cache_salt="mine")[1] == 0
    assert reply(start(other, tmp_path), TOKENS[:200], cache_salt="mine")[1] == 0
    assert reply(start(plain, tmp_path), TOKENS[:200], cache_salt="mine")[1] == 199


def test_what_came_out_as_nan_is_kept_nowhere(
    plain: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = start(plain, tmp_path)
    reply(one, TOKENS[:200])
    real = one.sampler.step

    def broken(*args: object) -> object:
        return {r: NonFiniteError("NaN") for r in real(*args)}  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(one.sampler, "step", broken)
        failed = request(TOKENS[:210], 3, GREEDY)
        run(one, failed)
    assert isinstance(failed.failure, NonFiniteError)
    one.close()
    assert reply(start(plain, tmp_path), TOKENS[:210])[1] == 0


def test_a_damaged_page_ends_what_is_found(
    model: ModelSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, warm = start(model, tmp_path), start(model, None)
    second = two_turns(one, 201)
    one.close()
    for path in tmp_path.rglob("64-*.page"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    again = start(model, tmp_path)
    assert reply(again, second)[0] == reply(warm, second)[0]
    assert sum("left out" in record.getMessage() for record in caplog.records) == 1
    again.close()


@pytest.mark.few(2)
def test_many_at_once_in_few_pages(model: ModelSpec, tmp_path: Path) -> None:
    """Conversations that do not fit beside each other: some give way, and all go on as they would alone."""
    warm, one = start(model, None), start(model, tmp_path)
    turns = [TOKENS[i : i + 150] for i in range(0, 60, 10)]
    turns = [[*prompt, *reply(one, prompt)[0], *TOKENS[400 + i : 430 + i]] for i, prompt in enumerate(turns)]
    one.close()
    again = start(model, tmp_path, n_pages=8)
    requests = [request(prompt, 30, GREEDY) for prompt in turns]
    found = run(again, *requests)
    assert found == [reply(warm, prompt, 30)[0] for prompt in turns]
    assert sum(one.cached > 0 for one in requests) > 2
    again.close()


def test_a_request_that_is_cancelled_while_it_waits(plain: ModelSpec, tmp_path: Path) -> None:
    one = start(plain, tmp_path)
    reply(one, TOKENS[:300])
    one.close()
    again = start(plain, tmp_path)
    tiers = again.scheduler.restorer.tiers  # type: ignore[union-attr]
    reading, go = Event(), Event()
    real = tiers.disk.get  # type: ignore[union-attr]

    def slow(*given: object) -> object:
        reading.set()
        assert go.wait(HANG_S)
        return real(*given)  # type: ignore[arg-type]

    tiers.disk.get = slow  # type: ignore[union-attr, method-assign, assignment]
    waiting, other = request(TOKENS[:300], 5, GREEDY), request(TOKENS[301:340], 5, GREEDY)
    again.add(waiting)
    again.step()
    assert reading.wait(HANG_S)
    again.add(other)
    while not other.over:
        again.step()
    assert not waiting.output_tokens, "others do not wait for it"
    again.cancel(waiting)
    again.step()
    assert again.scheduler.idle
    go.set()
    assert again.stats().held == 0
    assert reply(again, TOKENS[:300])[0] == reply(start(plain, None), TOKENS[:300])[0]


def test_a_disk_that_does_not_answer(
    plain: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = start(plain, tmp_path)
    expected = reply(one, TOKENS[:200])[0]
    one.close()
    monkeypatch.setattr(restore, "PATIENCE_S", 0.05)
    again, go = start(plain, tmp_path), Event()
    monkeypatch.setattr(again.scheduler.restorer.tiers.disk, "get", lambda *given: go.wait(HANG_S) and None)  # type: ignore[union-attr]
    assert reply(again, TOKENS[:200]) == (expected, 0)
    assert any("was not read within" in record.getMessage() for record in caplog.records)
    go.set()


def test_no_more_than_so_much_waits_to_be_written(
    plain: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was left out is kept when the conversation goes on."""
    monkeypatch.setattr(prefix_tiers, "MOST_BEHIND", 1)
    one, go = start(plain, tmp_path), Event()
    tiers = one.scheduler.restorer.tiers  # type: ignore[union-attr]
    real = tiers.disk.put  # type: ignore[union-attr]
    monkeypatch.setattr(tiers.disk, "put", lambda *args: go.wait(HANG_S) and real(*args))
    first, _ = reply(one, TOKENS[:200])
    assert tiers._queue.qsize() <= 2
    go.set()
    assert tiers.flush(HANG_S)
    prompt = [*TOKENS[:200], *first, *TOKENS[500:550]]
    for n in range(8):
        reply(one, [*prompt, n])
        assert tiers.flush(HANG_S)
    one.close()
    assert reply(start(plain, tmp_path), [*prompt, 9])[1] >= 200


def test_the_hosts_memory_has_what_a_device_had_no_room_for(model: ModelSpec, tmp_path: Path) -> None:
    """Two conversations in turns, in pages for one of them."""
    warm, one = start(model, None), start(model, None, Eager, ram=8 << 20, n_pages=8)
    turns = [TOKENS[:300], TOKENS[301:601]]
    firsts = [reply(one, prompt)[0] for prompt in turns]
    assert firsts == [reply(warm, prompt)[0] for prompt in turns]
    for prompt, text in zip(turns, firsts, strict=True):
        again = [*prompt, *text, *TOKENS[610:620]]
        found, cached = reply(one, again)
        assert found == reply(warm, again)[0]
        assert cached >= 300
    host = one.scheduler.restorer.tiers.host  # type: ignore[union-attr]
    assert 0 < host.nbytes <= host.limit


def test_the_hosts_memory_is_bounded() -> None:
    host, raw = HostTier(10_000), [SavedValues(np.zeros(1000, np.uint8))]
    entries = [Entry(bytes([i]) * 32, (i,)) for i in range(30)]
    for entry in entries:
        host.put(entry, raw)
        assert host.get(entries[0]) is not None
        assert host.nbytes <= 10_000
    assert [host.has(entry) for entry in entries] == [True, *[False] * 20, *[True] * 9]
    host.put(Entry(bytes(32), (7,)), [SavedValues(np.zeros(10_001, np.uint8))])
    assert host.nbytes == 10_000
    for entry in entries:
        host.remove(entry)
    assert (host.nbytes, host.after(entries[0].parent)) == (0, [])


def test_where_nothing_can_be_kept(
    plain: ModelSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(plain, [ReferenceBackend()], EngineConfig(n_ctx=200, embeds=True))
    assert open_tiers(engine, disk=DISK, folder=tmp_path) is None
    engine = Engine(plain, [ReferenceBackend()], EngineConfig(n_ctx=200))
    (tmp_path / "file").write_bytes(b"")
    assert open_tiers(engine, disk=DISK, folder=tmp_path / "file") is None
    first, second = (record.getMessage() for record in caplog.records)
    assert "an embedding model keeps no pages" in first
    assert f"{tmp_path / 'file'}: prefixes can't be kept" in second
    assert open_tiers(engine) is None
    for limits in ({"ram": DISK}, {"disk": 100}):
        with pytest.raises(UsageError):
            open_tiers(engine, folder=tmp_path, **limits)
