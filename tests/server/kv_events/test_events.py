"""Who follows KV events has the prefix tree, whatever happens to it and whatever is lost on the way."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

import octavo
from octavo.errors import UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.runtime import Model
from octavo.runtime.cache.page_pool import PagePool, Sequence, page_bytes
from octavo.runtime.cache.prefix_tree import PrefixTree
from octavo.runtime.sampling.sampler import SamplingParams
from octavo.server.engine.engine_protocol import Add, Cancel, Quit, StepOutputs, ToFront
from octavo.server.engine.process import ProcessClient
from octavo.server.kv_events import publisher, recorder
from octavo.server.kv_events.address import binds, require_host
from octavo.server.kv_events.publisher import Publisher
from octavo.server.kv_events.recorder import Events, Recorder
from octavo.server.kv_events.wire import encode
from octavo.server.serve_options import EngineOptions, KVEvents
from octavo.server.worker import EngineLoop
from tests.limits import HANG_S
from tests.server.kv_events import reader
from tests.server.kv_events.reader import Reader, Tree
from tests.server.live_server import running
from tests.server.scripted_engine import until

PAGES, REQUESTS = 24, 90


def addresses(folder: Path) -> tuple[str, str]:
    return f"ipc://{folder}/events", f"ipc://{folder}/replay"


def paths(tree: PrefixTree) -> set[reader.Path]:
    """The full pages of a tree, each with the tokens up to its end."""
    found: dict[Any, reader.Path] = {}
    for node in tree.full_nodes():
        salt, before = found.get(node.parent, (str(node.cache_salt), ()))
        found[node] = salt, (*before, *node.tokens)
    return set(found.values())


@contextmanager
def loop_of(model: Model, options: KVEvents, sent: list[ToFront]) -> Iterator[EngineLoop]:
    """An engine's loop in a thread, which tells of its pages until the block ends."""
    loop = EngineLoop(model, sent.append, itl_target=0.0, embeddings=False)
    loop.kv_events = Publisher(model.engine.prefixes, options)
    thread = Thread(target=loop.run)
    thread.start()
    try:
        yield loop
    finally:
        loop.inbox.put(Quit())
        thread.join(HANG_S)
        loop.kv_events.close()
        model.engine.prefixes.listener = None


def requests(n: int, seed: int) -> Iterator[Add]:
    """Prompts that begin alike here and there, with salts and without, of which many do not fit together."""
    rng = random.Random(seed)
    begins = [[rng.randrange(5, 900) for _ in range(rng.randrange(40, 330))] for _ in range(8)]
    for one in range(1, n + 1):
        begin = rng.choice(begins)
        prompt = begin[: rng.randrange(1, len(begin))] if one % 3 else begin
        prompt = [*prompt, *(rng.randrange(5, 900) for _ in range(rng.choice((0, 3, 70))))]
        yield Add([one], prompt, SamplingParams(temperature=0.0, ignore_eos=True), one, rng.choice((2, 70, 150)),
                  cache_salt=rng.choice(("", "", "salt", "other")))


@pytest.mark.slow
def test_under_load_with_losses_and_clears(model: Model, tmp_path: Path) -> None:
    """Evictions, preemptions, cancels, clears, and messages that are lost: after each batch nothing is amiss."""
    endpoint, replay = addresses(tmp_path)
    kv_memory = PAGES * page_bytes(model.engine.graph)
    sent: list[ToFront] = []
    with (
        octavo.load("demo", device="cpu", max_sequences=6, kv_memory=kv_memory) as small,
        loop_of(small, KVEvents(endpoint, replay, "kv@pod@demo", rank=3), sent) as loop,
        closing(Reader(endpoint, replay, "kv@pod@demo", loses=lambda at: at % 50 in range(7, 12))) as follower,
    ):
        assert small.engine.pool.n_pages == PAGES
        for one in requests(REQUESTS, seed=1):
            loop.inbox.put(one)
            if one.ids[0] % 20 == 0:
                loop.inbox.put(Cancel([one.ids[0] - 3]))

        def ended() -> set[int]:
            return {row.id for m in sent if isinstance(m, StepOutputs) for row in m.outputs if row.finish}

        cleared, end = 0, time.monotonic() + HANG_S
        while len(ended()) < REQUESTS:
            follower.poll()
            if len(ended()) > REQUESTS // 3 * (cleared + 1):
                with small.engine.lock:
                    small.engine.prefixes.clear()
                cleared += 1
            assert time.monotonic() < end
        with small.engine.lock:  # the last step is over, and what happened in it handed over
            assert loop.kv_events is not None
        until(lambda: not loop.kv_events.recorder.queue)  # type: ignore[union-attr]
        follower.catch_up()
        stats = next(m.stats for m in reversed(sent) if isinstance(m, StepOutputs))
        found = paths(small.engine.prefixes)
        assert follower.tree.paths == found
        assert len(found) > PAGES // 3
        assert len({salt for salt, _ in found}) > 1
    assert stats.preemptions > 0
    assert follower.replays > 3
    assert follower.tree.counts["removed"] > 50
    assert follower.tree.counts["cleared"] >= 1 + cleared > 1
    assert follower.ranks == {3}


class Memory:
    """Pages without anything in them."""

    def copy(self, target: int, source: int) -> None:
        assert target != source


MEMORY = Memory()


def tree_of(n_pages: int = 40) -> PrefixTree:
    pool = PagePool(n_pages)
    pool.copier.copy_with(MEMORY.copy)
    return PrefixTree(pool)


def insert(tree: PrefixTree, tokens: list[int], salt: str = "") -> None:
    sequence = tree.match_prefix(tokens, salt)
    tree.pool.grow(sequence, len(tokens))
    sequence.tokens += tokens[len(sequence) :]
    tree.insert(sequence, salt, tail=True)
    tree.pool.release(sequence)


def taken(noted: Recorder, events: Events, follower: Tree) -> list[Any]:
    """The events of all batches that wait, as they are sent; `follower` takes them."""
    found = []
    while noted.queue:
        batch = reader.decode(encode(events.batch(noted.queue.popleft())))
        follower.take(batch)
        found += batch.events
    return found


def test_pages_of_a_prompt_are_an_event_each() -> None:
    """Each with the one before it as its parent."""
    tree = tree_of()
    noted, events, follower = Recorder(tree, lambda: None), Events(0), Tree()
    tokens = list(range(3 * PAGE_SIZE + 10))
    insert(tree, tokens, "salt")
    noted.flush()
    insert(tree, tokens[: PAGE_SIZE + 5])  # a part of a page is none
    noted.flush()
    insert(tree, tokens[: 2 * PAGE_SIZE + 1])  # now it is
    insert(tree, tokens[:PAGE_SIZE] + [7] * PAGE_SIZE)
    noted.flush()
    noted.flush()  # nothing happened
    assert len(noted.queue) == 3
    cleared, salted, second, third, plain, further, branch = taken(noted, events, follower)
    assert isinstance(cleared, reader.AllBlocksCleared)
    assert (len(salted.block_hashes), salted.parent_block_hash, salted.extra_keys) == (1, None, [("salt",)])
    assert (second.parent_block_hash, second.extra_keys) == (salted.block_hashes[0], None)
    assert (third.parent_block_hash, third.extra_keys) == (second.block_hashes[0], None)
    assert [*salted.token_ids, *second.token_ids, *third.token_ids] == tokens[: 3 * PAGE_SIZE]
    assert (plain.token_ids, plain.extra_keys) == (tokens[:PAGE_SIZE], None)
    assert plain.block_hashes != salted.block_hashes[:1]
    assert (further.parent_block_hash, further.token_ids) == (plain.block_hashes[0], tokens[PAGE_SIZE : 2 * PAGE_SIZE])
    assert (branch.parent_block_hash, branch.token_ids) == (plain.block_hashes[0], [7] * PAGE_SIZE)
    assert follower.paths == paths(tree)


def test_adapters_are_in_the_hashes() -> None:
    lora = ("lora", "adapter", "/models/adapter=0.5")
    tree = tree_of()
    noted, events, follower = Recorder(tree, lambda: None), Events(0, [lora]), Tree((lora,))
    insert(tree, [5] * 2 * PAGE_SIZE, "salt")
    noted.flush()
    taken(noted, events, follower)
    assert len(follower.paths) == 2


def test_what_is_dropped_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that is late: steps go on, and all pages are told once it has caught up by half."""
    monkeypatch.setattr(recorder, "MOST_BATCHES", 8)
    tree, rng = tree_of(12), random.Random(2)
    noted, events, follower = Recorder(tree, lambda: None), Events(0), Tree()
    for _ in range(60):
        insert(tree, [rng.randrange(3) for _ in range(rng.choice((65, 130, 200)))])
        noted.flush()
        assert len(noted.queue) <= 8
    assert noted.tell_all
    taken(noted, events, follower)
    assert follower.paths != paths(tree)
    noted.flush()
    assert not noted.tell_all
    taken(noted, events, follower)
    assert follower.paths == paths(tree)
    assert follower.counts["cleared"] == 2


def test_who_comes_late_gets_all_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of batches that are no longer kept."""
    monkeypatch.setattr(publisher, "KEPT_BATCHES", 4)
    endpoint, replay = addresses(tmp_path)
    tree, rng, batches = tree_of(12), random.Random(3), count(1)
    with closing(Publisher(tree, KVEvents(endpoint, replay))) as made:
        for _ in range(20):
            insert(tree, [rng.randrange(3) for _ in range(200)])
            made.recorder.flush()
            number = next(batches)
            until(lambda number=number: made._next == number)  # type: ignore[misc]
        with closing(Reader(endpoint, replay)) as late:
            late.catch_up()
            assert late.last == 19
            assert late.tree.paths == paths(tree)
            assert late.tree.counts["cleared"] == 1
            late.catch_up()  # nothing is missed
            assert late.last == 19
            late.last = 16
            late.tree = Tree()
            with pytest.raises((AssertionError, KeyError)):  # single batches are of no use without those before
                late.catch_up()


def test_what_is_no_request_is_not_answered(tmp_path: Path) -> None:
    endpoint, replay = addresses(tmp_path)
    with closing(Publisher(tree := tree_of(), KVEvents(endpoint, replay))) as made:
        insert(tree, [1] * 65)
        made.recorder.flush()
        with closing(Reader(endpoint, replay)) as follower:
            follower._replay.send_multipart((b"", b"what?"))
            assert not follower._replay.poll(100)
        with closing(Reader(endpoint, replay)) as follower:
            until(lambda: made._next == 1)
            follower.catch_up()
            assert follower.tree.paths == paths(tree)


@pytest.mark.parametrize("address", ["tcp://*:1", "tcp://127.0.0.1"])
def test_an_address_that_can_not_be_used(address: str, tmp_path: Path) -> None:
    good, taken_already = addresses(tmp_path)
    with closing(Publisher(tree_of(), KVEvents(taken_already))):
        wrong = f"{taken_already}/no/such/folder" if address == "tcp://*:1" else address
        with pytest.raises(UsageError, match="KV events can't be published at ") as caught:
            Publisher(tree_of(), KVEvents(good, wrong))
    assert caught.value.argument == "kv_events"


def test_readers_connect_where_vllm_has_it() -> None:
    assert all(map(binds, ("tcp://*:5557", "tcp://[::]:5557", "ipc:///run/events")))
    assert not binds("tcp://router:5557")


def test_each_of_several_engines_has_addresses_of_its_own() -> None:
    found = KVEvents("tcp://*:5557", "tcp://[::]:5558", "kv")
    assert found.of_rank(0) == found
    assert found.of_rank(3) == KVEvents("tcp://*:5560", "tcp://[::]:5561", "kv", rank=3)
    assert KVEvents("ipc:///run/kv").of_rank(1) == KVEvents("ipc:///run/kv.1", rank=1)


def _has_pages(follower: Reader, cleared: int) -> bool:
    follower.catch_up()
    return follower.tree.counts["cleared"] == cleared and bool(follower.tree.paths)


def test_an_engine_that_is_started_again_begins_anew(model: Model, tmp_path: Path) -> None:
    """A process of its own, whose readers find the next one at the same address."""
    endpoint, replay = addresses(tmp_path)
    options = EngineOptions("demo", device="cpu", max_sequences=2, threads=1, kv_events=KVEvents(endpoint, replay))
    client = ProcessClient(options)
    text = "What is 12 times 7? " * 12
    with running(client, model) as server, closing(Reader(endpoint, replay)) as follower:
        prompt = server.post("/tokenize", content=text, add_special=True)["tokens"]
        for round_ in range(2):
            server.post("/v1/completions", prompt=text, max_tokens=1)
            until(lambda wanted=round_ + 1: _has_pages(follower, wanted))  # type: ignore[misc]
            whole = len(prompt) // PAGE_SIZE * PAGE_SIZE
            assert max(follower.tree.paths, key=lambda path: len(path[1])) == ("", tuple(prompt[:whole]))
            if not round_:
                assert client.process is not None
                client.process.kill()
                until(lambda: client.restarts == 1 and client.up)
                follower.last = -1


def test_models_without_pages_for_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.server import worker

    options = EngineOptions("demo", kv_events=KVEvents(addresses(tmp_path)[0]))
    with octavo.load("demo", device="reference") as model:
        monkeypatch.setattr(model.engine.pool, "windows", object())
        with pytest.raises(UsageError, match="the model has sliding windows, and keeps no pages for later prompts"):
            worker.publisher(model, options)


def test_sequences_that_share_no_page_tell_nothing() -> None:
    tree = tree_of()
    noted = Recorder(tree, lambda: None)
    noted.flush()
    noted.queue.clear()
    sequence = Sequence()
    tree.pool.grow(sequence, 3 * PAGE_SIZE)
    tree.pool.release(sequence)
    noted.flush()
    assert not noted.queue


def test_messages_are_arrays_as_routers_read_them() -> None:
    tree = tree_of()
    noted, events = Recorder(tree, lambda: None), Events(5)
    insert(tree, [9] * PAGE_SIZE + [1])
    noted.flush()
    ts, (cleared, stored), rank = msgspec.msgpack.decode(encode(events.batch(noted.queue.popleft())))
    assert isinstance(ts, float)
    assert (cleared, rank) == (["AllBlocksCleared"], 5)
    name = stored[1][0]
    assert stored == ["BlockStored", [name], None, [9] * PAGE_SIZE, PAGE_SIZE, None, "GPU", None, None]
    for _ in range(2):  # a part of a page, and the page
        tree.evict()
    noted.flush()
    _, (removed,), _ = msgspec.msgpack.decode(encode(events.batch(noted.queue.popleft())))
    assert removed == ["BlockRemoved", [name], "GPU"]


def test_what_is_at_a_path_is_neither_deleted_nor_taken_over(tmp_path: Path) -> None:
    endpoint, replay = addresses(tmp_path)
    (tmp_path / "replay").write_bytes(b"precious")
    with pytest.raises(UsageError, match=r"a file that is not a socket is there.* \(allowed: a path where nothing is"):
        Publisher(tree_of(), KVEvents(endpoint, replay))
    assert (tmp_path / "replay").read_bytes() == b"precious"
    with closing(Publisher(tree_of(), KVEvents(endpoint))):
        before = (tmp_path / "events").stat().st_ino
        with pytest.raises(UsageError, match="another process listens there"):
            Publisher(tree_of(), KVEvents(endpoint))
        assert (tmp_path / "events").stat().st_ino == before


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    endpoint, _ = addresses(tmp_path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "events"))
    with closing(Publisher(tree_of(), KVEvents(endpoint))):
        pass


def test_a_router_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match=r"can't be sent to tcp://nohost.invalid:5557: nohost.invalid is not known"):
        require_host("tcp://nohost.invalid:5557")
    for address in ("tcp://localhost:5557", "tcp://127.0.0.1:5557", "tcp://*:5557", "ipc:///run/events"):
        require_host(address)
