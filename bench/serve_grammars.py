"""Sends thousands of random and hostile grammars to `octavo serve`, and looks at what others notice of that.

    python bench/serve_grammars.py [MODEL] [--count 5000] [--rounds 10] [--streams 8] [--at-once 4] [--seconds 10]

Plain replies are streamed throughout. A round has three parts: the streams alone, the streams beside plain short
requests, and the streams beside grammars, which are drawn by `hostile_grammars.py`, as many requests at once. Rounds
alternate because other work on the machine changes; what it took of the processors is noted with each part.

Exit status 1 where a request was answered with anything but a reply or an error of the grammar, or not within its
limit, where a stream broke, a process ended, /health was not 200, or the memory grew. Needs Linux. The result is
bench/results/serve-grammars-<date>.json, or in the folder that `-o` names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import results_file
from hostile_grammars import case
from octavo.bench.serving.http import Address, ReplyError, exchange, request_bytes
from octavo.bench.serving.launch import free_port, running
from octavo.bench.serving.stream_reader import StreamedReply, stream
from octavo.runtime.grammar.workers import LONGEST_S, STARTING_S
from serve_front import processor_time
from serve_soak import memory

MOST_TOKENS, STREAMED = 12, 400
"""Tokens of replies: the most with a grammar, and those of each that is streamed."""
ERROR = re.compile(r'"error": ?\{.*?"message": ?("(?:[^"\\]|\\.)*")', re.DOTALL)
ALLOWED = re.compile(
    r"the (body|grammar|JSON schema|GBNF grammar)|an object of the JSON schema|(lark|gbnf|regex|choice) is "
)
"""What an error of a grammar begins with."""
KINDS = ("alone", "plain", "grammars")
MOST_GROWTH = 30e6
"""Bytes that a process may have more in the last quarter than in the first."""


@dataclass
class Part:
    """A part of a round: when it was, requests beside the streams, and what the processors did.

    server, others  CPU seconds of the server with its processes, and of everything else but this one
    """

    kind: str
    begun: float
    ended: float = 0.0
    answers: int = 0
    server: float = 0.0
    others: float = 0.0


@dataclass
class Run:
    """A server, and what is noted of it.

    answers   how many of each kind of grammar had which outcome
    said      the errors, without their numbers
    slowest   seconds that answers took, the most tokens of their replies, and their number
    memory    now and then: seconds since the start, bytes of the front, the engine and all processes for grammars, and
              how many these are
    health    seconds that /health took
    lasting   processes that are to be there until the end
    arrivals  when pieces of each plain reply came
    """

    to: Address
    pid: int
    seed: int
    answers: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, int, int]] = field(default_factory=list)
    memory: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    lasting: set[int] = field(default_factory=set)
    arrivals: list[list[float]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def tell(self, number: int, family: str, outcome: str, error: str | None = None) -> None:
        self.answers[f"{family}: {outcome}"] += 1
        if error is None:
            return
        self.said[re.sub(r"\d+", "N", error)[:70]] += 1
        if "\n" in error or not ALLOWED.match(error):
            self.wrong[f"{number} {family}: {outcome} {error[:200]!r}"] += 1

    def gaps(self, kind: str) -> list[float]:
        """Seconds between pieces of plain replies that both came in a part of this kind, in order of their length."""
        found = []
        for one in self.parts:
            for times in self.arrivals if one.kind == kind else ():
                within = times[bisect_left(times, one.begun) : bisect_right(times, one.ended)]
                found += [b - a for a, b in pairwise(within)]
        return sorted(found)


@contextmanager
def started(model: str, seed: int, sequences: int, log: Path) -> Iterator[Run]:
    """A server with room for this many replies at a time."""
    to = Address("127.0.0.1", free_port())
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(to.port), "-np", str(sequences),
               "--device", "cpu"]
    with running("octavo serve", ["bash", "-c", f'exec "$@" 2> {log}', "serve", *command], to) as process:
        yield Run(to, process.pid, seed)


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    found = list[int]()
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def processes(front: int) -> tuple[int, list[int], list[int]]:
    """The engine's process, those that fork workers, and the workers. Raises OSError where one ends meanwhile."""
    named = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(front)}
    (engine,) = (pid for pid, line in named.items() if b"octavo.server.worker" in line)
    named |= {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(engine)}
    hosts = [pid for pid, line in named.items() if b"grammar_process" in line]
    return engine, hosts, [one for host in hosts for one in children(host)]


def busy() -> float:
    """Seconds that all processors have computed, those that were taken away included."""
    user, nice, system, _, _, *irq = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(irq)) / os.sysconf("SC_CLK_TCK")


def computed(pid: int) -> float:
    """Seconds that a process and its children that have ended have computed, and those that have not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    found = processor_time(pid) + ended
    for one in children(pid):
        with suppress(OSError):
            found += computed(one)
    return found


@contextmanager
def part(run: Run, kind: str) -> Iterator[Part]:
    """Note what happens as a part of a round."""
    before, server, client = busy(), computed(run.pid), time.process_time()
    now = Part(kind, time.perf_counter())
    run.parts.append(now)
    yield now
    now.ended, now.server = time.perf_counter(), computed(run.pid) - server
    now.others = max(busy() - before - now.server - (time.process_time() - client), 0.0)


async def streaming(run: Run, number: int) -> None:
    """Stream plain replies, one after the other."""
    draw = Random(number)
    while True:
        reply = StreamedReply()
        run.arrivals.append(reply.arrivals)
        ids = [draw.randrange(300, 400) for _ in range(draw.randrange(5, 30))]
        asked = {"prompt": ids, "max_tokens": STREAMED, "ignore_eos": True, "temperature": 0}
        await stream(run.to, "/v1/completions", asked, reply)
        if not reply.good or reply.tokens != STREAMED:
            run.wrong[f"a plain stream: {reply.error or reply.tokens}"] += 1
            await asyncio.sleep(0.1)


async def all_at_once(n: int, calls: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Call all, this many at a time."""
    left = list(reversed(calls))

    async def next_ones() -> None:
        while left:
            await left.pop()()

    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            group.create_task(next_ones())


async def plain(run: Run, now: Part, seconds: float, n: int) -> None:
    """Short requests without a grammar, this many at a time."""
    asked = {"prompt": list(range(300, 320)), "max_tokens": 6, "temperature": 1.0}

    async def one_after_the_other() -> None:
        while time.perf_counter() - now.begun < seconds:
            status, text = await ask(run.to, request_bytes(run.to, "POST", "/v1/completions", asked))
            now.answers += 1
            if status != 200:
                run.wrong[f"a plain request: {status} {text[:80]}"] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            group.create_task(one_after_the_other())


async def ask(to: Address, data: bytes) -> tuple[int, str]:
    """Status and body of an answer."""
    parts: list[bytes] = []
    done = await exchange(to, data, parts.append)
    return done.status, b"".join(parts).decode()


async def hostile(run: Run, number: int, family: str, data: bytes, tokens: int) -> None:
    """A request with a grammar, to its end."""
    begun = time.perf_counter()
    try:
        status, text = await asyncio.wait_for(ask(run.to, data), most_seconds(tokens))
    except (TimeoutError, ReplyError) as error:
        run.wrong[f"{number} {family}: {error or 'no answer'}"] += 1
        return
    run.parts[-1].answers += 1
    run.slowest.append((round(time.perf_counter() - begun, 3), tokens, number))
    found = ERROR.search(text)
    if found is not None and status in (200, 400):
        run.tell(number, family, "an error in the reply" if status == 200 else "400", json.loads(found[1]))
    elif status == 200 and '"finish_reason"' in text:
        run.tell(number, family, "200")
    else:
        run.wrong[f"{number} {family}: {status} {text[:200]}"] += 1


def most_seconds(tokens: int) -> float:
    """Until a grammar is answered at the latest: it is compiled twice, and followed for this many tokens."""
    return 2 * STARTING_S + tokens * LONGEST_S


def request(run: Run, number: int) -> Callable[[], Awaitable[None]]:
    """What sends a grammar."""
    draw, drawn = Random(number), case(run.seed, number)
    tokens = draw.randint(1, MOST_TOKENS)
    asked = {"messages": [{"role": "user", "content": "What is 3 * 4?"}], "max_tokens": tokens,
             "temperature": draw.choice([0, 1.0]), "stream": draw.random() < 0.5, **drawn.fields}
    data = request_bytes(run.to, "POST", "/v1/chat/completions", asked)
    return lambda: hostile(run, number, drawn.family, data, tokens)


async def watching(run: Run) -> None:
    """Look at /health and the memory now and then, and see that the processes which are to last do."""
    start = time.perf_counter()
    while True:
        begun = time.perf_counter()
        try:
            status, _ = await ask(run.to, request_bytes(run.to, "GET", "/health"))
            if status != 200:
                run.wrong[f"/health: {status}"] += 1
        except ReplyError as error:
            run.wrong[f"/health: {error}"] += 1
        run.health.append(time.perf_counter() - begun)
        with suppress(OSError):
            engine, hosts, workers = processes(run.pid)
            if not run.lasting:
                run.lasting = {engine, *hosts}
            if run.lasting != {engine, *hosts}:
                run.wrong[f"processes {run.lasting} are {engine}, {hosts}"] += 1
                run.lasting = {engine, *hosts}
            n = 0
            for pid in (*hosts, *workers):
                with suppress(OSError):
                    n += memory(pid)
            run.memory.append((round(begun - start, 1), memory(run.pid), memory(engine), n, len(workers)))
        await asyncio.sleep(1.0)


async def measured(run: Run, asked: argparse.Namespace) -> None:
    """All rounds."""
    first = {"prompt": [300], "max_tokens": 1, "grammar": "start: /a/"}
    await ask(run.to, request_bytes(run.to, "POST", "/v1/completions", first))
    beside = [asyncio.create_task(streaming(run, i)) for i in range(asked.streams)]
    await asyncio.sleep(2.0)
    beside.append(asyncio.create_task(watching(run)))
    each = -(-asked.count // asked.rounds)
    for start in range(asked.first, asked.first + asked.count, each):
        with part(run, "alone"):
            await asyncio.sleep(asked.seconds)
        with part(run, "plain") as now:
            await plain(run, now, asked.seconds, asked.at_once)
        numbers = range(start, min(start + each, asked.first + asked.count))
        calls = [request(run, number) for number in numbers]
        with part(run, "grammars") as now:
            await all_at_once(asked.at_once, calls)
        p99 = ", ".join(f"{kind} {1e3 * at(run.gaps(kind), 0.99):.1f}" for kind in KINDS)
        print(
            f"to {numbers.stop}, {now.ended - now.begun:.0f} s; gaps of {p99} ms; {run.wrong.total()} wrong", flush=True
        )
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)


def at(ordered: Sequence[float], share: float) -> float:
    """The value below which such a share of ordered ones is."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def spread(ordered: Sequence[float]) -> dict[str, float]:
    return {name: round(at(ordered, share), 5) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def found(run: Run) -> dict[str, Any]:
    """What came of a run, and what was not as it should be."""
    gaps = {kind: run.gaps(kind) for kind in KINDS}
    p99 = {kind: at(one, 0.99) for kind, one in gaps.items()}
    columns = list(zip(*run.memory, strict=True))
    quarter = len(run.memory) // 4 or 1
    held = {
        name: {"first": max(column[:quarter]), "last": max(column[-quarter:]), "most": max(column)}
        for name, column in zip(("front", "engine", "grammars", "workers"), columns[1:], strict=True)
    }
    run.wrong.update(
        f"the {name} had {held[name]['first']} bytes at first and {held[name]['last']} at last"
        for name in ("front", "engine") if held[name]["last"] - held[name]["first"] > MOST_GROWTH
    )
    seconds = sorted(one for one, _, _ in run.slowest)
    nearest = max(one / most_seconds(tokens) for one, tokens, _ in run.slowest)
    return {
        "wrong": dict(run.wrong),
        "outcomes": dict(Counter(key.rpartition(": ")[2] for key in run.answers.elements())),
        "gaps": {kind: {"count": len(one), **spread(one)} for kind, one in gaps.items()},
        "p99 to that alone": {kind: round(p99[kind] / p99["alone"], 2) for kind in KINDS[1:]},
        "p99 to that beside plain requests": round(p99["grammars"] / p99["plain"], 2),
        "answers": {**spread(seconds), "share of the limit": round(nearest, 3)},
        "health": {"count": len(run.health), **spread(sorted(run.health))},
        "memory": held,
        "processors": {kind: processors([one for one in run.parts if one.kind == kind]) for kind in KINDS},
        "slowest": sorted(run.slowest, reverse=True)[:10],
        "errors": dict(run.said.most_common()),
        "by kind": dict(sorted(run.answers.items())),
    }


def processors(parts: Sequence[Part]) -> dict[str, float]:
    """Of parts of a kind: seconds, requests beside the streams, and how many processors worked for whom."""
    seconds = sum(one.ended - one.begun for one in parts)
    return {
        "seconds": round(seconds, 1), "requests": sum(one.answers for one in parts),
        "server": round(sum(one.server for one in parts) / seconds, 2),
        "others": round(sum(one.others for one in parts) / seconds, 2),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="number of the first grammar")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    asked = parser.parse_args(arguments)
    described = results_file.described()  # before the run, which is of what is there now
    with tempfile.NamedTemporaryFile() as log:
        with started(asked.model, asked.seed, asked.streams + asked.at_once, Path(log.name)) as run:
            asyncio.run(measured(run, asked))
        said = log.read().decode(errors="replace")
    if "Traceback" in said:
        run.wrong[f"the server says {said[said.index('Traceback') :][:2000]}"] += 1
    result = found(run)
    counts = {"count": asked.count, "streams": asked.streams, "at once": asked.at_once}
    results_file.write(
        "serve-grammars", {**described, **counts, **result, "warnings": said.count("WARNING")}, asked.output
    )
    print(json.dumps(result, indent=1))
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
