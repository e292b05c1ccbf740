"""Asks `octavo serve` everything at once for a while, and looks at what that leaves behind.

    python bench/serve_soak.py [MODEL] [--seconds 3600] [--streams 12] [--cancelled 0.3] [--bad 0.02]
                               [--rate REQUESTS] [--kill SECONDS]

Requests are of all kinds: streamed and whole, chat and completions, several replies, stop strings, penalties, prompts
that begin alike. Some are left before they end, in every phase. Some break the rules, and each of these has to be
answered with the status that it deserves. With `--kill` the engine's process is killed every so often. With `--rate`
no more than this many requests a second are begun, so that other work on the machine goes on.

Exit status 1 where an answer was wrong, or where at the end, with nothing under way, pages, sockets or memory are not
what they were after a quarter of the time. Needs Linux. The result is bench/results/serve-soak-<date>.json, or in the
folder that `-o` names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import results_file
from octavo.bench.serving.http import Address, ReplyError, exchange, request_bytes
from octavo.bench.serving.launch import free_port, running
from octavo.bench.serving.stream_reader import StreamedReply, stream

WATCHED = 40
"""Times that memory is looked at."""
WARM_UP = 400
"""Requests that break the rules before the first look."""
MOST_DRIFT = 5e6
"""Bytes that memory may have grown by between the two looks."""
SHARED = list(range(300, 460))
"""Tokens that many prompts begin with."""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Look:
    """What a server holds: bytes and open files of front and engine, pages of the cache, replies under way."""

    memory: tuple[int, int]
    files: tuple[int, int]
    held: int
    cached: int
    empty: int
    replies: int


@dataclass
class Server:
    """A server under load.

    done    how many requests had which outcome
    wrong   what should not have been
    killed  times that its engine was
    memory  now and then: seconds since the start, bytes of the front and of the engine
    """

    to: Address
    pid: int
    draw: random.Random
    n_vocab: int = 1024
    done: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    killed: int = 0
    memory: list[tuple[float, int, int]] = field(default_factory=list)

    def engine(self) -> int | None:
        """The process that computes: the front's child."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(children[-1]) if children else None

    async def look(self) -> Look:
        """Raises ReplyError where the server does not answer, or has no engine for now."""
        engine = self.engine()
        if engine is None:
            raise ReplyError("there is no engine")
        text = await get_text(self.to, "/metrics")
        if not metric(text, "octavo:engine_up"):
            raise ReplyError("the engine is being started")
        held, cached, empty = (metric(text, f"octavo:kv_pages_{name}") for name in ("held", "cached", "empty"))
        replies = metric(text, "octavo:num_requests_running") + metric(text, "octavo:num_requests_waiting")
        both = (self.pid, engine)
        return Look((memory(both[0]), memory(both[1])), (files(both[0]), files(both[1])), held, cached, empty, replies)

    async def quiet(self) -> Look:
        """A look when nothing is under way any more."""
        for _ in range(600):
            with suppress(ReplyError, OSError):  # an engine that has just been killed
                look = await self.look()
                if not look.replies and not look.held:
                    return look
            await asyncio.sleep(0.1)
        self.wrong["a minute after the last request, replies were still under way"] += 1
        return await self.look()

    def tell(self, kind: str, outcome: str, wrong: bool = False) -> None:
        self.done[f"{kind}: {outcome}" if outcome else kind] += 1
        if wrong:
            self.wrong[f"{kind}: {outcome}"] += 1


@contextmanager
def started(model: str, seed: int = 0) -> Iterator[Server]:
    """A server of a model with room for few replies and pages, so that requests wait and replies give way to others."""
    to = Address("127.0.0.1", free_port())
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(to.port), "-np", "8", "--kv-memory", "6M",
               "--device", "cpu"]
    with running("octavo serve", command, to) as process:
        yield Server(to, process.pid, random.Random(seed))


def memory(pid: int) -> int:
    """Bytes that a process has in memory of its own."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(1024 * int(n) for n in re.findall(r"^(?:Private_Dirty|Swap): +(\d+)", text, re.MULTILINE))


def files(pid: int) -> int:
    """Files and sockets that a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def metric(text: str, name: str) -> int:
    """A value of /metrics."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return round(float(found[1]))


async def get_text(to: Address, path: str) -> str:
    """What a GET answers, of status 200."""
    status, text = await ask(to, request_bytes(to, "GET", path))
    if status != 200:
        raise ReplyError(f"{path} answered {status}")
    return text


async def ask(to: Address, data: bytes) -> tuple[int, str]:
    """Status and body of the answer to a request."""
    parts: list[bytes] = []
    done = await exchange(to, data, parts.append)
    return done.status, b"".join(parts).decode()


def body(server: Server, most: int) -> tuple[str, dict[str, Any]]:
    """A request that is right, of any kind: its path and what it says."""
    draw = server.draw
    start = SHARED[: draw.randrange(len(SHARED))] if draw.random() < 0.5 else []
    ids = start + [draw.randrange(server.n_vocab) for _ in range(draw.randrange(1, 120))]
    said: dict[str, Any] = {"max_tokens": draw.randrange(1, most), "temperature": draw.choice([0, 0.8, 1.5])}
    if draw.random() < 0.5:
        said["ignore_eos"] = True
    if draw.random() < 0.2:
        said["n"] = draw.randrange(2, 5)
    if draw.random() < 0.2:
        said["stop"] = draw.choice(["7", ["1 2", "="]])
    if draw.random() < 0.2:
        said |= {"seed": draw.randrange(100), "presence_penalty": 0.5}
    if draw.random() < 0.5:
        text = f"What is {draw.randrange(1000)} * {draw.randrange(1000)}?"
        return CHAT, said | {"messages": [{"role": "user", "content": text}]}
    return TEXT, said | {"prompt": ids}


async def right(server: Server) -> None:
    """A request that is right, to its end."""
    path, said = body(server, 40)
    if server.draw.random() < 0.5:
        reply = StreamedReply()
        await stream(server.to, path, said, reply)
        error = reply.error
    else:
        status, text = await ask(server.to, request_bytes(server.to, "POST", path, said))
        answer = json.loads(text)
        error = None if status == 200 else f"status {status}: {text[:200]}"
        if error is None and len(answer["choices"]) != said.get("n", 1):
            error = f"{len(answer['choices'])} replies"
    if error is None:
        server.tell("right", "answered")
    else:
        server.tell("right", *expected(server, error))


def expected(server: Server, error: str) -> tuple[str, bool]:
    """What an error is called, and whether it is one that should not be: where engines are killed, some have to be."""
    if error.startswith("status 429"):
        return "429", False
    text = re.sub(r"\d{4,}", "N", error)[:160]
    return text, not (server.killed and re.search(r"status 50[03]|an error in the stream", error))


async def left(server: Server) -> None:
    """A request that is right, but its sender leaves: while it is sent, in the queue, in the prompt, in the reply."""
    path, said = body(server, 400)
    said |= {"ignore_eos": True, "stream": server.draw.random() < 0.7}
    data = request_bytes(server.to, "POST", path, said)
    cut = server.draw.randrange(len(data)) if server.draw.random() < 0.1 else len(data)
    sending = asyncio.create_task(exchange(server.to, data[:cut], lambda part: None))
    await asyncio.wait([sending], timeout=server.draw.choice([0, 0.002, 0.02, 0.1, 0.3]))
    if sending.done() and sending.exception() is None:
        server.tell("left", "too late")
        return
    sending.cancel()
    with suppress(asyncio.CancelledError, ReplyError):
        await sending
    server.tell("left", "in time")
    await ask(
        server.to, request_bytes(server.to, "GET", "/health")
    )  # else who leaves at once asks faster than is heard


BAD: tuple[tuple[str, str, bytes, int], ...] = (
    ("POST", CHAT, b"{", 400),
    ("POST", CHAT, b"[1, 2]", 400),
    ("POST", CHAT, b"\xff\xfe", 400),
    ("POST", CHAT, b"[" * 5000, 400),
    ("POST", CHAT, b'{"messages": "hello"}', 400),
    ("POST", CHAT, b'{"messages": []}', 400),
    ("POST", CHAT, b'{"messages": [{"role": "king", "content": "x"}]}', 400),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', 400),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', 400),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "x"}], "n": 100000}', 400),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "x"}], "stop": ""}', 400),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"99999999": 1}}', 400),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
    ("POST", TEXT, b'{"prompt": [99999999]}', 400),
    ("POST", TEXT, b'{"prompt": [-1]}', 400),
    ("POST", TEXT, b'{"prompt": ' + json.dumps([5] * 5000).encode() + b"}", 400),
    ("POST", TEXT, b'{"prompt": "' + b"a " * 20000 + b'"}', 400),
    ("POST", "/v1/nothing", b"{}", 404),
    ("GET", "/v1/models/nothing", b"", 404),
    ("GET", CHAT, b"", 405),
)
"""Requests that break the rules, and the status that each deserves."""


async def bad(server: Server) -> None:
    """A request that breaks the rules."""
    method, path, data, deserved = server.draw.choice(BAD)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {server.to.host}", "Connection: close"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(data)}", "", ""]
    status, text = await ask(server.to, "\r\n".join(lines).encode() + data)
    allowed = (deserved, 503) if server.killed else (deserved,)
    server.tell("bad", f"{status} for {data[:60]!r}" if status not in allowed else f"{status}", status not in allowed)
    if status in allowed and "error" not in json.loads(text):
        server.tell("bad", "an answer without an error", True)


Kind = Callable[[Server], Awaitable[None]]


async def load(
    server: Server, streams: int, shares: dict[Kind, float], going_on: Callable[[], bool], rate: float = 0.0
) -> None:
    """`streams` requests at a time, of the kinds with these shares, for as long as `going_on` says so.

    With a rate, the streams ask all at once and then wait for the next beat: at most that many requests a second.
    """
    kinds, weights = list(shares), list(shares.values())
    beat = streams / rate if rate else 0.0

    async def one_after_the_other() -> None:
        while going_on():
            if beat:
                await asyncio.sleep(beat - time.monotonic() % beat)
            (kind,) = server.draw.choices(kinds, weights)
            try:
                await kind(server)
            except ReplyError as error:
                server.tell(kind.__name__, *expected(server, f"status 503: {error}" if server.killed else str(error)))

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(one_after_the_other())


async def killing(server: Server, every: float) -> None:
    """Kill the engine again and again, and see that the server says so and comes back."""
    while True:
        await asyncio.sleep(every)
        if (engine := server.engine()) is None:
            continue
        server.killed += 1
        os.kill(engine, signal.SIGKILL)
        statuses = set()
        for _ in range(600):
            await asyncio.sleep(0.05)
            status, _ = await ask(server.to, request_bytes(server.to, "GET", "/health"))
            statuses.add(status)
            if status == 200 and 503 in statuses:
                break
        else:
            server.wrong[f"half a minute after the engine's end /health had said {sorted(statuses)}"] += 1


async def watching(server: Server, every: float) -> None:
    """Note the memory now and then."""
    start = time.monotonic()
    while True:
        with suppress(OSError):  # an engine that has just been killed
            engine = server.engine()
            if engine is not None:
                server.memory.append((round(time.monotonic() - start, 1), memory(server.pid), memory(engine)))
        await asyncio.sleep(every)


def for_seconds(seconds: float) -> Callable[[], bool]:
    """Says yes for so long."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


async def warm_up(server: Server, streams: int) -> None:
    """Bring memory to where it stays: threads for long texts are made when they are first needed."""
    end = server.done.total() + WARM_UP
    await load(server, streams, {bad: 1.0}, lambda: server.done.total() < end)


def compare(before: Look, after: Look, killed: bool) -> list[str]:
    """What is not as it was."""
    found = []
    for name, i in (("front", 0), ("engine", 1)):
        if after.files[i] > before.files[i]:
            found.append(f"the {name} has {after.files[i]} files open, and had {before.files[i]}")
        if not (killed and i) and after.memory[i] - before.memory[i] > MOST_DRIFT:
            found.append(f"the {name} has {after.memory[i] / 1e6:.1f} MB, and had {before.memory[i] / 1e6:.1f}")
    if after.held or after.replies:
        found.append(f"{after.held} pages are held by {after.replies} replies")
    if after.cached + after.empty != before.cached + before.empty:
        found.append(f"there are {after.cached + after.empty} pages, and were {before.cached + before.empty}")
    return found


async def soak(
    server: Server, seconds: float, streams: int, shares: dict[Kind, float], rate: float, kill: float | None
) -> list[Look]:
    """Load a server, with a look after a quarter of the time and one at the end; what is wrong is in `server.wrong`."""
    beside = [asyncio.create_task(watching(server, seconds / WATCHED))]
    await warm_up(server, streams)
    await load(server, streams, shares, for_seconds(seconds / 4), rate)
    before = await server.quiet()
    if kill is not None:
        beside.append(asyncio.create_task(killing(server, kill)))
    await load(server, streams, shares, for_seconds(3 * seconds / 4), rate)
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    after = await server.quiet()
    server.wrong.update(compare(before, after, bool(server.killed)))
    return [before, after]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--cancelled", type=float, default=0.3)
    parser.add_argument("--bad", type=float, default=0.02)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--kill", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    asked = parser.parse_args(arguments)
    shares: dict[Kind, float] = {right: 1 - asked.cancelled - asked.bad, left: asked.cancelled, bad: asked.bad}
    with started(asked.model, asked.seed) as server:
        looks = asyncio.run(soak(server, asked.seconds, asked.streams, shares, asked.rate, asked.kill))
    counts = dict(sorted(server.done.items()))
    found = {"killed": server.killed, "done": counts, "wrong": dict(server.wrong), "looks": list(map(asdict, looks))}
    described = {**results_file.described(), "seconds": asked.seconds, "rate": asked.rate}
    results_file.write("serve-soak", {**described, **found, "memory": server.memory}, asked.output)
    print(json.dumps(found, indent=1))
    return 1 if server.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
