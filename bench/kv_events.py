"""Measures what KV events cost: steps with and without them in turns; writes bench/results/kv-events-<date>.json.

    python bench/kv_events.py [--replies 1,8,32] [--rounds N] [-o FOLDER]

The demo model on the CPU, in an engine's loop as a server runs it. A round is prompts of 300 tokens that nobody had,
one for each reply, and 64 tokens each: each reply stores five pages and evicts as many. Of each round the median of its
steps counts, and the time of the round; the figure is the least of rounds, as other work on the machine only adds.
`with` has a publisher, and a reader in another process that takes all messages. `flush` is what a step that has
events waits for.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread

import octavo
import results_file
from octavo.runtime.cache.page_pool import page_bytes
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams
from octavo.server.engine.engine_protocol import Add, Quit, StepOutputs, ToFront
from octavo.server.kv_events.publisher import Publisher
from octavo.server.serve_options import KVEvents
from octavo.server.worker import EngineLoop

PROMPT, REPLY = 300, 64
READER = """
import sys, zmq
sub = zmq.Context().socket(zmq.SUB)
sub.connect(sys.argv[1]); sub.subscribe("")
print("ready", flush=True)
while True:
    sub.recv_multipart()
"""


class Rounds:
    """An engine's loop in a thread, which computes rounds of replies."""

    def __init__(self, model: Model, publisher: Publisher | None) -> None:
        self._sent, self._rng, self._next = list[StepOutputs](), random.Random(1), 1
        self._loop = EngineLoop(model, self._take, itl_target=0.0, embeddings=False)
        self._loop.kv_events = publisher
        self._thread = Thread(target=self._loop.run)
        self._thread.start()

    def _take(self, message: ToFront) -> None:
        if isinstance(message, StepOutputs):
            self._sent.append(message)

    def round(self, replies: int) -> tuple[float, float]:
        """Milliseconds of a step, and of the round."""
        self._sent.clear()
        start, ids = time.perf_counter(), range(self._next, self._next + replies)
        self._next += replies
        for one in ids:
            prompt = [self._rng.randrange(5, 900) for _ in range(PROMPT)]
            params = SamplingParams(temperature=0.0, ignore_eos=True)
            self._loop.inbox.put(Add([one], prompt, params, one, REPLY))
        while sum(row.finish is not None for step in list(self._sent) for row in step.outputs) < replies:
            time.sleep(0.01)
        taken = time.perf_counter() - start
        return 1e3 * statistics.median(step.seconds for step in self._sent), 1e3 * taken

    def close(self) -> None:
        self._loop.inbox.put(Quit())
        self._thread.join()


def flushed(publisher: Publisher, times: list[float]) -> None:
    """Have the time of each flush that has something measured, in microseconds."""
    flush = publisher.recorder.flush

    def timed() -> None:
        had, start = len(publisher.recorder._changes), time.perf_counter()
        flush()
        if had:
            times.append(1e6 * (time.perf_counter() - start))

    publisher.recorder.flush = timed  # type: ignore[method-assign]


def cost(replies: int, rounds: int) -> dict[str, object]:
    """With and without events, in turns."""
    found: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    times = list[float]()
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/events"
        for kind in (k for _ in range(rounds + 1) for k in ("without", "with")):
            with octavo.load("demo", device="cpu") as one:
                memory = 12 * replies * page_bytes(one.engine.graph)
            with octavo.load("demo", device="cpu", max_sequences=replies, kv_memory=memory) as model:
                publisher = Publisher(model.engine.prefixes, KVEvents(address)) if kind == "with" else None
                if publisher is not None:
                    flushed(publisher, times)
                with subprocess.Popen([sys.executable, "-c", READER, address], stdout=subprocess.PIPE) as reader:
                    assert reader.stdout is not None
                    reader.stdout.readline()
                    turns = Rounds(model, publisher)
                    turns.round(replies)
                    found[kind] += [turns.round(replies) for _ in range(3)]
                    turns.close()
                    reader.kill()
                if publisher is not None:
                    publisher.close()
    steps = {kind: round(min(step for step, _ in rows), 3) for kind, rows in found.items()}
    rounds_ms = {kind: round(min(whole for _, whole in rows), 1) for kind, rows in found.items()}
    flush = {"median": round(statistics.median(times), 1), "p99": round(statistics.quantiles(times, n=100)[98], 1)}
    return {"replies": replies, "step_ms": steps, "round_ms": rounds_ms, "flush_us": flush}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    cases = []
    for replies in asked.replies.split(","):
        cases.append(cost(int(replies), asked.rounds))
        print(cases[-1], flush=True)
    results_file.write("kv-events", {**results_file.described(), "cases": cases}, asked.output)


if __name__ == "__main__":
    main()
