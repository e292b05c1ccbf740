"""Replicas by Ray: the same responses as one engine gives, whatever dies; and what is said without room."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.batch import ray_replicas
from octavo.batch.ray_replicas import RayReplica
from octavo.batch.replica import ReplicaDiedError
from octavo.batch.request_line import CHAT
from octavo.errors import BackendError
from tests.batch.files import comparable, mixed, read_lines, write_lines
from tests.batch.test_command import files, run, started, until_bytes
from tests.limits import HANG_S

Found = tuple[str, dict[str, list[Any]]]
TWO = ("--replicas", "2")
N = 96


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("ray")
    source, output = write_lines(folder / "in.jsonl", mixed(N)), str(folder / "out.jsonl")
    assert run(source, output).returncode == 1
    return source, files(output)


CLUSTER = """
import ray, sys
print(ray.init(num_cpus=2, include_dashboard=False).address_info["address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray of two cores, in a process that ends with the tests. It has a token of its own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "token")
        patched.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield from _cluster()


def _cluster() -> Iterator[str]:
    command, pipe = [sys.executable, "-c", CLUSTER], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = next(line.strip() for line in process.stdout if ":" in line)
        yield address
    finally:
        process.stdin.close()
        process.wait(HANG_S)
        process.stdout.close()


def workers(name: bytes) -> list[int]:
    """Processes whose command line has a word, by their numbers."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if name in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


class RayError(Exception):
    pass


class ActorUnavailableError(RayError):
    pass


class Actor:
    """One whose methods, asked again and again, have these results, in turn; an error is raised."""

    def __init__(self, **results: list[Any]) -> None:
        self.results = results

    def __getattr__(self, name: str) -> Any:
        async def answer(*given: object) -> Any:
            found = self.results[name].pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        return SimpleNamespace(remote=answer)


def test_the_time_that_ray_takes_to_start_an_actor_again_is_no_requests_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_replicas, "AGAIN_S", 0.001)
    ray = SimpleNamespace(exceptions=SimpleNamespace(RayError=RayError, ActorUnavailableError=ActorUnavailableError))
    away, died = ActorUnavailableError("it may not have been executed"), RayError("it died")
    actor = Actor(
        placed=[None, away, away, away, None, None], start=[None, died, None], answer=[away, (200, b"{}"), (200, b"{}")]
    )

    async def asked() -> None:
        replica = RayReplica(ray, actor, 4)
        await replica.start()
        with pytest.raises(ReplicaDiedError):  # the actor had it when it died
            await replica.answer(CHAT, b"{}", "req_1")
        for _ in range(2):
            assert (await replica.answer(CHAT, b"{}", "req_1")).status == 200
        assert actor.results == {"placed": [], "start": [], "answer": []}
        actor.results = {"placed": [None] * 3, "start": [died] * 3}
        with pytest.raises(BackendError, match="a replica can't be started: a replica died: it died"):
            await replica.start()

    asyncio.run(asked())


@pytest.mark.slow
def test_two_replicas_answer_as_one_engine(alone: Found, tmp_path: Path, cluster: str) -> None:
    source, found = alone
    output = str(tmp_path / "out.jsonl")
    done = run(source, output, *TWO, "--ray-address", cluster, "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["done"] == N
    assert files(output) == found


@pytest.mark.slow
def test_killed_it_goes_on(alone: Found, tmp_path: Path, cluster: str) -> None:
    source, found = alone
    output = str(tmp_path / "out.jsonl")
    for size in (1000, 20_000):
        with started(source, output, *TWO, "--ray-address", cluster) as process:
            until_bytes(process, output, size)
            process.kill()
    assert 0 < len(read_lines(output)) < N
    assert run(source, output, *TWO, "--ray-address", cluster).returncode == 1
    assert files(output) == found


@pytest.mark.slow
@pytest.mark.parametrize("what", [b"ray::ReplicaActor", b"octavo.server.worker"], ids=["actor", "engine"])
def test_a_replica_that_dies_is_started_again(
    alone: Found, tmp_path: Path, cluster: str, what: bytes
) -> None:
    source, found = alone
    output = str(tmp_path / "out.jsonl")
    before = set(workers(what))
    with started(source, output, *TWO, "--ray-address", cluster) as process:
        until_bytes(process, output, 3000)
        ours = [pid for pid in workers(what) if pid not in before]
        os.kill(ours[0], signal.SIGKILL)
        _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 1, said
    assert files(output) == found


@pytest.mark.slow
def test_more_replicas_than_there_is_room_for(alone: Found, tmp_path: Path, cluster: str) -> None:
    output = str(tmp_path / "out.jsonl")
    done = run(alone[0], output, "--replicas", "3", "--ray-address", cluster)
    assert done.returncode == 2
    assert "--replicas is 3 (allowed: up to 2, as the Ray cluster has 2 CPUs)" in done.stderr
    done = run(alone[0], output, "--ray-address", "127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("octavo: error: Ray can't be reached at 127.0.0.1:1")


@pytest.mark.slow
def test_a_ray_of_its_own_is_gone_with_it(alone: Found, tmp_path: Path) -> None:
    source, found = alone
    output = str(tmp_path / "out.jsonl")
    before = set(workers(b"gcs_server"))
    done = run(source, output, *TWO)
    assert done.returncode == 1, done.stderr
    assert comparable(output) == found["output"]
    end = time.monotonic() + HANG_S
    while set(workers(b"gcs_server")) - before:
        assert time.monotonic() < end
        time.sleep(0.1)
