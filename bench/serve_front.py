"""Measures the front of `octavo serve` alone, before an engine that computes nothing: pieces of replies a second.

    python bench/serve_front.py [--streams 128] [--tokens 400] [-o FOLDER]

The front runs in a process of its own. What counts is its processor time, which other programs do not lengthen:
pieces / seconds of it are what one core can pass on. Needs Linux. The result is bench/results/serve-front-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import results_file
from octavo.bench.serving.http import Address, exchange, request_bytes
from octavo.bench.serving.launch import free_port, running
from octavo.io.gguf import GGUFFile
from octavo.io.model_path import resolve
from octavo.server.engine.fake import FakeClient
from octavo.server.serve import bind, run, serve
from octavo.server.serve_options import ServerOptions

TOKENS = list(range(300, 400))
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": [5, 6, 7]},
    "/completion": {"prompt": [5, 6, 7]},
}


def front(port: int) -> None:
    """Be the front."""
    with GGUFFile.open(resolve("demo")) as file:
        run(serve(FakeClient(TOKENS), file, ServerOptions(name="demo", port=port), bind("127.0.0.1", port)))


def processor_time(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask(to: Address, path: str, tokens: int) -> int:
    """Pieces of a reply of this many tokens."""
    pieces = 0

    def take(part: bytes) -> None:
        nonlocal pieces
        pieces += part.count(b"data: {")

    said = {**ROUTES[path], "max_tokens": tokens, "n_predict": tokens, "stream": True, "ignore_eos": True}
    done = await exchange(to, request_bytes(to, "POST", path, said), take)
    assert done.status == 200, done.status
    return pieces


async def measure(to: Address, pid: int, path: str, streams: int, tokens: int) -> dict[str, Any]:
    """Pieces, and what they took."""
    await ask(to, path, 5)
    start, cpu = time.perf_counter(), processor_time(pid)
    pieces = sum(await asyncio.gather(*(ask(to, path, tokens) for _ in range(streams))))
    seconds, cpu = time.perf_counter() - start, processor_time(pid) - cpu
    assert pieces >= streams * tokens, "each token is a piece of its own"
    return {"route": path, "streams": streams, "pieces": pieces, "seconds": seconds, "cpu_seconds": cpu,
            "pieces_a_core_second": pieces / cpu}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--front", type=int, metavar="PORT", help="be the front")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    asked = parser.parse_args(arguments)
    if asked.front is not None:
        front(asked.front)
        return
    to = Address("127.0.0.1", free_port())
    with running("the front", [sys.executable, __file__, "--front", str(to.port)], to) as process:
        rows = [asyncio.run(measure(to, process.pid, path, asked.streams, asked.tokens)) for path in ROUTES]
    results_file.write("serve-front", {**results_file.described(), "routes": rows}, asked.output)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
