"""Times whole models by two checkouts in turns and writes bench/results/<device>-models-turns-<date>.json.

    python bench/turns.py BEFORE AFTER MODEL.gguf ... [--device cpu|gpu] [--threads N] [--turns N]
        [--cases WHAT:N ...] [-o FOLDER]

BEFORE and AFTER are folders of two commits of this package. Each has a process of its own with the model, and is
asked in turns, A B B A, so that both meet the same machine. A turn is a prompt, or some steps of decoding. `speed` is
how many times as fast AFTER is by medians; `neighbours` are the quartiles of that ratio between neighbours in time.
Where one sequence decodes on the CPU, each turn also measures the read limit, and `share` is AFTER's part of it, median
of the turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results_file
from octavo.bench import gpu

if TYPE_CHECKING:
    from octavo.runtime.engine.engine import Engine

CASES = {
    "cpu": (("prefill", 512), ("prefill", 128), ("decode", 1), ("decode", 4)),
    "gpu": (("prefill", 512), ("decode", 1), ("decode", 8), ("decode", 32), ("decode", 128)),
}
"""Tokens of a prompt; sequences that decode."""
STEPS = 16
"""Steps of a turn of decoding."""
CONTEXT = 1024


def answer(path: str, device: str, threads: int) -> None:
    """Load the model by the package that is found first, and time what each line of the input asks for."""
    import octavo
    from octavo.bench.subject import EngineSubject

    most = CASES[device][-1][1]
    with octavo.load(path, device=device, threads=threads or None, n_ctx=CONTEXT, max_sequences=most) as model:
        subject = EngineSubject(model.engine)
        print(json.dumps(octavo.__file__), flush=True)
        for line in sys.stdin:
            what, n = json.loads(line)
            if what == "limit":
                from octavo.backends.cores import cores
                from octavo.bench.limits import read_limit

                seconds = read_limit(threads or cores(), nbytes=1 << 28, rounds=3)
            elif what == "bytes":
                seconds = weights_read(model.engine)
            elif what == "prefill":
                seconds = subject.prefill(n) / n
            else:
                subject.prepare(64, n)
                seconds = subject.decode(STEPS) / (STEPS * n)
            print(json.dumps(seconds), flush=True)


def weights_read(engine: Engine) -> int:
    """Bytes of weights that a token reads."""
    from octavo.bench.cost import total
    from octavo.bench.profile import ready_step

    with ready_step(engine, 1, 64) as (plan, load):
        return total((node for node, _ in plan.calls), load).weights


class Checkout:
    """A process that answers with the package of one folder."""

    def __init__(self, folder: Path, caches: Path, arguments: list[str]) -> None:
        source = str((folder / "src").resolve())
        path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        cache = str(caches / folder.name)
        env = {**os.environ, "PYTHONPATH": path, "OCTAVO_CACHE": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
        command = [sys.executable, __file__, "--answer", *arguments]
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if not self._read().startswith(source):
            raise SystemExit(f"{folder}: another installation of the package is found before it")

    def ask(self, *question: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def answer(self) -> float:
        """Seconds a token."""
        return float(self._read())

    def close(self) -> None:
        self._process.communicate()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a checkout's process ended; what it said stands above")
        return json.loads(line)


def compare(checkouts: list[Checkout], what: str, n: int, turns: int, shares: bool = False) -> dict[str, Any]:
    """One case: both in turns, after a turn at once that does not count, in which kernels are compiled."""
    times: list[list[float]] = [[], []]
    for checkout in checkouts:
        checkout.ask(what, n)
    for checkout in checkouts:
        checkout.answer()
    limits: list[float] | None = [] if shares else None
    for turn in range(turns):
        for i in (0, 1) if turn % 2 else (1, 0):
            checkouts[i].ask(what, n)
            times[i].append(checkouts[i].answer())
        if limits is not None:
            checkouts[1].ask("limit", 0)
            limits.append(checkouts[1].answer())
    before, after = map(statistics.median, times)
    near = statistics.quantiles((a / b for a, b in zip(*times, strict=True)), n=4)
    size = "tokens" if what == "prefill" else "sequences"
    of_limit = {}
    if limits is not None:
        checkouts[1].ask("bytes", 0)
        nbytes = checkouts[1].answer()
        parts = [nbytes / seconds / limit / 1e9 for seconds, limit in zip(times[1], limits, strict=True)]
        of_limit = {"gbps": round(nbytes / after / 1e9, 1), "read_limits": [round(limit, 1) for limit in limits],
                    "share": round(statistics.median(parts), 3)}
    return {
        "test": what, size: n, "turns": turns, "before_tokens_per_second": round(1 / before, 1),
        "after_tokens_per_second": round(1 / after, 1), "speed": round(before / after, 4),
        "neighbours": [round(x, 4) for x in near], **of_limit,
    }


def cases_of(options: argparse.Namespace) -> list[tuple[str, int]]:
    """The cases that are asked for."""
    if options.cases is None:
        return list(CASES[options.device])
    return [(what, int(n)) for what, _, n in (case.partition(":") for case in options.cases)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--cases", nargs="+", metavar="WHAT:N", help="as prefill:128, decode:1")
    parser.add_argument("--commits", nargs=2, required=True, help="of BEFORE and of AFTER")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    options = parser.parse_args()
    card = None
    if options.device == "gpu":
        from octavo.backends.gpu import GpuBackend

        card = gpu.describe(GpuBackend())
    described = results_file.described(card, commit=options.commits[1])
    cases = []
    with tempfile.TemporaryDirectory() as caches:
        for path in options.models:
            arguments = [str(path), options.device, str(options.threads)]
            checkouts = [Checkout(folder, Path(caches), arguments) for folder in (options.before, options.after)]
            for what, n in cases_of(options):
                shares = (options.device, what, n) == ("cpu", "decode", 1)
                cases.append({"of": path.name, **compare(checkouts, what, n, options.turns, shares)})
                print(cases[-1], flush=True)
                speeds = [case["speed"] for case in cases]
                result = {**described, "before": {"commit": options.commits[0]}, "median": statistics.median(speeds),
                          "least": min(speeds), "most": max(speeds), "cases": cases}
                results_file.write(f"{options.device}-models-turns", result, options.output)
            for checkout in checkouts:
                checkout.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--answer"]:
        answer(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
