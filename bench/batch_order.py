"""Measures what the order of a batch's lines is worth: `octavo batch`, the same in file order, a server with a client.

    python bench/batch_order.py MODEL [--groups 12] [--lines 96] [--system 512] [--tokens 24] [--kv-memory 512M]

A file of chats: each has one of several system prompts, in turns, so that neighbours in the file share none. All three
have the same engine; the client keeps 64 requests under way. Seconds are from the first request to the last answer.
`host` is the work of this process alone, before an engine that computes nothing. The result is
bench/results/batch-order-<model>-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import results_file
from octavo.batch.batch_file import BatchOptions, answer_file
from octavo.batch.batch_run import BatchCounts, BatchRun
from octavo.batch.input_index import index_input
from octavo.batch.output_files import OutputFiles
from octavo.batch.replica import AHEAD, LIMITS, LocalReplica
from octavo.batch.request_line import CHAT, Defaults
from octavo.bench.serving.http import Address, exchange, request_bytes
from octavo.bench.serving.launch import served
from octavo.cli.serve.options import nbytes
from octavo.io.model_path import resolve
from octavo.server.engine.fake import FakeClient
from octavo.server.serve_options import EngineOptions, ServerOptions

SEQUENCES = 32
WORDS = ("red", "blue", "tree", "house", "river", "stone", "cloud", "bird")
HOST_LINES = 5000


def requests(groups: int, lines: int, system: int, tokens: int) -> list[dict[str, Any]]:
    """Bodies of chats, whose system prompts have about `system` words, in turns."""
    rng = random.Random(0)

    def words(n: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(n))

    systems = [words(system) for _ in range(groups)]
    return [
        {"messages": [{"role": "system", "content": systems[i % groups]}, {"role": "user", "content": words(16)}],
         "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        for i in range(lines)
    ]


def batch(model: str, bodies: Sequence[dict[str, Any]], kv_memory: str, *, in_file_order: bool) -> dict[str, Any]:
    """Seconds and tokens of a batch."""
    engine = EngineOptions(model, max_sequences=SEQUENCES, kv_memory=nbytes(kv_memory), itl_target=0.0)
    options = BatchOptions(engine, ServerOptions("model"), in_file_order=in_file_order)
    with written(bodies) as (source, output):
        counts = answer_file(source, output, options).counts
    assert (counts.done, counts.failed) == (len(bodies), 0)
    return row(counts.seconds, counts.prompt_tokens, counts.cached_tokens, counts.completion_tokens)


def server(model: str, bodies: Sequence[dict[str, Any]], kv_memory: str) -> dict[str, Any]:
    """Seconds and tokens of `octavo serve`, asked by a client in file order."""
    with served(model, ["-np", str(SEQUENCES), "--kv-memory", kv_memory]) as to:
        return asyncio.run(ask_all(to, bodies))


async def ask_all(to: Address, bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    usages, left = list[dict[str, Any]](), iter(bodies)

    async def keep_asking() -> None:
        for body in left:
            parts = list[bytes]()
            done = await exchange(to, request_bytes(to, "POST", CHAT, body), parts.append)
            assert done.status == 200, b"".join(parts)
            usages.append(json.loads(b"".join(parts))["usage"])

    start = time.monotonic()
    await asyncio.gather(*(keep_asking() for _ in range(AHEAD * SEQUENCES)))
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    prompts, replies = (sum(usage[f"{kind}_tokens"] for usage in usages) for kind in ("prompt", "completion"))
    return row(time.monotonic() - start, prompts, cached, replies)


def host(model: str) -> dict[str, Any]:
    """Processor time of a batch with short prompts whose replies are there at once."""
    bodies = requests(1, HOST_LINES, 64, 4)
    options = ServerOptions("model", limits=LIMITS)
    replica = LocalReplica(EngineOptions(model), options, make=lambda: FakeClient(range(300, 400)))
    with written(bodies) as (source, output), OutputFiles(output, restart=False) as files:
        start = time.process_time()
        index = index_input(source, CHAT, files.refuse)
        read = time.process_time() - start

        async def answer() -> BatchCounts:
            await replica.start()
            try:
                return await BatchRun(index, index.order, Defaults(), files).run([replica])
            finally:
                await replica.close()

        start = time.process_time()
        assert asyncio.run(answer()).done == HOST_LINES
        answered = time.process_time() - start
        index.close()
    return {"lines": HOST_LINES, "lines_read_a_core_second": round(HOST_LINES / read),
            "lines_answered_a_core_second": round(HOST_LINES / answered)}


@contextmanager
def written(bodies: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The paths of a file with these requests, and of one for the responses."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        source.write_text("".join(json.dumps(body) + "\n" for body in bodies))
        yield str(source), str(output)


def row(seconds: float, prompts: int, cached: int, replies: int) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 2), "prompt_tokens": prompts, "cached_tokens": cached, "completion_tokens": replies,
        "tokens_per_second": round(replies / seconds, 1), "prompts_per_second": round(prompts / seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model")
    parser.add_argument("--groups", type=int, default=12)
    parser.add_argument("--lines", type=int, default=96)
    parser.add_argument("--system", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--kv-memory", default="512M")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    asked = parser.parse_args()
    model, bodies = resolve(asked.model), requests(asked.groups, asked.lines, asked.system, asked.tokens)
    rows = {
        "batch": batch(model, bodies, asked.kv_memory, in_file_order=False),
        "batch in file order": batch(model, bodies, asked.kv_memory, in_file_order=True),
        "host": host(model),
        "serve and a client": server(model, bodies, asked.kv_memory),
    }
    results_file.write(f"batch-order-{Path(model).stem}", {**results_file.described(), "rows": rows}, asked.output)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
