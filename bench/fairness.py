"""Times a key's first tokens alone and beside a key that asks for 50 times as much.

Writes bench/results/fairness-<model>-<date>.json.

    python bench/fairness.py MODEL [--requests N] [--flood N] [--prompt N] [--tokens N] [--threads N] [-o FOLDER]

`octavo serve` is asked over real sockets for replies to prompts of random tokens, none of which has been seen before.
The key that is timed sends one request after another, with pauses of random length. The other has `flood` requests
under way all the time, in as many connections. Three runs, each with a server of its own: alone, beside the other
key, and, with a fifth of the requests, beside the same load from the same key, to which nobody is fair. Times are
seconds from a request to its first text; `ratio` is of the 95th percentile to that alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import results_file
from octavo.bench.serving.http import Address
from octavo.bench.serving.launch import served
from octavo.bench.serving.stream_reader import StreamedReply, stream

TIMED, OTHER = "timed-key", "other-key"
TOKENS = range(100, 900)
"""Tokens that every vocabulary has, of which prompts are made."""


async def ask(to: Address, draw: random.Random, n_prompt: int, n: int) -> StreamedReply:
    """A reply of `n` tokens to a new prompt of `n_prompt`."""
    body = {"prompt": draw.choices(TOKENS, k=n_prompt), "max_tokens": n, "ignore_eos": True, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}}
    reply = StreamedReply()
    await stream(to, "/v1/completions", body, reply)
    if not reply.good:
        raise SystemExit(f"a request failed: {reply.error}")
    return reply


async def timed(to: Address, args: argparse.Namespace, requests: int) -> list[StreamedReply]:
    """Requests one after another, with pauses."""
    found, draw = [], random.Random(-1)
    for _ in range(requests):
        await asyncio.sleep(draw.uniform(0, args.pause))
        found.append(await ask(to, draw, args.prompt, args.tokens))
    return found


async def flood(to: Address, args: argparse.Namespace, ended: Callable[[StreamedReply], None], seed: int) -> None:
    """Requests without a pause, until it is cancelled."""
    draw = random.Random(seed)
    while True:
        ended(await ask(to, draw, args.prompt, args.tokens))


async def measured(to: Address, args: argparse.Namespace, other: str | None, requests: int) -> dict[str, Any]:
    """The timed key's replies beside those of another key; None for no others."""
    done = list[StreamedReply]()
    mine, begun = replace(to, key=TIMED), perf_counter()
    others = [] if other is None else [
        asyncio.create_task(flood(replace(to, key=other), args, done.append, i)) for i in range(args.flood)
    ]
    if others:
        await asyncio.sleep(args.settle)
    replies = await timed(mine, args, requests)
    seconds = perf_counter() - begun
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    first, gaps = [one.ttft for one in replies], [gap for one in replies for gap in one.gaps]
    return {
        "requests": len(replies),
        "ttft": {f"p{p}": float(np.percentile(first, p)) for p in (50, 95, 100)},
        "gap": {f"p{p}": float(np.percentile(gaps, p)) for p in (50, 95)},
        "others": {"requests": len(done), "tokens_per_second": sum(one.tokens for one in done) / seconds},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--flood", type=int, default=50)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--pause", type=float, default=1.0)
    parser.add_argument("--settle", type=float, default=5.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    args = parser.parse_args()
    options = ["--api-key", TIMED, "--api-key", OTHER, "--ctx-size", "1024"]
    options += [] if args.threads is None else ["--threads", str(args.threads)]
    runs: dict[str, Any] = {}
    for name, other, requests in (
        ("alone", None, args.requests), ("beside", OTHER, args.requests), ("same key", TIMED, args.requests // 5),
    ):
        with served(args.model, options) as to:
            runs[name] = asyncio.run(measured(to, args, other, requests))
        print(name, runs[name], flush=True)
    ratios = {name: runs[name]["ttft"]["p95"] / runs["alone"]["ttft"]["p95"] for name in ("beside", "same key")}
    print("ratio", ratios)
    result = results_file.described() | {
        "workload": {name: getattr(args, name) for name in ("requests", "flood", "prompt", "tokens", "pause")},
        "runs": runs, "ratio": ratios,
    }
    results_file.write(f"fairness-{Path(args.model).stem.lower()}", result, args.output)


if __name__ == "__main__":
    main()
