"""Measures Ray Serve's proxies as bench/replicas.py does our front: chunks a second, first tokens, a killed replica.

    python bench/ray_serve.py [--streams 64] [--tokens 400] [-o FOLDER]            # Serve's proxy in Python
    RAY_SERVE_ENABLE_HA_PROXY=1 python bench/ray_serve.py                           # HAProxy, which Serve starts

Four replicas write chunks of a chat completion, 50 a second for each stream, and compute nothing. Needs Linux and
`pip install 'ray[serve]'`. The result is bench/results/ray-serve-<proxy>-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

import results_file
from octavo.bench.serving.http import Address, ReplyError, exchange, request_bytes
from serve_front import processor_time

REPLICAS, STEP_S = 4, 0.02
PROXY = "haproxy" if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" else "python"
CHUNK = (
    b'data: {"id":"chatcmpl-000000000000000000000000","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"demo","system_fingerprint":"octavo-0.1.0","choices":[{"index":0,"delta":{"content":" is"},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)


@serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=256, ray_actor_options={"num_cpus": 0})
class Replica:
    """Writes chunks."""

    async def __call__(self, request: Request) -> StreamingResponse:
        tokens = int((await request.json())["max_tokens"])

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(tokens):
                yield CHUNK
                await asyncio.sleep(STEP_S)

        return StreamingResponse(chunks(), media_type="text/event-stream")


def pids(*names: str) -> list[int]:
    """The processes of this machine whose command lines have one of the names."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if any(name.encode() in line for name in names):
            found.append(int(path.parent.name))
    return found


async def ask(to: Address, tokens: int) -> tuple[int, float, bool]:
    """Chunks of a stream, the seconds to the first, and whether it came to its end."""
    pieces, first, start = 0, 0.0, time.perf_counter()

    def take(part: bytes) -> None:
        nonlocal pieces, first
        first = first or time.perf_counter() - start
        pieces += part.count(b"data: {")

    try:
        await exchange(to, request_bytes(to, "POST", "/", {"max_tokens": tokens}), take)
    except ReplyError:
        return pieces, first, False
    return pieces, first, pieces == tokens


async def all_of(to: Address, streams: int, tokens: int, *, kill: bool = False) -> list[tuple[int, float, bool]]:
    asked = [asyncio.ensure_future(ask(to, tokens)) for _ in range(streams)]
    if kill:
        await asyncio.sleep(STEP_S * tokens / 2)
        os.kill(pids("ray::ServeReplica")[0], signal.SIGKILL)
    return await asyncio.gather(*asked)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    asked = parser.parse_args(arguments)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": 8765})
        serve.run(Replica.bind())  # type: ignore[attr-defined]
        to = Address("127.0.0.1", 8765)
        asyncio.run(all_of(to, 8, 5))
        firsts = [1000 * asyncio.run(ask(to, 1))[1] for _ in range(100)]
        proxies = pids("haproxy") if PROXY == "haproxy" else pids("ray::ProxyActor")
        before = sum(map(processor_time, proxies))
        start = time.perf_counter()
        found = asyncio.run(all_of(to, asked.streams, asked.tokens))
        seconds, cpu = time.perf_counter() - start, sum(map(processor_time, proxies)) - before
        pieces = sum(n for n, _, _ in found)
        killed = asyncio.run(all_of(to, asked.streams, asked.tokens // 2, kill=True))
    finally:
        serve.shutdown()
        ray.shutdown()
    cut = sum(not whole for _, _, whole in killed)
    result: dict[str, Any] = {
        "proxy": PROXY, "ray": ray.__version__, "streams": asked.streams, "chunks": pieces, "seconds": seconds,
        "cpu_seconds": cpu, "chunks_a_core_second": pieces / cpu if cpu else None,
        "first_token_p50_ms": statistics.median(firsts[5:]), "streams_cut_by_a_kill": cut,
    }
    results_file.write(f"ray-serve-{PROXY}", {**results_file.described(), **result}, asked.output)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
