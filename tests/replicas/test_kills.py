"""Replicas that are killed in the middle of replies: no client sees it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from octavo.bench.serving.http import Address
from octavo.replicas import pool, relay
from octavo.replicas.front import Front
from octavo.replicas.local import LocalProcess
from octavo.replicas.relay import Relay
from tests.replicas.live_front import fronting, kill, local
from tests.replicas.requests import Asked, answer, chance_and_time, requests
from tests.server.live_server import Server
from tests.server.scripted_engine import until

AT_ONCE = 16


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Server, Front]]:
    """Two replicas in processes of their own. What depends on chance is the same for each run of a request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay, "chance_and_time", chance_and_time)
        patch.setattr(pool, "LONGEST_PAUSE_S", 0.2)
        with fronting(local(2), 2) as found:
            yield found


async def all_of(server: Server, asked: list[Asked], gate: Any = None) -> list[tuple[int, bytes]]:
    """The answers to requests, of which AT_ONCE are under way at a time; each waits at `gate` for its turn."""
    to, room = Address("127.0.0.1", server.port), asyncio.Semaphore(AT_ONCE)

    async def one(request: Asked) -> tuple[int, bytes]:
        async with room:
            if gate is not None:
                await gate(request.number)
            return await answer(to, request)

    return await asyncio.gather(*map(one, asked))


async def killing(server: Server, front: Front, asked: list[Asked], kills: int) -> list[tuple[int, bytes]]:
    """The same while one of the replicas is killed again and again, at random moments of the replies."""
    rng, killed = Random(1), 0
    more = asyncio.Event()

    async def gate(number: int) -> None:
        while number >= len(asked) * (killed + 1) / kills and killed < kills:
            await more.wait()

    running = asyncio.ensure_future(all_of(server, asked, gate))
    while killed < kills and not running.done():
        await asyncio.sleep(rng.uniform(0.0, 0.4))
        able = [one for one in front.pool.replicas if one.running is not None and one.state != "down"]
        if able and (front.under_way or rng.random() < 0.05):
            kill(front, rng.choice(able).number)
            killed += 1
            more.set()
            more.clear()
            while not front.pool.up:  # on a machine that is busy replicas take long to start
                await asyncio.sleep(0.01)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
    assert killed == kills
    return await running


def require_same(asked: list[Asked], told: list[tuple[int, bytes]], wanted: list[tuple[int, bytes]]) -> None:
    for request, (status, body), (_, other) in zip(asked, told, wanted, strict=True):
        assert status == 200, (request, body[:300])
        assert body == other, request


@pytest.mark.parametrize(
    ("n", "kills"), [pytest.param(22, 2), pytest.param(400, 30, marks=pytest.mark.slow)]
)
def test_no_stream_is_lost_and_each_has_its_very_bytes(served: tuple[Server, Front], n: int, kills: int) -> None:
    server, front = served
    asked = requests(n, 60 if n < 100 else 200)
    wanted = asyncio.run(all_of(server, asked))
    require_same(asked, wanted, wanted)
    moved = front.metrics.moved
    require_same(asked, asyncio.run(killing(server, front, asked, kills)), wanted)
    assert front.metrics.moved > moved
    until(lambda: len(front.pool.up) == 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [2, 5, 6])
def test_a_replica_killed_at_any_token(
    served: tuple[Server, Front], kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, front = served
    asked = requests(22, 30)[11 + kind]
    asked.body["stream"] = True
    ((_, wanted),) = asyncio.run(all_of(server, [asked]))
    shown, at = Relay._shown, 0

    def killing_at(self: Relay, chunks: Any) -> list[bytes]:
        found = shown(self, chunks)
        if sum(len(json.loads(rows)) for rows in self._told) >= at:
            monkeypatch.setattr(Relay, "_shown", shown)
            for one in front.pool.replicas:
                if one.load:
                    kill(front, one.number)
        return found

    for at in range(1, 31):
        until(lambda: len(front.pool.up) == 2)
        monkeypatch.setattr(Relay, "_shown", killing_at)
        assert asyncio.run(all_of(server, [asked])) == [(200, wanted)], at
        monkeypatch.setattr(Relay, "_shown", shown)


@pytest.mark.slow
def test_a_replica_that_is_stopped_is_taken_out_and_its_streams_go_on(
    served: tuple[Server, Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ANSWER_S", 0.5)
    server, front = served
    asked = requests(22, 200)
    wanted = asyncio.run(all_of(server, asked))

    async def stopping() -> list[tuple[int, bytes]]:
        answers = asyncio.ensure_future(all_of(server, asked))
        while not all(one.load for one in front.pool.replicas):
            await asyncio.sleep(0.001)
        kill(front, 0, signal.SIGSTOP)
        return await answers

    restarts = front.pool.replicas[0].restarts
    require_same(asked, asyncio.run(stopping()), wanted)
    until(lambda: front.pool.replicas[0].restarts == restarts + 1 and len(front.pool.up) == 2)


@pytest.mark.slow
def test_where_an_engine_is_killed_others_go_on(served: tuple[Server, Front]) -> None:
    server, front = served
    asked = requests(22, 200)
    wanted = asyncio.run(all_of(server, asked))
    until(lambda: len(front.pool.up) == 2)

    async def killing_engines() -> list[tuple[int, bytes]]:
        answers = asyncio.ensure_future(all_of(server, asked))
        while not all(one.load for one in front.pool.replicas):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)  # now streams have begun
        running = front.pool.replicas[0].running
        assert isinstance(running, LocalProcess)
        pid = running.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        (engine,) = (one for one in children if b"octavo.server.worker" in Path(f"/proc/{one}/cmdline").read_bytes())
        os.kill(int(engine), signal.SIGKILL)
        return await answers

    restarts, moved = front.pool.replicas[0].restarts, front.metrics.moved
    require_same(asked, asyncio.run(killing_engines()), wanted)
    assert front.metrics.moved > moved
    until(lambda: len(front.pool.up) == 2)
    assert front.pool.replicas[0].restarts == restarts, "it starts an engine itself"
