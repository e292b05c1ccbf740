"""Requests of a batch given to replicas: all of them once, whatever dies, and no memory for what is done."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo.batch.batch_run import MOST_DEATHS, BatchCounts, BatchRun
from octavo.batch.input_index import index_input
from octavo.batch.output_files import OutputFiles
from octavo.batch.replica import LIMITS, LocalReplica, Replica, ReplicaDiedError
from octavo.batch.request_line import CHAT, Defaults
from octavo.errors import FileError
from octavo.server.engine.client import EngineStream
from octavo.server.engine.engine_protocol import Add
from octavo.server.engine.fake import FakeClient
from octavo.server.http.inner_call import Answer
from octavo.server.serve_options import EngineOptions, ServerOptions
from tests.batch.files import openai_line, read_lines, write_lines


class Scripted:
    """A replica that says what `say` says to a request's number; None ends it, with all that is under way."""

    def __init__(self, say: Callable[[int], int | None], room: int = 8) -> None:
        self.say, self.room = say, room
        self.asked: list[int] = []
        self.deaths = self.under_way = self.most = 0
        self._ended = asyncio.Event()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def answer(self, url: str, body: bytes, request_id: str) -> Answer:
        number, ended = int(request_id.removeprefix("req_")), self._ended
        self.asked.append(number)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(3 + number % 3):
                await asyncio.sleep(0)
                if ended.is_set():
                    raise ReplicaDiedError("it was killed")
            status = self.say(number)
            if status is None:
                self.deaths += 1
                ended.set()
                self._ended = asyncio.Event()
                raise ReplicaDiedError("it died")
        finally:
            self.under_way -= 1
        return Answer(status, request_id, json.dumps({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}).encode())


def answered(folder: Path, n: int, replicas: Callable[[], Sequence[Replica]]) -> BatchCounts:
    lines = (openai_line(f"q{i}", {"messages": [f"question {i}"]}) for i in range(1, n + 1))
    source = write_lines(folder / "in", lines)
    with OutputFiles(str(folder / "out.jsonl"), restart=False) as files:
        index = index_input(source, CHAT, files.refuse)
        run = BatchRun(index, index.order, Defaults(), files)

        async def main() -> BatchCounts:
            return await run.run(replicas())

        try:
            return asyncio.run(main())
        finally:
            index.close()


def ids(path: Path) -> list[int]:
    return [int(line["custom_id"][1:]) for line in read_lines(path)]


@pytest.mark.parametrize("n_replicas", [1, 3])
def test_each_line_is_asked_once(tmp_path: Path, n_replicas: int) -> None:
    made: list[Scripted] = []

    def replicas() -> list[Scripted]:
        made.extend(Scripted(lambda number: 400 if number % 10 == 0 else 200) for _ in range(n_replicas))
        return made

    counts = answered(tmp_path, 200, replicas)
    assert (counts.total, counts.done, counts.failed) == (200, 200, 20)
    assert (counts.prompt_tokens, counts.completion_tokens) == (180 * 3, 180 * 2)
    assert sorted(ids(tmp_path / "out.jsonl")) == [i for i in range(1, 201) if i % 10]
    assert sorted(ids(tmp_path / "out.errors.jsonl")) == [*range(10, 201, 10)]
    assert sorted(number for one in made for number in one.asked) == [*range(1, 201)]
    assert all(one.asked and one.most == one.room for one in made)


def test_neighbours_are_asked_of_one_replica(tmp_path: Path) -> None:
    made: list[Scripted] = []

    def replicas() -> list[Scripted]:
        made.extend(Scripted(lambda number: 200, room=2) for _ in range(2))
        return made

    answered(tmp_path, 400, replicas)
    for one in made:
        jumps = sum(b != a + 1 for a, b in pairwise(one.asked))
        assert jumps < len(one.asked) / 4


def test_a_request_that_ends_replicas_is_refused_and_no_other(tmp_path: Path) -> None:
    made: list[Scripted] = []

    def replicas() -> list[Scripted]:
        made.append(Scripted(lambda number: None if number in (20, 77) else 200))
        return made

    counts = answered(tmp_path, 100, replicas)
    assert (counts.done, counts.failed) == (100, 2)
    assert sorted(ids(tmp_path / "out.errors.jsonl")) == [20, 77]
    assert sorted(ids(tmp_path / "out.jsonl")) == [i for i in range(1, 101) if i not in (20, 77)]
    (error,) = {line["response"]["body"]["error"]["code"] for line in read_lines(tmp_path / "out.errors.jsonl")}
    assert (error, made[0].deaths) == ("engine_ended", 4)


def test_what_ends_every_replica_is_told(tmp_path: Path) -> None:
    with pytest.raises(ReplicaDiedError, match="it died"):
        answered(tmp_path, 100, lambda: [Scripted(lambda number: None)])
    assert len(ids(tmp_path / "out.errors.jsonl")) == MOST_DEATHS - 1


def test_what_can_not_be_written_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Scripted] = []

    def replicas() -> list[Scripted]:
        made.extend(Scripted(lambda number: 200) for _ in range(2))
        return made

    def full(*given: Any) -> None:
        raise FileError("can't be written", file="out")

    monkeypatch.setattr(OutputFiles, "respond", full)
    with pytest.raises(FileError):
        answered(tmp_path, 100, replicas)
    assert [one.under_way for one in made] == [0, 0]


class LeanClient(FakeClient):
    """Forgets replies that are at their ends."""

    def submit(self, adds: Sequence[Add]) -> EngineStream:
        self.sent.clear()
        self._begun &= self._left.keys()
        self._told = {one: told for one, told in self._told.items() if one in self._left}
        return super().submit(adds)


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def with_fake_engine(folder: Path, n: int) -> tuple[int, int]:
    """Lines that a fake engine has answered through the server's routes, and the memory that the last 4/5 took."""
    server = ServerOptions("demo", limits=LIMITS)
    replica = LocalReplica(EngineOptions("demo"), server, make=lambda: LeanClient(range(300, 400)))
    messages = ({"role": "system", "content": f"You are assistant {i % 7}. " * 20} for i in range(n))
    lines = (
        openai_line(f"q{i}", {"messages": [one, {"role": "user", "content": f"question {i}"}], "max_tokens": 3})
        for i, one in enumerate(messages)
    )
    source = write_lines(folder / "in", lines)
    with OutputFiles(str(folder / "out.jsonl"), restart=False) as files:
        index = index_input(source, CHAT, files.refuse)

        before = 0

        def look(counts: BatchCounts) -> None:
            nonlocal before
            if counts.done == n // 5:
                before = resident()

        async def main() -> tuple[int, int]:
            await replica.start()
            counts = await BatchRun(index, index.order, Defaults(), files, look).run([replica])
            await replica.close()
            return counts.done - counts.failed, resident() - before

        try:
            return asyncio.run(main())
        finally:
            index.close()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
@pytest.mark.parametrize("n", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_lines(tmp_path: Path, n: int) -> None:
    done, grown = with_fake_engine(tmp_path, n)
    assert done == n == len(ids(tmp_path / "out.jsonl"))
    assert grown < 8 << 20
