"""Replicas as actors of a Ray of this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.bench.serving.http import Address
from octavo.errors import UsageError
from octavo.replicas import ray_actors, relay
from octavo.replicas.ray_actors import RayLauncher, RayReplica
from octavo.replicas.replica import Served
from octavo.replicas.setup import encode
from octavo.server.engine.ray_cluster import LOCAL
from tests.replicas.live_front import ENGINE, OPTIONS, fronting
from tests.replicas.requests import answer, chance_and_time, requests
from tests.server.scripted_engine import until


def test_replicas_of_this_machine_listen_here_only(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}]
    ray = SimpleNamespace(init=lambda **options: None, nodes=lambda: nodes)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert RayLauncher(2, ENGINE, OPTIONS, LOCAL)._setup.host == "127.0.0.1"
    assert RayLauncher(2, ENGINE, OPTIONS, "auto")._setup.host == "", "the node's"


def test_a_replica_that_has_no_place_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the GPUs are another job's; it is served all the same once there is one."""
    monkeypatch.setattr(ray_actors, "PLACE_S", 0.05)
    found = Served("10.0.0.1", 1, 2, 3)

    async def served(seconds: float) -> None:
        async def after(value: Any) -> Any:
            await asyncio.sleep(seconds)
            return value

        actor = SimpleNamespace(placed=SimpleNamespace(remote=lambda: after(None)),
                                served=SimpleNamespace(remote=lambda: after(encode(found))))
        assert await RayReplica(None, actor, 3, {"num_gpus": 2}).served() == found

    asyncio.run(served(0.0))
    assert not caplog.messages
    asyncio.run(served(0.2))
    assert caplog.messages == ["replica 3 waits for a node of the Ray cluster with 2 gpus free"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra `ray`")
@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_actors_serve_and_others_go_on_where_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "chance_and_time", chance_and_time)
    monkeypatch.setattr("octavo.server.engine.ray_cluster.cores", lambda: 2)
    with pytest.raises(UsageError, match=r"--replicas is 3 \(allowed: up to 2, as the Ray cluster has 2 CPUs\)"):
        RayLauncher(3, ENGINE, OPTIONS, LOCAL)
    asked = requests(22, 120)
    with fronting(RayLauncher(2, ENGINE, OPTIONS, LOCAL), 2) as (server, front):
        to = Address("127.0.0.1", server.port)

        async def all_of(kills: bool) -> list[tuple[int, bytes]]:
            answers = asyncio.gather(*(answer(to, one) for one in asked))
            if kills:
                while not all(one.load for one in front.pool.replicas):
                    await asyncio.sleep(0.001)
                running = front.pool.replicas[0].running
                assert isinstance(running, RayReplica)
                await running.close()
            return await answers

        wanted = asyncio.run(all_of(False))
        assert {status for status, _ in wanted} == {200}
        assert asyncio.run(all_of(True)) == wanted
        assert front.metrics.moved > 0
        until(lambda: front.pool.replicas[0].restarts == 1 and len(front.pool.up) == 2)
