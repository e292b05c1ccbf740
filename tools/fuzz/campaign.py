"""Give Octavo many damaged inputs, on all cores: each is run or refused by a typed error, soon and in little memory.

    python tools/fuzz/campaign.py headers --count 5000000       # GGUF headers: everything a reader can be asked
    python tools/fuzz/campaign.py models --count 50000          # GGUF files of tiny models, which then generate
    python tools/fuzz/campaign.py checkpoints --count 50000     # checkpoint folders, likewise
    python tools/fuzz/campaign.py adapters --count 50000        # LoRA adapters of models that are undamaged

Input `i` of a campaign depends on the seed, the target and `i` alone; `--only i` runs it again. A finding is an error
that is not an OctavoError, a process that dies, more than 5 s of the processor's time (the time in which kernels are
compiled counts apart), or more than 1 GiB of memory. Findings are printed and kept in --findings, and make the exit
status 1. `-o bench/results` writes a result file.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "bench")]

TARGETS = {
    "headers": "fuzz_headers", "models": "fuzz_models", "checkpoints": "fuzz_checkpoints", "adapters": "fuzz_adapters",
}
BYTES = 1 << 30
"""Most memory for an input."""
STUCK = 24
"""Times --limit after which an input, or the compilation of a kernel for it, that has not ended is taken for one that
never does: machines stall, too."""
REPORT_SECONDS = 0.2
"""Seconds between a worker's reports of its counts, so that few are lost where it dies."""


class Target(Protocol):
    """What is fuzzed: `make` writes an input below the folder that the target was given; `exercise` opens it."""

    def make(self, rng: random.Random) -> None: ...

    def exercise(self) -> bool:
        """Whether the input was taken; False where a typed error refused it."""
        ...


@dataclass
class Worker:
    """A process, what it said last, and when."""

    process: Any
    pipe: Connection
    first: int
    at: int = -1
    since: float = field(default_factory=time.monotonic)
    done: bool = False
    closed: bool = False


def main() -> int:
    args = _arguments()
    args.findings.mkdir(parents=True, exist_ok=True)
    start, counts, findings = time.monotonic(), Counter[str](), []
    for kind, text in campaign(args, counts):
        findings.append(f"{kind}: {text}")
        print(f"FINDING {findings[-1]}", file=sys.stderr, flush=True)
    summary = {
        "target": args.target, "inputs": counts["ran"] + counts["refused"], "ran": counts["ran"],
        "refused": counts["refused"], "findings": len(findings), "workers": args.workers, "seed": args.seed,
        "first": args.first, "seconds": round(time.monotonic() - start, 1),
        "slowest_seconds": counts["slowest_ms"] / 1000, "most_mib": counts["most_mib"],
    }
    print(", ".join(f"{name} {value}" for name, value in summary.items()))
    if args.output is not None:
        import results_file

        commit = {"commit": args.commit} if args.commit else {}
        results_file.write(f"fuzz-{args.target}", {**results_file.described(**commit), **summary}, args.output)
    return 1 if findings else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--count", type=int, default=1000, help="inputs")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", type=int, help="run this input alone, in this process, and keep it in --findings")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time whatever the count")
    parser.add_argument("--limit", type=float, default=5.0, help="most seconds of the processor for an input")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="folder for inputs that fail")
    parser.add_argument("-o", "--output", type=Path, help="folder for a result file")
    parser.add_argument("--commit", help="what the result file says was fuzzed (default: the checkout's)")
    args = parser.parse_args()
    args.module = TARGETS[args.target]
    if args.only is not None:
        args.first, args.count, args.workers = args.only, 1, 1
    return args


def campaign(args: argparse.Namespace, counts: Counter[str]) -> Any:
    """Run all inputs; yields (kind, text) of each finding and adds to `counts`."""
    context = multiprocessing.get_context("spawn")
    end = time.monotonic() + args.seconds

    def started(first: int) -> Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(args, first, theirs), daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours, first)

    workers = [started(args.first + i) for i in range(min(args.workers, args.count))]
    while live := [w for w in workers if not w.done]:
        wait([w.pipe for w in live], timeout=1.0)
        for worker in live:
            yield from _listen(worker, counts)
            dead = not worker.done and worker.closed
            stuck = worker.at >= 0 and time.monotonic() - worker.since > STUCK * args.limit
            if dead or stuck:
                if not dead:
                    worker.process.kill()
                worker.process.join()
                worker.done = True
                how = f"the process died with {worker.process.exitcode}" if dead else "it never ended"
                _keep(args, worker.at)
                yield "crash" if dead else "hang", f"input {worker.at}: {how}"
                if worker.at >= 0:
                    workers.append(started(worker.at + args.workers))
            elif time.monotonic() > end and not worker.done:
                worker.process.terminate()
                worker.done = True


def _listen(worker: Worker, counts: Counter[str]) -> Any:
    """Take in what a worker has said; yields its findings."""
    try:
        while worker.pipe.poll():
            kind, value = worker.pipe.recv()
            if kind == "begins":
                worker.at, worker.since = value, time.monotonic()
            elif kind == "alive":
                worker.since = time.monotonic()
            elif kind == "counts":
                for name in ("ran", "refused"):
                    counts[name] += value[name]
                for name in ("slowest_ms", "most_mib"):
                    counts[name] = max(counts[name], value[name])
            elif kind == "ends":
                worker.done = True
            else:
                yield kind, value
    except (EOFError, ConnectionError):
        worker.closed = True


def _keep(args: argparse.Namespace, number: int) -> None:
    """Write input `number` to the folder of findings."""
    if number < 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            _target(args.module, Path(folder)).make(_rng(args, number))
        except Exception:
            return
        kept = args.findings / f"{args.target}-{args.seed}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept, symlinks=True, ignore=_specials, ignore_dangling_symlinks=True)


def _specials(folder: str, names: list[str]) -> set[str]:
    """Names that can't be copied: FIFOs and devices."""
    return {n for n in names if not (Path(folder, n).is_file() or Path(folder, n).is_dir())}


def _rng(args: argparse.Namespace, number: int) -> random.Random:
    return random.Random(f"{args.seed} {args.target} {number}")


def _target(module: str, folder: Path) -> Target:
    made: Target = importlib.import_module(module).Target(folder)
    return made


def work(args: argparse.Namespace, first: int, pipe: Connection) -> None:
    """A process: every `workers`-th input from `first` on."""
    logging.getLogger("octavo").setLevel(logging.CRITICAL)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (what tokenizers' panics print)
    compiling = _count_compile_time(pipe)
    counts: Counter[str] = Counter()
    told = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        target = _target(args.module, Path(folder))
        for i in range(first, args.first + args.count, args.workers):
            if time.monotonic() - told > REPORT_SECONDS or i == first:
                pipe.send(("counts", counts))
                counts, told = Counter(), time.monotonic()
            pipe.send(("begins", i))
            target.make(_rng(args, i))
            before, memory, spent = time.process_time(), _peak(), compiling[0]
            try:
                counts["ran" if target.exercise() else "refused"] += 1
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # a panic of the Rust tokenizer is not an Exception
                _keep(args, i)
                pipe.send(("error", f"input {i}: {traceback.format_exc(limit=-4)}"))
            seconds = time.process_time() - before - (compiling[0] - spent)
            grown = _peak() - memory
            counts["slowest_ms"] = max(counts["slowest_ms"], round(1000 * seconds))
            counts["most_mib"] = max(counts["most_mib"], grown >> 20)
            if seconds > args.limit or grown > BYTES:
                _keep(args, i)
                pipe.send(
                    ("slow" if seconds > args.limit else "memory", f"input {i}: {seconds:.1f} s, {grown:,} bytes")
                )
    pipe.send(("counts", counts))
    pipe.send(("ends", None))


def _peak() -> int:
    """The most memory that the process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _count_compile_time(pipe: Connection) -> list[float]:
    """One number: seconds of the processor that compiling kernels has taken in this process. Each is a sign of life."""
    from octavo.jit import compile as kernels

    spent = [0.0]
    original = kernels.CFunc.compile

    def timed(self: Any) -> Any:
        start = time.process_time()
        try:
            return original(self)
        finally:
            spent[0] += time.process_time() - start
            pipe.send(("alive", None))

    kernels.CFunc.compile = timed
    return spent


if __name__ == "__main__":
    sys.exit(main())
