"""Replicas as actors of a Ray of this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from types import SimpleNamespace

import pytest

from octavo.bench.serving.http import Address
from octavo.errors import UsageError
from octavo.replicas import relay
from octavo.replicas.ray_actors import RayLauncher, RayReplica
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
