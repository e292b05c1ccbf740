"""Times one stream of `octavo serve` and the same engine alone in turns; writes bench/results/serve-alone-<date>.json.

    python bench/serve_alone.py MODEL.gguf ... [--turns N] [--tokens N] [--threads N] [--device cpu|gpu] [-o FOLDER]

Both have a process of their own with the model, make no drafts, and are asked in turns, A B B A: for a greedy reply
after the same prompt. `lost` is what share of the engine's tokens a second the server does not reach, by medians;
`neighbours` are the quartiles of that between neighbours in time. Times are from the first token to the last. `cpu`
is the milliseconds of CPU time for each token of the engine alone, of the server's engine and of its front, which
other load of the machine changes little. Needs Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import results_file
from octavo.bench.serving.http import Address
from octavo.bench.serving.launch import free_port, running
from octavo.bench.serving.stream_reader import StreamedReply, stream

PROMPT = list(range(100, 164))
CONTEXT = 1024


def alone(path: str, device: str, threads: int) -> None:
    """Load the model, and make a reply of this many tokens for each line of the input."""
    import octavo
    from octavo.runtime.engine.core import EngineCore
    from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
    from octavo.runtime.scheduler.request import Request

    with octavo.load(
        path, device=device, threads=threads or None, n_ctx=CONTEXT, max_sequences=1, speculate="off"
    ) as model:
        core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab)
        print(json.dumps(0), flush=True)
        for line in sys.stdin:
            n = json.loads(line)
            core.add(Request(PROMPT, make_sampler(SamplingParams(temperature=0.0)), n))
            core.step()
            start, before = time.perf_counter(), time.process_time()
            while not core.scheduler.idle:
                core.step()
            found = time.perf_counter() - start, time.process_time() - before
            print(json.dumps([seconds / (n - 1) for seconds in found]), flush=True)


class Alone:
    """A process that has the engine alone."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, __file__, "--alone", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def ask(self, n: int) -> tuple[float, float]:
        """Seconds of a token, and of CPU time."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        seconds, cpu = self._read()
        return seconds, cpu

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the engine's process ended; what it said stands above")
        return json.loads(line)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A server, asked by one client."""

    def __init__(self, to: Address, front: int) -> None:
        children = Path(f"/proc/{front}/task/{front}/children").read_text().split()
        self.to, self.pids = to, (int(children[-1]), front)

    def ask(self, n: int) -> tuple[float, float, float]:
        """Seconds of a token, and of CPU time of the engine and of the front, whole replies with their prompts."""
        reply, before = StreamedReply(), [cpu_seconds(pid) for pid in self.pids]
        body = {"prompt": PROMPT, "max_tokens": n, "temperature": 0, "ignore_eos": True}
        asyncio.run(stream(self.to, "/v1/completions", body, reply))
        if not reply.good:
            raise SystemExit(f"a reply failed: {reply.error}")
        engine, front = (cpu_seconds(pid) - was for pid, was in zip(self.pids, before, strict=True))
        assert reply.tpot is not None
        return reply.tpot, engine / n, front / n


def compare(engine: Alone, server: Server, turns: int, tokens: int) -> dict[str, Any]:
    """Both in turns, after a turn that does not count."""
    one: list[tuple[float, float]] = []
    other: list[tuple[float, float, float]] = []
    for turn in range(-1, turns):
        if turn % 2:
            first, second = engine.ask(tokens), server.ask(tokens)
        else:
            second, first = server.ask(tokens), engine.ask(tokens)
        if turn >= 0:
            one.append(first)
            other.append(second)
    near = statistics.quantiles((1 - a[0] / b[0] for a, b in zip(one, other, strict=True)), n=4)
    alone_s, server_s = (statistics.median(x[0] for x in times) for times in (one, other))
    cpu = {"alone": [x[1] for x in one], "engine": [x[1] for x in other], "front": [x[2] for x in other]}
    return {
        "alone_tokens_per_second": round(1 / alone_s, 2), "server_tokens_per_second": round(1 / server_s, 2),
        "lost": round(1 - alone_s / server_s, 4), "neighbours": [round(x, 4) for x in near],
        "cpu": {name: round(1e3 * statistics.median(found), 3) for name, found in cpu.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    cases = []
    for path in asked.models:
        to = Address("127.0.0.1", free_port())
        options = ["--speculate", "off", "-np", "1", "-c", str(CONTEXT), "--device", asked.device]
        options += ["-t", str(asked.threads)] if asked.threads else []
        command = [sys.executable, "-m", "octavo", "serve", path, "--port", str(to.port), *options]
        engine = Alone(path, asked.device, str(asked.threads))
        with engine.process, running("octavo serve", command, to) as process:
            found = compare(engine, Server(to, process.pid), asked.turns, asked.tokens)
            engine.process.communicate()
        cases.append({"of": Path(path).stem, "turns": asked.turns, "tokens": asked.tokens, **found})
        print(cases[-1], flush=True)
    described = results_file.described()
    results_file.write("serve-alone", {**described, "threads": asked.threads or None, "cases": cases}, asked.output)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        alone(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
