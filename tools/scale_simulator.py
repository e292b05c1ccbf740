"""Simulates replicas behind a router: throughput, latency and cost from 1 to 1,000 of them, from measured step times.

    python tools/scale_simulator.py STEPS.json --rate 40 --prompt 800 --reply 200 [--replicas 1,2,4,8] [--price 2.5]

STEPS.json has `steps`, a list of {"replies", "prompt_tokens", "seconds"}: how long a step takes that computes a token
of each of `replies`, and `prompt_tokens` of prompts; bench/scale_replicas.py measures them. Between measured points
the time is linear, beyond them it goes on as between the last two.

What is simulated: requests arrive at random (Poisson), a router gives each to a replica, a replica computes steps one
after the other as the engine does: a token of each running reply, and of prompts, the oldest first, as many tokens as
--batch leaves. A prompt whose prefix the replica has begins behind it; a replica keeps the prefixes used last, up to
--cache tokens. What is not: pages that run out, the network, replicas that fail, prompts of unlike lengths.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

MOST_REPLICAS = 10_000
BOUND = 1.25
"""Load of a replica, over the mean, from which a prefix goes elsewhere."""
StepTime = Callable[[int, int], float]


def step_time(rows: Sequence[dict[str, float]]) -> StepTime:
    """Seconds of a step by replies and prompt tokens, linear between the points of a full grid. Raises ValueError."""
    xs, ys = sorted({int(r["replies"]) for r in rows}), sorted({int(r["prompt_tokens"]) for r in rows})
    known = {(int(r["replies"]), int(r["prompt_tokens"])): float(r["seconds"]) for r in rows}
    known.setdefault((0, 0), 0.0)
    missing = [(x, y) for x in xs for y in ys if (x, y) not in known]
    if missing:
        raise ValueError(f"steps of (replies, prompt tokens) are missing: {missing}")
    if len(xs) < 2 or len(ys) < 2:
        raise ValueError("steps need two numbers of replies and two of prompt tokens, 0 among them")
    if not all(math.isfinite(value) and value >= 0 for value in known.values()) or not any(known.values()):
        raise ValueError("seconds of steps are not all finite, or below 0, or all 0")
    memory: dict[tuple[int, int], float] = {}

    def seconds(replies: int, tokens: int) -> float:
        if (found := memory.get((replies, tokens))) is None:
            i, u = _between(xs, replies)
            j, v = _between(ys, tokens)
            low = known[xs[i], ys[j]] * (1 - u) + known[xs[i + 1], ys[j]] * u
            high = known[xs[i], ys[j + 1]] * (1 - u) + known[xs[i + 1], ys[j + 1]] * u
            found = memory[replies, tokens] = max(low * (1 - v) + high * v, 1e-9)
        return found

    return seconds


def _between(points: Sequence[int], at: int) -> tuple[int, float]:
    """The segment of sorted points for a value, and where in it that is; outside of 0 to 1 beyond the ends."""
    i = min(max(bisect_right(points, at) - 1, 0), len(points) - 2)
    return i, (at - points[i]) / (points[i + 1] - points[i])


@dataclass(slots=True)
class Request:
    """A prompt of `prompt` tokens, of which the first `shared` are those of all requests with this `prefix`.

    left, written, first  tokens of the prompt to compute; of the reply so far; when the first of these came
    """

    at: float
    prompt: int
    reply: int
    prefix: int = 0
    shared: int = 0
    left: int = 0
    written: int = 0
    first: float = 0.0
    end: float = 0.0
    cached: int = 0


@dataclass(slots=True, eq=False)
class Replica:
    """An engine: what waits, what runs, and the steps that it is in: `n_steps` of `seconds` each, since `began`."""

    waiting: deque[Request] = field(default_factory=deque)
    prefilling: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    prefixes: OrderedDict[int, int] = field(default_factory=OrderedDict)
    began: float = 0.0
    seconds: float = 0.0
    n_steps: int = 0
    parts: list[tuple[Request, int]] = field(default_factory=list)
    version: int = 0
    load: int = 0
    busy: float = 0.0


@dataclass
class Simulation:
    """`replicas` engines with `slots` replies and `batch` tokens a step each, and what comes of requests.

    cache  tokens of prefixes that a replica keeps
    most   steps that are taken together at most, where nothing changes in between
    gaps   seconds between two tokens of a reply, with how many there were
    """

    seconds: StepTime
    replicas: list[Replica]
    routing: str = "prefix"
    slots: int = 32
    batch: int = 512
    cache: int = 100_000
    most: int = 1 << 30
    gaps: list[tuple[float, int]] = field(default_factory=list)
    done: list[Request] = field(default_factory=list)
    _turn: int = 0
    _total: int = 0
    _homes: dict[int, int] = field(default_factory=dict)
    _ends: list[tuple[float, int, int]] = field(default_factory=list)

    def run(self, requests: Sequence[Request]) -> None:
        """Take requests, sorted by their times, to their ends."""
        for request in requests:
            self._advance(request.at)
            number = self.route(request)
            replica = self.replicas[number]
            replica.waiting.append(request)
            replica.load, self._total = replica.load + 1, self._total + 1
            if not replica.n_steps:
                self._begin(number, request.at)
            elif replica.n_steps > 1:  # it has to be looked at after the step that it is in
                passed = int((request.at - replica.began) / replica.seconds) + 1
                if passed < replica.n_steps:
                    replica.n_steps = passed
                    self._push(number)
        self._advance(float("inf"))

    def route(self, request: Request) -> int:
        """The number of a request's replica."""
        count = len(self.replicas)
        if self.routing == "round-robin":
            self._turn = (self._turn + 1) % count
            return self._turn
        home = self._homes.get(request.prefix)
        if home is not None and self.replicas[home].load <= max(BOUND * self._total / count, 1):
            return home
        drawn = {random.Random(f"{request.prefix} {self._turn} {i}").randrange(count) for i in range(2)}
        self._turn += 1
        home = min(drawn if count > 64 else range(count), key=lambda i: self.replicas[i].load)
        self._homes[request.prefix] = home
        return home

    def _push(self, number: int) -> None:
        replica = self.replicas[number]
        replica.version += 1
        heapq.heappush(self._ends, (replica.began + replica.n_steps * replica.seconds, number, replica.version))

    def _advance(self, until: float) -> None:
        """End all steps up to a time, and begin those after them."""
        while self._ends and self._ends[0][0] <= until:
            now, number, version = heapq.heappop(self._ends)
            if version == self.replicas[number].version:
                self._end(self.replicas[number], now)
                self._begin(number, now)

    def _begin(self, number: int, now: float) -> None:
        """Begin a step, or as many steps of replies alone as there are until one of these ends."""
        replica = self.replicas[number]
        while replica.waiting and len(replica.running) + len(replica.prefilling) < self.slots:
            self._admit(replica, replica.waiting.popleft())
        room, replica.parts = self.batch - len(replica.running), []
        for request in replica.prefilling:
            if room <= 0:
                break
            replica.parts.append((request, n := min(request.left, room)))
            room -= n
        tokens = sum(n for _, n in replica.parts)
        if not replica.running and not tokens:
            replica.n_steps = 0
            return
        replica.began, replica.seconds = now, self.seconds(len(replica.running), tokens)
        replica.n_steps = 1 if tokens else min(self.most, *(r.reply - r.written for r in replica.running))
        self._push(number)

    def _admit(self, replica: Replica, request: Request) -> None:
        known = replica.prefixes.pop(request.prefix, 0)
        request.cached = min(known, request.shared, request.prompt - 1)
        request.left = request.prompt - request.cached
        replica.prefixes[request.prefix] = request.shared
        while sum(replica.prefixes.values()) > self.cache and len(replica.prefixes) > 1:
            replica.prefixes.popitem(last=False)
        replica.prefilling.append(request)

    def _end(self, replica: Replica, now: float) -> None:
        """Take what the steps brought."""
        n = replica.n_steps
        replica.busy += n * replica.seconds
        if replica.running:
            self.gaps.append((replica.seconds, n * len(replica.running)))
        for request in replica.running:
            request.written += n
        for request, tokens in replica.parts:
            request.left -= tokens
            if not request.left:
                request.first, request.written = now, 1
                replica.running.append(request)
        replica.prefilling = [r for r in replica.prefilling if r.left]
        over = [r for r in replica.running if r.written >= r.reply]
        for request in over:
            request.end = now
            self.done.append(request)
        replica.running = [r for r in replica.running if r.written < r.reply]
        replica.load, self._total = replica.load - len(over), self._total - len(over)

    def figures(self, price: float = 0.0) -> dict[str, float]:
        """What came of it: rates of the time from the first request to the last end, percentiles in milliseconds.

        price  of a replica's hour
        """
        first, last = min(r.at for r in self.done), max(r.end for r in self.done)
        tokens, span = sum(r.reply for r in self.done), last - first
        waits = np.array([r.first - r.at for r in self.done])
        gaps, counts = np.array(self.gaps or [(0.0, 1)]).T
        return {
            "replicas": len(self.replicas), "requests_per_s": len(self.done) / span, "tokens_per_s": tokens / span,
            **{f"ttft_p{q}_ms": 1e3 * float(np.percentile(waits, q)) for q in (50, 99)},
            **{f"itl_p{q}_ms": 1e3 * weighted(gaps, counts, q) for q in (50, 99)},
            "computing": sum(r.busy for r in self.replicas) / span / len(self.replicas),
            "cached": sum(r.cached for r in self.done) / sum(r.prompt for r in self.done),
            "price_per_million": price * len(self.replicas) * span / 3600 / tokens * 1e6,
        }


def weighted(values: npt.NDArray[np.float64], counts: npt.NDArray[np.float64], percent: float) -> float:
    """A percentile of values that there are several of each."""
    order = np.argsort(values)
    reached = np.cumsum(counts[order])
    return float(values[order][np.searchsorted(reached, percent / 100 * reached[-1])])


def poisson(
    rate: float, count: int, prompt: int, reply: int, *, prefixes: int = 1, shared: int = 0, seed: int = 0
) -> Iterator[Request]:
    """Requests at `rate` a second on average, each with one of some prefixes, and replies of `reply` on average."""
    draw, at = random.Random(seed), 0.0
    for _ in range(count):
        at += draw.expovariate(rate)
        length = draw.randint(max(1, reply // 2), max(1, reply + reply // 2))
        yield Request(at, prompt, length, draw.randrange(prefixes), min(shared, prompt))


def at_least(least: float, number: Callable[[str], float] = int) -> Callable[[str], float]:
    """What reads an option that is a finite number of at least `least`."""

    def read(text: str) -> float:
        try:
            value = number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not math.isfinite(value) or value < least:
            raise argparse.ArgumentTypeError(f"{text} (allowed: at least {least:g})")
        return value

    return read


def numbers(text: str) -> list[int]:
    """Numbers of replicas, a comma between two."""
    read = at_least(1)
    found = [int(read(part)) for part in text.split(",")]
    if max(found) > MOST_REPLICAS:
        raise argparse.ArgumentTypeError(f"{max(found)} replicas (allowed: up to {MOST_REPLICAS})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option, count = parser.add_argument, at_least(1)
    option("steps", type=Path, help="a file of step times")
    option("--replicas", type=numbers, default="1,2,4,8,16,32,64,128,256,512,1000", help="several numbers of them")
    option("--rate", type=at_least(1e-9, float), required=True, help="requests a second, over all replicas")
    option("--count", type=count, default=20_000, help="requests to simulate")
    option("--prompt", type=count, default=800, help="tokens of a prompt")
    option("--reply", type=count, default=200, help="tokens of a reply, on average")
    option("--prefixes", type=count, default=100, help="prefixes that requests begin with")
    option("--shared", type=at_least(0), default=0, help="tokens of a prefix")
    option("--routing", choices=["prefix", "round-robin"], default="prefix", help="where a request goes")
    option("--slots", type=count, default=32, help="--max-sequences of a server")
    option("--batch", type=count, default=512, help="tokens of a step")
    option("--cache", type=at_least(0), default=100_000, help="tokens of prefixes that a replica keeps")
    option("--price", type=at_least(0, float), default=0.0, help="of a replica's hour")
    asked = parser.parse_args()
    if asked.shared > asked.prompt:
        parser.error(f"--shared is {asked.shared}, longer than a prompt ({asked.prompt})")
    try:
        seconds = step_time(json.loads(asked.steps.read_text(encoding="utf-8"))["steps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{asked.steps} has no step times: {error}")
    for n in asked.replicas:
        simulation = Simulation(
            seconds, [Replica() for _ in range(n)], asked.routing, asked.slots, asked.batch, asked.cache
        )
        simulation.run(list(poisson(asked.rate, asked.count, asked.prompt, asked.reply, prefixes=asked.prefixes,
                                    shared=asked.shared)))
        print(json.dumps({name: float(f"{value:.4g}") for name, value in simulation.figures(asked.price).items()}))


if __name__ == "__main__":
    main()
