"""Asks three models for replies at random where memory holds two, kills some of their engines, and times swaps.

    python bench/several_models.py [MODEL] [--requests 500] [--at-once 8] [--kills 10] [--swap MODEL.gguf]
                                   [--swaps 10] [--rest 3] [-o FOLDER]

MODEL, the demo by default, is served under three names. `--memory` is two and a half times what one asks for. Engines
and servers of models are killed at random moments. Each reply has to be whole and the same as others to its prompt, or
an error with a code; the proportional size of all processes of models, looked at ten times a second, may never be
more than `--memory`. Exit status 1 where that is not so.

With `--swap` two names of that model are then asked for a token in turns, where memory holds one: seconds from the
request to the answer, in which the other one is ended, and this one's weights are mapped; `--rest` seconds after the
answer before, in which a process for it is started, and at once, in which there is none.

Needs Linux. The result is bench/results/several-models-<date>.json, or in the folder that `-o` names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import results_file
from octavo.bench.serving.http import Address, ReplyError, exchange, get_json, request_bytes
from octavo.bench.serving.launch import free_port, running
from octavo.io.model_path import resolve

NAMES = ("one", "two", "three")
PROMPTS = (*(f"What is {a} times {b}?" for a in (7, 12, 15) for b in (3, 8, 11)), "Write a story.")
OPTIONS = ("--device", "cpu", "--kv-memory", "64M", "-np", "8")
SWAP_OPTIONS = ("--device", "cpu", "--kv-memory", "256M", "-np", "4")
LOOK_S = 0.1
GIB = 1 << 30


def below(pid: int) -> list[int]:
    """All processes that a process has started, and they."""
    found = list[int]()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return [*found, *(one for child in found for one in below(child))]


def taken(pids: Sequence[int]) -> int:
    """Bytes of the memory of processes; what several share counts in parts."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            row = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            total += int(row[1]) << 10 if row else 0
    return total


async def ask(to: Address, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> tuple[int, Any]:
    """Status and answer. Raises ReplyError."""
    parts = list[bytes]()
    done = await exchange(to, request_bytes(to, method, path, body), parts.append)
    data = b"".join(parts)
    return done.status, data.decode() if "event-stream" in done.headers.get("content-type", "") else json.loads(data)


def text_of(answer: Any) -> str | None:
    """The text of a whole reply; None where it is cut off. Raises ReplyError for an error within a stream."""
    if not isinstance(answer, str):
        return str(answer["choices"][0]["message"]["content"])
    data = [part.removeprefix("data: ") for part in answer.split("\n\n") if part.startswith("data: ")]
    events = [json.loads(one) for one in data if one != "[DONE]"]
    if (error := next((one["error"] for one in events if "error" in one), None)) is not None:
        raise ReplyError(str(error["code"]))
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in events if one["choices"])
    return text if data[-1] == "[DONE]" else None


class Run:
    """Requests at random, and what came of them.

    wrong  what is neither a whole reply nor an error with a code
    most   bytes that the processes of models took at a time
    """

    def __init__(self, to: Address, front: int, rng: random.Random) -> None:
        self.to, self.front, self.rng = to, front, rng
        self.ended, self.texts = Counter[str](), dict[str, str]()
        self.wrong, self.most, self.killed = list[str](), 0, Counter[str]()
        self.seconds = list[float]()

    async def one(self) -> None:
        prompt, began = self.rng.choice(PROMPTS), time.monotonic()
        body = {
            "model": self.rng.choice(NAMES), "messages": [{"role": "user", "content": prompt}], "temperature": 0,
            "max_tokens": 48, "stream": self.rng.random() < 0.7,
        }
        try:
            status, answer = await ask(self.to, "/v1/chat/completions", body)
            if status == 200:
                text = text_of(answer)
                if text is None or self.texts.setdefault(prompt, text) != text:
                    self.wrong.append(f"{prompt} {text!r} (other: {self.texts.get(prompt)!r})")
                self.ended["answered"] += 1
            else:
                self.ended[f"{status} {answer['error']['code']}"] += 1
        except (ReplyError, KeyError, ValueError) as error:
            self.wrong.append(f"{prompt} {type(error).__name__}: {error}")
        self.seconds.append(time.monotonic() - began)

    async def kill(self) -> None:
        """Kill the server of a model, or its engine, if one is there."""
        able = [(pid, kind) for pid in below(self.front) for kind in ("replicas.replica", "server.worker")
                if kind.encode() in _command(pid)]
        if able:
            pid, kind = self.rng.choice(able)
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                self.killed[kind] += 1

    async def look(self) -> None:
        while True:
            self.most = max(self.most, await asyncio.to_thread(lambda: taken(below(self.front))))
            await asyncio.sleep(LOOK_S)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def at_random(to: Address, front: int, requests: int, at_once: int, kills: int) -> Run:
    run, begun = Run(to, front, random.Random(1)), 0
    looking = asyncio.create_task(run.look())

    async def client() -> None:
        nonlocal begun
        while begun < requests:
            begun += 1
            if kills and begun % max(requests // kills, 1) == 0:
                await run.kill()
            await run.one()

    await asyncio.gather(*(client() for _ in range(at_once)))
    looking.cancel()
    return run


def folder_of(model: str, names: Sequence[str], folder: str) -> str:
    """A folder with a model under some names."""
    for name in names:
        os.symlink(os.path.abspath(resolve(model)), os.path.join(folder, f"{name}.gguf"))
    return folder


def serve(folder: str, to: Address, options: Sequence[str]) -> list[str]:
    models = sorted(map(str, Path(folder).glob("*.gguf")))
    return [sys.executable, "-m", "octavo", "serve", *models, "--port", str(to.port), *options]


def asked_for(folder: str, options: Sequence[str]) -> int:
    """Bytes that a model of a folder asks for."""
    to = Address("127.0.0.1", free_port())
    with running("octavo serve", serve(folder, to, options), to):
        name = min(path.stem for path in Path(folder).glob("*.gguf"))
        status, answer = asyncio.run(ask(to, "/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1}))
        if status != 200:
            raise SystemExit(f"{name} gave no answer: {answer}")
        row, _ = asyncio.run(get_json(to, f"/v1/models/{name}"))
        return int(sum(row["memory"].values()))


def soak(model: str, asked: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    with tempfile.TemporaryDirectory() as place:
        folder = folder_of(model, NAMES, place)
        need = asked_for(folder, OPTIONS)
        limit = need * 5 // 2
        to = Address("127.0.0.1", free_port())
        command = serve(folder, to, (*OPTIONS, "--memory", str(limit)))
        with running("octavo serve", command, to) as process:
            began = time.monotonic()
            run = asyncio.run(at_random(to, process.pid, asked.requests, asked.at_once, asked.kills))
            seconds = time.monotonic() - began
            parts = list[bytes]()
            asyncio.run(exchange(to, request_bytes(to, "GET", "/metrics"), parts.append))
            text = b"".join(parts).decode()
    loads = sum(float(n) for n in re.findall(r"^octavo:model_loads_total\{.*\} (\S+)", text, re.MULTILINE))
    evictions = re.search(r"^octavo:model_evictions_total (\S+)", text, re.MULTILINE)
    found = {
        "of": Path(model).stem, "requests": asked.requests, "at_once": asked.at_once, "ended": dict(run.ended),
        "wrong": run.wrong[:20], "killed": dict(run.killed), "loads": loads,
        "evictions": float(evictions[1]) if evictions else None, "memory": limit, "one_asks_for": need,
        "most_taken": run.most, "seconds": round(seconds, 1),
        "request_seconds": {"median": round(statistics.median(run.seconds), 3), "longest": round(max(run.seconds), 3)},
    }
    good = not run.wrong and run.most <= limit and sum(run.ended.values()) == asked.requests
    return found, good


def swaps(model: str, n: int, rest: float) -> dict[str, Any]:
    """Seconds from a request to its answer where another model has to make room."""
    with tempfile.TemporaryDirectory() as place:
        folder, to = folder_of(model, NAMES[:2], place), Address("127.0.0.1", free_port())
        limit, found = asked_for(folder, SWAP_OPTIONS) * 3 // 2, list[float]()
        with running("octavo serve", serve(folder, to, (*SWAP_OPTIONS, "--memory", str(limit))), to):
            for i in range(n + 2):
                time.sleep(rest)
                began = time.monotonic()
                body = {"model": NAMES[i % 2], "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0}
                status, answer = asyncio.run(ask(to, "/v1/completions", body))
                if status != 200:
                    raise SystemExit(f"a swap gave no answer: {answer}")
                found.append(round(time.monotonic() - began, 3))
    return {"of": Path(model).stem, "memory": limit, "rest": rest, "first": found[:2], "seconds": found[2:],
            "median": statistics.median(found[2:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--swap", metavar="MODEL.gguf")
    parser.add_argument("--swaps", type=int, default=10)
    parser.add_argument("--rest", type=float, default=3.0)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    result, good = results_file.described(), True
    if asked.requests:
        result["at_random"], good = soak(asked.model, asked)
        print(json.dumps(result["at_random"]), flush=True)
    if asked.swap is not None:
        result["swaps"] = [swaps(asked.swap, asked.swaps, rest) for rest in (asked.rest, 0.0)]
        print(json.dumps(result["swaps"]), flush=True)
    results_file.write("several-models", result, asked.output)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
