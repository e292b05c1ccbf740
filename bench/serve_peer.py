"""Measures `octavo serve` next to llama-server and writes bench/results/serve-peer-<model>-<date>.json for each model.

    python bench/serve_peer.py --llama-server PATH MODEL.gguf ... [--streams 1,4,8,32] [--tests a,first,b,c]

| test | what is asked |
|---|---|
| a | short requests, with each number of streams |
| first | prompts of 512 tokens, one at a time, for the time to the first text |
| b | prompts of 2,048 tokens while 4 replies are written |
| c | a conversation of 8 turns |

Both programs get the same file, threads, type of KV cache, number of sequences and context for each, and neither makes
drafts: models of random weights repeat themselves, which drafts would gain by. They take turns:
each is started for a test, measured by the same client, and ended. Of `--rounds` turns the better of each figure
counts, as what else a machine does can only slow a program down.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results_file
from octavo.backends.cores import cores
from octavo.bench.serving.http import Address
from octavo.bench.serving.launch import free_port, running, served
from octavo.bench.serving.serving_result import ServingOptions, bench_server

OURS, PEER = "octavo", "llama-server"
SETTINGS = {"temperature": 0.0, "ignore_eos": True}


@dataclass(frozen=True)
class Test:
    """What is asked of both: `context` tokens for each of `sequences`."""

    name: str
    options: ServingOptions
    context: int
    sequences: int


def tests(names: Sequence[str], streams: Sequence[int]) -> Iterator[Test]:
    """The tests of these names, each small enough that all end in minutes on two cores."""
    for name in names:
        if name == "a":
            for n in streams:
                yield Test(f"a x{n}", ServingOptions(streams=(n,), requests=max(n, 2), settings=SETTINGS), 512, n)
        elif name == "first":
            options = ServingOptions(streams=(1,), requests=3, input=512, output=2, settings=SETTINGS)
            yield Test("first 512", options, 1024, 1)
        elif name == "b":
            options = ServingOptions(workload="b", streams=(4,), requests=2, output=16, settings=SETTINGS)
            yield Test("b x4", options, 4096, 5)
        elif name == "c":
            options = ServingOptions(workload="c", streams=(1,), requests=1, output=64, settings=SETTINGS)
            yield Test("c", options, 4096, 1)
        else:
            raise SystemExit(f"--tests: {name!r} (allowed: a, first, b, c)")


@contextmanager
def started(program: str, model: str, test: Test, threads: int, peer: str) -> Iterator[Address]:
    """One of the two, ready, with room for a test."""
    if program == OURS:
        options = ["-c", str(test.context), "-np", str(test.sequences), "-t", str(threads), "--device", "cpu",
                   "--speculate", "off"]
        with served(model, options) as to:
            yield to
        return
    to = Address("127.0.0.1", free_port())
    command = [peer, "-m", model, "--host", to.host, "--port", str(to.port), "-t", str(threads), "-np",
               str(test.sequences), "-c", str(test.context * test.sequences), "--kv-unified"]
    with running(PEER, command, to):
        yield to


def figures(run: dict[str, Any]) -> dict[str, float]:
    """The numbers of a run that are compared: rates, where more is better, and times in ms, where less is."""
    if run["failed"]:
        raise SystemExit(f"{run['failed']} of {run['requests']} requests failed: {run['failures']}")
    found = {"output_rate": run["output_rate"], "ttft_p50": run["ttft"]["p50"]}
    for name in ("itl", "during", "steady"):
        if run.get(name):
            found |= {f"{name}_p50": run[name]["p50"], f"{name}_p99": run[name]["p99"]}
    if "turns" in run:
        found |= {"last_turn": run["turns"][-1]["ttft"]["p50"], "cold": run["cold"]["p50"]}
    return found


def best(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The better value of each figure."""
    return {name: (max if name == "output_rate" else min)(r[name] for r in rounds) for name in rounds[0]}


def ratio(ours: dict[str, float], peer: dict[str, float]) -> dict[str, float]:
    """How many times as fast ours is, of rates and of times."""
    return {n: ours[n] / peer[n] if n == "output_rate" else peer[n] / ours[n] for n in ours if ours[n] and peer.get(n)}


def compare(model: str, asked: argparse.Namespace) -> dict[str, Any]:
    """All tests of a model, in turns."""
    rows = []
    for test in tests(asked.tests.split(","), [int(n) for n in asked.streams.split(",")]):
        runs: dict[str, list[dict[str, Any]]] = {OURS: [], PEER: []}
        for i in range(asked.rounds):
            for program in (OURS, PEER) if i % 2 == 0 else (PEER, OURS):
                with started(program, model, test, asked.threads, asked.llama_server) as to:
                    runs[program].append(bench_server(to, test.options)["runs"][0])
        found = {program: best([figures(run) for run in runs[program]]) for program in runs}
        row = {"test": test.name, **found, "ratio": ratio(found[OURS], found[PEER]), "runs": runs}
        rows.append(row)
        print(line(row), flush=True)
    described = results_file.described(llama_server=version(asked.llama_server))
    return {**described, "model": os.path.basename(model), "threads": asked.threads, "compared": rows}


def version(peer: str) -> str:
    """What llama-server says of itself."""
    said = subprocess.run([peer, "--version"], capture_output=True, text=True, check=True, timeout=30)
    return (said.stdout + said.stderr).partition("version: ")[2].partition("\n")[0]


def line(row: dict[str, Any]) -> str:
    """A test's figures: ours, the peer's, and how many times as fast."""
    each = (f"{name} {row[OURS][name]:.1f} / {row[PEER][name]:.1f} ({r:.2f}x)" for name, r in row["ratio"].items())
    return f"{row['test']:<10} {', '.join(each)}"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--streams", default="1,4,8,32")
    parser.add_argument("--tests", default="a,first")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    asked = parser.parse_args(arguments)
    for model in asked.models:
        print(f"{os.path.basename(model)}: octavo / llama-server")
        result = compare(model, asked)
        results_file.write(f"serve-peer-{Path(model).stem}", result, asked.output)


if __name__ == "__main__":
    main(sys.argv[1:])
