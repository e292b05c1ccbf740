"""A benchmark of a server from its options to a result: everything that is needed to read the numbers later."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from octavo.bench import machine
from octavo.bench.serving.http import Address
from octavo.bench.serving.latency_stats import read_limits
from octavo.bench.serving.serving_target import ServingTarget, find
from octavo.bench.serving.workloads import WORKLOADS, Workload
from octavo.errors import UsageError

SCHEMA = 1
WARM_OUTPUT = 8
"""Tokens of the replies before a run, which count for nothing."""
EACH = {"a": 4, "b": 1, "c": 1}
"""Requests for each stream, where their number is not given; of workload b 3 in all."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ServingOptions:
    """What to ask: see `octavo bench serve --help`. `command` is what is written down as the command.

    requests   in each run; None: 4 for each stream (a), 3 (b), one conversation for each stream (c)
    settings   what else each request says
    seed       of prompts; None: another one each time, so that no server has seen them
    """

    workload: Literal["a", "b", "c"] = "a"
    streams: Sequence[int] = (1,)
    requests: int | None = None
    input: int = 128
    output: int = 128
    rate: float | None = None
    goodput: str | None = None
    model: str | None = None
    chat: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    command: str = ""


def bench_server(to: Address, options: ServingOptions, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Measure the server at `to`; the result as docs/benchmarks.md describes it.

    Raises UsageError for options out of range, BackendError for a server that can't be reached or answers no request.
    """
    _check(options)
    load = Workload(options.workload, 0, options.input, options.output, options.rate, read_limits(options.goodput))
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    return asyncio.run(_bench(to, options, load, seed, progress))


def _check(options: ServingOptions) -> None:
    numbers = [("--requests", options.requests), ("--input", options.input), ("--output", options.output)]
    for name, value in [*numbers, *(("--streams", n) for n in options.streams)]:
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value} (allowed: 1 or more)")
    if options.rate is not None:
        if not 0 < options.rate < float("inf"):
            raise UsageError(f"--rate is {options.rate}; it must be more than 0")
        if options.workload != "a":
            raise UsageError(f"--rate is for workload a, not {options.workload}")


async def _bench(to: Address, options: ServingOptions, load: Workload, seed: int, progress: Progress) -> dict[str, Any]:
    progress(f"asking {to.url}")
    target = await find(to, options.model, options.chat, options.settings, seed)
    talks = load.workload == "c"
    if talks or target.kind == "words":
        await target.measure_words(chat=talks or target.chat)
    runs = []
    for streams in options.streams:
        requests = options.requests or (3 if load.workload == "b" else EACH[load.workload] * streams)
        runs.append(await _run(target, replace(load, requests=requests), streams, progress))
    return {
        "schema": SCHEMA, "kind": "serve", "command": options.command, "date": machine.now(),
        "machine": machine.machine(), "versions": machine.versions(),
        "server": {"url": to.url, "product": target.product, "model": os.path.basename(target.model)},
        "workload": load.workload, "input": load.input, "output": load.output, "rate": load.rate,
        "goodput": {name: 1e3 * seconds for name, seconds in load.limits.items()},
        "prompts": "words" if talks else target.kind, "settings": options.settings, "seed": seed, "runs": runs,
    }


async def _run(target: ServingTarget, load: Workload, streams: int, progress: Progress) -> dict[str, Any]:
    progress(f"workload {load.workload}, {streams} at a time: warming up")
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(target.first(target.prompt(load.input), WARM_OUTPUT))
    progress(f"workload {load.workload}, {streams} at a time: {load.requests} to come")
    target.replies.clear()
    gc.collect()
    busy, start, cpu = _load_average(), time.perf_counter(), time.process_time()
    row = await WORKLOADS[load.workload](target, load, streams)
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    return {"streams": streams, **row, "wall": wall, "client_cpu": used / wall, "load_average": busy}


def _load_average() -> float | None:
    """Programs that were ready to run in the minute before, on average."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
