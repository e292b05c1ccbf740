"""Whether what a server does for one request grows with what it holds: processor's time at n and at 16 n.

    python bench/growth.py [--rounds N] [--chats N] [-o FOLDER]

Each row is a piece of work of the runtime: its microseconds, and the calls it makes, where there are `n` of what `of`
says and where there are 16 times as many. Of the rounds the fastest counts. Where calls are as many and the time is
longer, memory is farther away, or something is looked through without calls. `served` is a server of the demo model
that answers short chats which all begin alike, its pages filling up: the milliseconds of a processor that its engine
takes for each request, of every eighth. Needs Linux. Written to bench/results/growth-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import results_file
from octavo.bench.serving.http import Address, exchange, request_bytes
from octavo.bench.serving.launch import free_port, running
from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import PagePool
from octavo.runtime.cache.page_pool import Sequence as Cached
from octavo.runtime.cache.prefix_tree import PrefixTree
from octavo.runtime.sampling.processors import LogitsProcessor, RepeatPenalty, ReplyPenalties, adjustments_of
from octavo.runtime.sampling.token_counts import CountedText
from octavo.runtime.scheduler.prefill_budget import PrefillBudget
from octavo.runtime.scheduler.request import Request
from octavo.runtime.scheduler.scheduler import ScheduledStep, Scheduler

TIMES = 16
Parts = dict[str, float]
Measure = Callable[..., float]


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Seconds of a processor that each call takes, by number of calls."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        for _ in range(times):
            work()
        return (time.process_time() - start) / times
    finally:
        gc.enable()


def calls(work: Callable[[], object], times: int = 1) -> float:
    """Calls that each of them makes, of functions in Python and in C."""
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        for _ in range(times):
            work()
    finally:
        sys.setprofile(None)
    return count / times


def page(i: int, length: int = PAGE_SIZE) -> list[int]:
    """Tokens of which the first eight are those of all pages."""
    return [*[1] * 8, i, *[i % 30011] * (length - 9)]


def cached(pool: PagePool, tree: PrefixTree, tokens: list[int]) -> None:
    """Put pages of these tokens in the cache."""
    sequence = Cached()
    pool.grow(sequence, len(tokens))
    sequence.tokens += tokens
    tree.insert(sequence, tail=True)
    pool.release(sequence)


def siblings(measure: Measure, n: int) -> Parts:
    """The cache where `n` pages that are not full begin alike."""
    work, length = 200, PAGE_SIZE - 1
    pool = PagePool(n + work)
    tree = PrefixTree(pool)
    for i in range(n):
        cached(pool, tree, page(i, length))
    asked, more = iter(range(n)), iter(range(n, n + work))
    step = max(1, n // work)
    found = {
        "look-up": measure(lambda: tree.match_length(page(next(asked) * step, length)), min(work, n)),
        "insert": measure(lambda: cached(pool, tree, page(next(more), length)), work),
    }
    return found | {"evict": measure(tree.evict, work)}


def scheduler_of(n_pages: int, running: int, n_batch: int = 64, n_ctx: int = 400) -> Scheduler:
    pool = PagePool(n_pages)
    return Scheduler(pool, PrefixTree(pool), PrefillBudget(n_batch), n_ctx, running)


def request(prompt: list[int]) -> Request:
    return Request(prompt, lambda logits, tokens: 0, 20, frozenset({0}))


def admission(measure: Measure, n: int) -> Parts:
    """Each of `n` requests that begin in one step."""
    scheduler = scheduler_of(4 * n, n)
    for i in range(n):
        scheduler.add(request([i + 1] * (2 * PAGE_SIZE + 5)))
    return {"admission": measure(scheduler.schedule) / n}


def cancelling(measure: Measure, n: int) -> Parts:
    """Each of `n` requests that are cancelled, of twice as many that wait."""
    scheduler = scheduler_of(20, 4)
    waiting = [request([i + 1]) for i in range(2 * n)]
    for one in waiting:
        scheduler.add(one)
    for one in waiting[n:]:
        scheduler.cancel(one)
    return {"cancel": measure(scheduler.drop_cancelled) / n}


def committed(scheduler: Scheduler, plan: ScheduledStep) -> None:
    """End a step as if a model had chosen token 1 in all its rows."""
    scheduler.commit(plan, {r: 1 for r, _ in plan.sampling})


def waiting(measure: Measure, n: int) -> Parts:
    """A step of one token where `n` requests wait behind those that run, which are all that may."""
    scheduler = scheduler_of(64, 4)
    for i in range(4 + n):
        scheduler.add(request([i % 30011 + 1] * 9))
    plan = scheduler.schedule()
    committed(scheduler, plan)
    plans: list[ScheduledStep] = []

    def step() -> None:
        plans.append(scheduler.schedule())
        committed(scheduler, plans[-1])

    return {"step": measure(step, 12)}


def held_back(measure: Measure, pages: int) -> Parts:
    """A step where eight requests wait for this many pages that another has computed halfway."""
    scheduler = scheduler_of(2 * pages, 4, PAGE_SIZE, 2 * pages * PAGE_SIZE)
    common = [t % 251 for t in range(pages * PAGE_SIZE + 1)]
    scheduler.add(request(common))
    committed(scheduler, scheduler.schedule())
    for i in range(8):
        scheduler.add(request([*common, i + 1]))
    while len(scheduler.running[0].sequence) < pages // 2 * PAGE_SIZE:
        committed(scheduler, scheduler.schedule())
    return {"step of those who share": measure(scheduler.schedule)}


def penalties(measure: Measure, n: int) -> Parts:
    """A token of a reply of `n`, of as many different ones in both."""
    kinds: dict[str, LogitsProcessor] = {"presence": ReplyPenalties(1, 1, 5), "repeat": RepeatPenalty(1.2, 1 << 20)}
    found = {}
    for name, kind in kinds.items():
        rng = random.Random(0)
        text = CountedText(rng.randrange(500) for _ in range(n))
        adjustments_of([(kind,)], [text])

        def token(kind: LogitsProcessor = kind, text: CountedText = text) -> None:
            text.append(7)
            adjustments_of([(kind,)], [text])

        found[f"a token's {name} penalty"] = measure(token, 200)
    return found


WORK: tuple[tuple[str, Callable[[Measure, int], Parts], int], ...] = (
    ("pages that begin alike", siblings, 64),
    ("pages that begin alike", siblings, 1024),
    ("requests that begin in a step", admission, 16),
    ("requests that are cancelled", cancelling, 256),
    ("requests that wait", waiting, 64),
    ("pages that are waited for", held_back, 16),
    ("tokens of a reply", penalties, 2000),
)


def grown(rounds: int) -> list[dict[str, Any]]:
    """A row for each piece of work."""
    rows = []
    for of, work, n in WORK:
        timed = [[work(seconds, size) for _ in range(rounds)] for size in (n, TIMES * n)]
        counted = [work(calls, size) for size in (n, TIMES * n)]
        for name in counted[0]:
            us = [round(1e6 * min(found[name] for found in of_size), 2) for of_size in timed]
            row = {"work": name, "of": of, "n": [n, TIMES * n], "us": us, "ratio": round(us[1] / us[0], 2),
                   "calls": [round(found[name], 1) for found in counted]}
            rows.append(row)
            print(row, flush=True)
    return rows


def processor_time(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def asked(to: Address, numbers: Sequence[int], streams: int) -> None:
    """Short chats of these numbers, `streams` at a time."""
    left = iter(numbers)

    async def one_after_the_other() -> None:
        for i in left:
            said = {"messages": [{"role": "user", "content": f"What is {i} plus {i % 97}?"}], "max_tokens": 4}
            done = await exchange(to, request_bytes(to, "POST", "/v1/chat/completions", said), lambda part: None)
            assert done.status == 200, done.status

    await asyncio.gather(*(one_after_the_other() for _ in range(streams)))


def chats(count: int, streams: int) -> dict[str, Any]:
    """What each eighth of this many chats takes of the engine's processor."""
    to, part = Address("127.0.0.1", free_port()), count // 8
    command = [sys.executable, "-m", "octavo", "serve", "demo", "--port", str(to.port), "-np", "256", "--device", "cpu"]
    with running("octavo serve", command, to) as process:
        engine = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        asyncio.run(asked(to, range(count, count + 100), streams))  # compiles what is needed
        taken = []
        for start in range(0, part * 8, part):
            before = processor_time(engine)
            asyncio.run(asked(to, range(start, start + part), streams))
            taken.append(round(1e3 * (processor_time(engine) - before) / part, 2))
            print(taken, flush=True)
    return {"chats": count, "slots": 256, "at_once": streams, "each_part": part, "ms_of_a_request": taken,
            "ratio": round(taken[-1] / taken[0], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chats", type=int, default=4000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    result = {
        **results_file.described(),
        "rounds": options.rounds,
        "rows": grown(options.rounds),
        "served": chats(options.chats, options.at_once),
    }
    results_file.write("growth", result, options.output)


if __name__ == "__main__":
    main()
