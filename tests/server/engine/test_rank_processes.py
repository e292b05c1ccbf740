"""A server whose engine is several processes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.runtime import Model
from octavo.server.engine.process import ProcessClient
from octavo.server.serve_options import EngineOptions
from tests.server.engine.test_process import LONG, answer, talking
from tests.server.live_server import Server, events, running
from tests.server.scripted_engine import until

ENDED_S = 5.0


@pytest.fixture
def served(model: Model) -> Iterator[tuple[Server, ProcessClient]]:
    client = ProcessClient(EngineOptions("demo", device="cpu", max_sequences=8, threads=2, tensor_parallel=2))
    with running(client, model) as server:
        yield server, client


def test_layers_on_several_backends(model: Model) -> None:
    """A reply is that of one backend."""
    replies = []
    for stages in (1, 2):
        client = ProcessClient(EngineOptions("demo", device="cpu", max_sequences=2, threads=1, pipeline=stages))
        with running(client, model) as server:
            replies.append(answer(server))
    assert replies[0] == replies[1]


def children(pid: int) -> list[int]:
    """Processes that a process has started, from any of its threads, and that are ranks."""
    found = [int(p) for task in Path(f"/proc/{pid}/task").iterdir() for p in (task / "children").read_text().split()]
    return [p for p in found if b"octavo.runtime.parallel.follower" in Path(f"/proc/{p}/cmdline").read_bytes()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
def test_a_rank_that_is_killed(served: tuple[Server, ProcessClient]) -> None:
    """Every reply ends with an error, within seconds, and another engine with other ranks answers as before."""
    server, client = served
    before = answer(server)
    assert client.info is not None
    (rank,) = children(client.info.pid)
    with talking(server, LONG) as first, talking(server, LONG) as second:
        last = [first.chunk(), second.chunk()]
        start = time.monotonic()
        os.kill(rank, signal.SIGKILL)
        for i, reader in enumerate((first, second)):
            while chunk := reader.chunk():
                last[i] = chunk
        assert time.monotonic() - start < ENDED_S
    for chunk in last:
        error = events(chunk)[-1]["error"]
        assert (error["type"], error["code"]) == ("unavailable_error", "engine_ended")
    status, _, body = server.send("GET", "/health")
    assert (status, json.loads(body)["error"]["type"]) == (503, "unavailable_error")
    until(lambda: server.send("GET", "/health")[0] == 200)
    assert answer(server) == before
    assert client.restarts == 1
    assert client.info is not None
    (other,) = children(client.info.pid)
    assert other != rank
    assert not Path(f"/proc/{rank}").exists()
