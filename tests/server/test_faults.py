"""Engines that are killed, and requests that are left: what bench/serve_soak.py does for an hour, for minutes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo.bench.serving.http import request_bytes
from octavo.bench.serving.stream_reader import StreamedReply, stream
from tests.limits import HANG_S

pytestmark = pytest.mark.slow
WARM_UP, CANCELLATIONS = 3_000, 10_000
LONG = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    return import_module("serve_soak")


@pytest.fixture
def server(tool: ModuleType) -> Iterator[Any]:
    """An `octavo serve` of its own process, and an engine that can be killed."""
    with tool.started("demo") as found:
        yield found


async def kill(tool: ModuleType, server: Any) -> set[int]:
    """Kill the engine, and wait until the server is well again: what /health answered meanwhile."""
    os.kill(server.engine(), signal.SIGKILL)
    statuses, status = set[int](), 0
    end = time.monotonic() + HANG_S
    while time.monotonic() < end and not (503 in statuses and status == 200):
        await asyncio.sleep(0.02)
        status, _ = await tool.ask(server.to, request_bytes(server.to, "GET", "/health"))
        statuses.add(status)
    return statuses


async def under_way(server: Any, replies: int) -> None:
    """Wait until this many replies are under way or in the queue, and pages are held."""
    while (look := await server.look()).replies < replies or not look.held:
        await asyncio.sleep(0.01)


async def ask(server: Any, prompt: list[int], **said: Any) -> StreamedReply:
    reply = StreamedReply()
    await stream(server.to, "/v1/completions", {"prompt": prompt, **LONG, **said}, reply)
    return reply


def test_a_killed_engine_is_told_and_comes_back(tool: ModuleType, server: Any) -> None:
    async def scenario() -> tuple[list[StreamedReply], set[int], StreamedReply, StreamedReply]:
        before = await ask(server, [7] * 20, max_tokens=30)
        streams = [asyncio.create_task(ask(server, [i] * 50)) for i in range(1, 13)]  # 8 run, 4 wait
        await under_way(server, 12)
        statuses = await kill(tool, server)
        return [await one for one in streams], statuses, before, await ask(server, [7] * 20, max_tokens=30)

    streams, statuses, before, after = asyncio.run(scenario())
    assert statuses == {200, 503}
    errors = [reply.error or "" for reply in streams]
    assert all("engine_ended" in error for error in errors), errors
    assert all(error.startswith(("an error in the stream", "status 503")) for error in errors), errors
    assert after.good
    assert after.text == before.text
    look = asyncio.run(server.quiet())
    assert look.held == 0
    text = asyncio.run(tool.get_text(server.to, "/metrics"))
    assert tool.metric(text, "octavo:engine_restarts_total") == 1
    assert not server.wrong


def test_a_prompt_that_was_there_at_two_ends_is_refused(tool: ModuleType, server: Any) -> None:
    async def crash() -> StreamedReply:
        one = asyncio.create_task(ask(server, [9] * 40))
        await under_way(server, 1)
        await kill(tool, server)
        return await one

    async def scenario() -> list[StreamedReply]:
        return [await crash(), await crash(), await ask(server, [9] * 40), await ask(server, [8] * 40, max_tokens=5)]

    first, second, third, other = asyncio.run(scenario())
    assert "engine_ended" in (first.error or "")
    assert "engine_ended" in (second.error or "")
    assert (third.error or "").startswith("status 500")
    assert other.good


def up_to(server: Any, count: int) -> Callable[[], bool]:
    """Says yes until this many requests were left in time."""
    return lambda: server.done["left: in time"] < count


def test_cancellations_leave_nothing_behind(tool: ModuleType, server: Any) -> None:
    async def scenario() -> list[Any]:
        await tool.warm_up(server, 16)
        await tool.load(server, 16, {tool.left: 1.0}, up_to(server, WARM_UP))
        before = await server.quiet()
        await tool.load(server, 16, {tool.left: 1.0}, up_to(server, WARM_UP + CANCELLATIONS))
        return [before, await server.quiet()]

    before, after = asyncio.run(scenario())
    assert server.done["left: in time"] >= WARM_UP + CANCELLATIONS
    assert tool.compare(before, after, killed=False) == []
    assert not server.wrong


@pytest.mark.parametrize("every", [None, 5.0], ids=["mixed", "killed"])
def test_mixed_load(tool: ModuleType, server: Any, every: float | None) -> None:
    shares = {tool.right: 0.68, tool.left: 0.3, tool.bad: 0.02}
    asyncio.run(tool.soak(server, 60.0, 12, shares, 0.0, every))
    assert (server.killed > 0) == (every is not None)
    assert server.done["right: answered"] > 50
    assert dict(server.wrong) == {}
