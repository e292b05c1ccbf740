"""Checks tools/scale_simulator.py against servers; writes bench/results/scale-replicas-<date>.json.

    python bench/scale_replicas.py [MODEL] [--replicas 1,2] [--loads 0.3,0.6] [--requests 60] [-o FOLDER]

In each round servers are first asked how long their steps take, as a client sees it: with N replies under way the
seconds from one token to the next, and the time to the first token of a prompt alone and beside N replies. With two
servers both are asked at once, as they share the machine: the client, two fronts and two engines of one thread each.
Then they get prompts that nobody had, in turn (round robin), at random times (Poisson), the same for the simulator, at
shares of the rate that they could take. Of five rounds the medians count. `steps` are those of one server in the last
round, which the simulator reads.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import results_file
from octavo.bench.serving.http import Address
from octavo.bench.serving.launch import served
from octavo.bench.serving.stream_reader import StreamedReply, stream

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import scale_simulator

REPLIES, TOKENS = (0, 1, 4, 16), (0, 256, 512)
PROMPT, REPLY, SLOTS = 200, 60, 16
ROUNDS = 5
DRAW = random.Random(1)


def prompt(n: int) -> list[int]:
    """Tokens that no server had before."""
    return [DRAW.randrange(5, 900) for _ in range(n)]


async def ask(to: Address, tokens: list[int], reply: int) -> StreamedReply:
    """A greedy reply of this many tokens."""
    found = StreamedReply()
    body = {"prompt": tokens, "max_tokens": reply, "ignore_eos": True, "temperature": 0}
    await stream(to, "/v1/completions", body, found)
    if found.error is not None:
        raise SystemExit(found.error)
    return found


async def steps_of(to: Address) -> list[dict[str, float]]:
    """Seconds of steps, on a grid of replies and prompt tokens."""
    rows = []
    for n in REPLIES:
        own = 0.0
        if n:
            found = await asyncio.gather(*(ask(to, prompt(8), 300) for _ in range(n)))
            own = statistics.median(one.tpot for one in found if one.tpot is not None)
        for p in TOKENS:
            seconds = own if not p else await beside(to, n, p, own)
            rows.append({"replies": n, "prompt_tokens": p, "seconds": seconds})
    return rows


async def steps_of_all(servers: Sequence[Address]) -> list[dict[str, float]]:
    """Of several servers that are asked at once: the means."""
    found = await asyncio.gather(*map(steps_of, servers))
    by_point = zip(*found, strict=True)
    return [{**rows[0], "seconds": statistics.fmean(row["seconds"] for row in rows)} for rows in by_point]


async def beside(to: Address, n: int, p: int, own: float) -> float:
    """Seconds of a step with `n` replies and a prompt of `p` tokens; it begins after half a step on average."""
    background = [asyncio.create_task(ask(to, prompt(8), 900)) for _ in range(n)]
    await asyncio.sleep(0.1 + 4 * own)
    times = [(await ask(to, prompt(p), 1)).ttft - own / 2 for _ in range(5)]
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    return statistics.median(times)


async def measured(servers: Sequence[Address], requests: Sequence[Any]) -> dict[str, float]:
    """What comes of requests at their times, in turn over servers; as `Simulation.figures`."""
    start = perf_counter()

    async def one(i: int, request: Any) -> StreamedReply:
        await asyncio.sleep(max(request.at + start - perf_counter(), 0))
        return await ask(servers[(i + 1) % len(servers)], prompt(request.prompt), request.reply)

    found = await asyncio.gather(*(one(i, request) for i, request in enumerate(requests)))
    span = max(one.ended for one in found) - start - requests[0].at
    gaps = [gap for one in found for gap in one.gaps]
    return {
        "requests_per_s": len(found) / span, "tokens_per_s": sum(one.tokens for one in found) / span,
        **{f"ttft_p{q}_ms": 1e3 * float(np.percentile([one.ttft for one in found], q)) for q in (50, 99)},
        **{f"itl_p{q}_ms": 1e3 * float(np.percentile(gaps, q)) for q in (50, 99)},
    }


def predicted(steps: list[dict[str, float]], n: int, requests: Sequence[Any]) -> dict[str, float]:
    simulation = scale_simulator.Simulation(
        scale_simulator.step_time(steps), [scale_simulator.Replica() for _ in range(n)], "round-robin", SLOTS
    )
    simulation.run(requests)
    found: dict[str, float] = simulation.figures()
    return found


def capacity(steps: list[dict[str, float]]) -> float:
    """Requests a second that a server could take: a reply's share of full steps, and its prompt."""
    seconds = scale_simulator.step_time(steps)
    full: float = seconds(SLOTS // 2, 0)
    return 1 / (seconds(0, PROMPT) + REPLY * full / (SLOTS // 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--replicas", default="1,2")
    parser.add_argument("--loads", default="0.3,0.6")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    options = ["--device", "cpu", "--threads", "1", "--max-sequences", str(SLOTS), "--speculate", "off"]
    cases, alone = [], list[dict[str, float]]()
    loads = [float(load) for load in asked.loads.split(",")]
    for n in map(int, asked.replicas.split(",")):
        rows: dict[float, list[dict[str, float]]] = {load: [] for load in loads}
        with ExitStack() as stack:
            servers = [stack.enter_context(served(asked.model, options)) for _ in range(n)]
            asyncio.run(steps_of_all(servers))  # kernels are compiled, and caches fill
            for round_ in range(ROUNDS):
                steps = asyncio.run(steps_of_all(servers))
                alone = steps if n == 1 else alone
                for load in loads:
                    rate = load * n * capacity(steps)
                    trace = list(scale_simulator.poisson(rate, asked.requests, PROMPT, REPLY, seed=round_))
                    row = {"rate": rate, **asyncio.run(measured(servers, trace))}
                    expected = predicted(steps, n, trace)
                    rows[load].append(row | {f"simulated_{name}": expected[name] for name in row if name != "rate"})
        for load, found in rows.items():
            case = {name: round(statistics.median(row[name] for row in found), 2) for name in found[0]}
            cases.append({"replicas": n, "load": load, **case})
            print(cases[-1], flush=True)
    result = {**results_file.described(), "model": asked.model, "prompt": PROMPT, "reply": REPLY, "cases": cases}
    results_file.write("scale-replicas", {**result, "steps": alone}, asked.output)


if __name__ == "__main__":
    main()
