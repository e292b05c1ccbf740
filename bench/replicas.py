"""Measures the front of `octavo serve --replicas`: chunks a second, what it adds to a first token, hits of the cache.

    python bench/replicas.py [--streams 64] [--tokens 400] [--alone 200] [-o FOLDER]

Before four replicas whose engines compute nothing, the front runs in a process of its own. Chunks are counted by its
processor time, which other programs do not lengthen: at 50 tokens a second of each stream, so that each chunk comes by
itself. First tokens are timed in turns, at a replica and through the front. Hits are those of conversations of eight
turns with the demo model, on one replica and on four, with a thread each. Needs Linux. The result is
bench/results/replicas-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import results_file
from octavo.bench.serving.http import Address, ReplyError, exchange, get_json, request_bytes
from octavo.bench.serving.launch import free_port, running
from octavo.io.gguf import GGUFFile
from octavo.io.model_path import resolve
from octavo.replicas.local import LocalProcess
from octavo.replicas.replica import Served
from octavo.replicas.replica_process import Setup, start
from octavo.replicas.serve import serve_front
from octavo.server.engine.fake import FakeClient
from octavo.server.serve import bind, run, serve
from octavo.server.serve_options import EngineOptions, ServerOptions
from serve_front import TOKENS, ask, processor_time

REPLICAS, SECRET = 4, "bench"
STEP_S = 0.02
CONVERSATIONS, TURNS = 24, 8
SYSTEM = "You answer questions about numbers. " * 4


def _of_front(request: bytes) -> bytes:
    """A request with the header without which a replica answers nothing."""
    return request.replace(b"\r\n", f"\r\nx-octavo-handover: {SECRET} 0\r\n".encode(), 1)


class FakeReplica:
    """A server's process whose engine computes nothing, see `Running`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.process = subprocess.Popen([sys.executable, __file__, "--replica", str(port)])

    async def served(self) -> Served:
        to = Address("127.0.0.1", self.port)
        while True:
            try:
                done = await exchange(to, _of_front(request_bytes(to, "GET", "/health")), lambda part: None)
                if done.status == 200:
                    return Served(to.host, to.port, 16 << 20, 1 << 20)
                raise ReplyError(f"/health is {done.status}")
            except Exception:
                await asyncio.sleep(0.1)

    async def ended(self) -> str:
        while self.process.poll() is None:
            await asyncio.sleep(0.1)
        return "it ended"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def close(self) -> None:
        self.process.kill()
        self.process.wait()


class FakeLauncher:
    """Starts them at ports that follow the front's."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = ports

    async def start(self, number: int) -> FakeReplica:
        return FakeReplica(self.ports[number])

    async def close(self) -> None:
        pass


def replica(port: int) -> None:
    """Be a replica."""
    with GGUFFile.open(resolve("demo")) as file:
        options = ServerOptions(name="demo", port=port, secret=SECRET)
        run(serve(FakeClient(TOKENS, STEP_S), file, options, bind("127.0.0.1", port)))


def front(ports: Sequence[int]) -> None:
    """Be the front, at the first port, of replicas at the others."""
    options = ServerOptions(name="demo", port=ports[0], secret=SECRET)
    run(serve_front(FakeLauncher(ports[1:]), REPLICAS, options, bind("127.0.0.1", ports[0])))


async def all_up(to: Address) -> None:
    """Wait until all replicas are up."""
    while True:
        states, _ = await get_json(to, "/replicas")
        if all(one["state"] == "up" for one in states):
            return
        await asyncio.sleep(0.1)


async def chunks(to: Address, pid: int, path: str, streams: int, tokens: int) -> dict[str, Any]:
    """Chunks of many streams, and what they took of the front."""
    await ask(to, path, 5)
    start, cpu = time.perf_counter(), processor_time(pid)
    pieces = sum(await asyncio.gather(*(ask(to, path, tokens) for _ in range(streams))))
    seconds, cpu = time.perf_counter() - start, processor_time(pid) - cpu
    assert pieces >= streams * tokens, "each token is a chunk of its own"
    return {"route": path, "streams": streams, "chunks": pieces, "seconds": seconds, "cpu_seconds": cpu,
            "chunks_a_core_second": pieces / cpu}


async def first_token(to: Address) -> float:
    """Seconds to the first token of a stream, on a connection of its own."""
    came: list[float] = []
    said = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "stream": True}
    start = time.perf_counter()
    await exchange(to, _of_front(request_bytes(to, "POST", "/v1/chat/completions", said)),
                   lambda part: came.append(time.perf_counter()))
    return came[0] - start


async def added(to: Address, direct: Address, n: int) -> dict[str, Any]:
    """Milliseconds to a first token at a replica and through the front, in turns."""
    ways: dict[str, list[float]] = {"direct": [], "front": []}
    for i in range(n):
        for name, where in (("direct", direct), ("front", to)) if i % 2 else (("front", to), ("direct", direct)):
            ways[name].append(1000 * await first_token(where))
    p50 = {name: statistics.median(times[5:]) for name, times in ways.items()}
    p99 = {name: statistics.quantiles(times[5:], n=100)[98] for name, times in ways.items()}
    return {"requests": n, "p50_ms": p50, "p99_ms": p99, "added_p50_ms": p50["front"] - p50["direct"]}


async def conversation(to: Address, number: int) -> tuple[int, int]:
    """Tokens of the prompts of a conversation's turns, and how many of them were in the cache."""
    messages = [{"role": "system", "content": SYSTEM}]
    prompts = cached = 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"What is {number} times {turn + 2}?"})
        parts: list[bytes] = []
        said = {"messages": messages, "temperature": 0, "max_tokens": 24}
        done = await exchange(to, request_bytes(to, "POST", "/v1/chat/completions", said), parts.append)
        answer = json.loads(b"".join(parts))
        assert done.status == 200, answer
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        prompts += answer["usage"]["prompt_tokens"]
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        await asyncio.sleep(0.01 * (number % 7))
    return prompts, cached


class OneThread:
    """Starts whole servers of the demo model with a thread each, of which there may be more than cores."""

    async def start(self, number: int) -> LocalProcess:
        engine = EngineOptions("demo", device="cpu", threads=1, kv_memory=256 << 20)
        return LocalProcess(*start(Setup(number, engine, ServerOptions(name="demo", secret=SECRET))))

    async def close(self) -> None:
        pass


def front_of_servers(port: int, replicas: int) -> None:
    """Be the front of servers of the demo model."""
    options = ServerOptions(name="demo", port=port, secret=SECRET)
    run(serve_front(OneThread(), replicas, options, bind("127.0.0.1", port)))


def hits(replicas: int) -> dict[str, Any]:
    """The share of conversations' prompts that is in the caches of this many replicas."""
    async def all_of(to: Address) -> list[tuple[int, int]]:
        await all_up(to)
        return await asyncio.gather(*(conversation(to, 11 + i) for i in range(CONVERSATIONS)))

    to = Address("127.0.0.1", free_port())
    with running("the front", [sys.executable, __file__, "--servers", str(to.port), str(replicas)], to):
        found = asyncio.run(all_of(to))
    prompts, cached = (sum(numbers) for numbers in zip(*found, strict=True))
    return {"replicas": replicas, "conversations": CONVERSATIONS, "turns": TURNS, "prompt_tokens": prompts,
            "cached_tokens": cached, "share": cached / prompts}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--alone", type=int, default=200, help="requests whose first tokens are timed")
    parser.add_argument("--replica", type=int, metavar="PORT", help="be a replica")
    parser.add_argument("--front", type=int, nargs="+", metavar="PORT", help="be the front")
    parser.add_argument("--servers", type=int, nargs=2, metavar=("PORT", "N"), help="be the front of servers")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    asked = parser.parse_args(arguments)
    if asked.replica is not None:
        replica(asked.replica)
        return
    if asked.front is not None:
        front(asked.front)
        return
    if asked.servers is not None:
        front_of_servers(*asked.servers)
        return
    ports = [free_port() for _ in range(1 + REPLICAS)]
    load = os.getloadavg()[0]
    to, direct = Address("127.0.0.1", ports[0]), Address("127.0.0.1", ports[1])
    with running("the front", [sys.executable, __file__, "--front", *map(str, ports)], to) as process:
        asyncio.run(all_up(to))
        first = asyncio.run(added(to, direct, asked.alone))
        routes = [asyncio.run(chunks(to, process.pid, path, asked.streams, asked.tokens))
                  for path in ("/v1/chat/completions", "/v1/completions")]
    found = {"first_token": first, "chunks": routes, "hits": [hits(1), hits(REPLICAS)]}
    described = {**results_file.described(), "cores": os.cpu_count(), "load_before": load}
    results_file.write("replicas", {**described, **found}, asked.output)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
