"""Times models in the ways in which they are published, on a CPU, and writes bench/results/cpu-published-<date>.json.

    python bench/cpu_published.py FOLDER [--models NAME ...] [--parts NAME ...] [--budget SECONDS] [--delete] [-o OUT]
    python bench/cpu_published.py --table RESULT.json

Models of random weights are made in FOLDER where they are missing, and with --delete are removed after their parts.
Each part of a model has a process of its own, and what it finds is written at once: what is interrupted, or stopped
when --budget seconds are over, goes on from there with the same OUT. All threads, unless a part says how many:

    usual        a prompt of 512 tokens, and one reply after 64; of 8B also 8 and 32 at a time, each in turns with one
    threads      a prompt and a reply with 1, 2, 4, 8, ... threads
    tiles-2      a prompt of 256 tokens with two threads; `vectors-2` the same without matrix tiles
    vectors      a prompt of 512 tokens without matrix tiles
    products     int8 by `octavo.ops`, 512 x 4096 x 4096, which reads no model

Rates are tokens a second, medians of rounds. Replies have the gigabytes of weights a second beside the read limit that
is measured in the same rounds, and the part of its most. `aim` is what is to be reached: tokens a second of prompts,
of one reply the part of the read limit, of several times the tokens of one, of products 10^12 operations a second;
`of_aim` is the part of that. A part that fails is not tried again without --again. --dry makes tiny models and few
tokens, to try all parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import octavo
import published_table
import results_file
from octavo.backends.cores import cores
from octavo.bench.gemm.measure import bench_gemm
from octavo.bench.limits import read_limit
from octavo.bench.model_bench import Trial, report, time_test
from octavo.bench.subject import EngineSubject
from octavo.jit import host_cpu
from published_models import Published
from published_run import Case, PublishedRun, aim, main, tell

KEPT = "cpu-published"
PARTS = ("usual", "threads", "tiles-2", "vectors-2", "vectors", "products")
USUAL = ("usual",)
DEPTH = 64
"""Tokens of a reply's context."""
WITHOUT_TILES = "avx512vnni"


@dataclass(frozen=True)
class Sizes:
    """Tokens of prompts, steps of a round, rounds, replies at a time, and sizes of a product."""

    prompt: int = 512
    short: int = 256
    steps: int = 16
    rounds: int = 5
    many: Sequence[int] = (8, 32)
    product: tuple[int, int, int] = (512, 4096, 4096)


DRY = Sizes(24, 16, 2, 1, (2, 3), (16, 64, 64))


def _qwen(preset: str, prompt: float = 2500, share: float = 0.75, **others: Any) -> Published:
    return Published("qwen3-1.7b", preset, aims={"prompt": prompt, "share": share}, **others)


def _experts(shape: str, preset: str) -> Published:
    return Published(shape, preset, folder=False, more=("vectors",), aims={"share": 0.7})


MODELS = {
    "1.7b-q4_k_m": _qwen("Q4_K_M", 3500, 0.8, folder=False, more=("tiles-2", "vectors-2", "products", "threads")),
    "1.7b-q8_0": _qwen("Q8_0", 4000, 0.8, folder=False),
    "8b-q4_k_m": Published(
        "llama3-8b", "Q4_K_M", folder=False, aims={"prompt": 750, "share": 0.8, "x8": 7, "x32": 20}
    ),
    "1.7b-f16": _qwen("F16", folder=False),
    "1.7b-bf16": _qwen("BF16", folder=False),
    "1.7b-w4a16-g128": _qwen("w4a16-g128"),
    "1.7b-int8-w8a8": _qwen("int8-w8a8"),
    "1.7b-fp8": _qwen("fp8"),
    "1.7b-w4a8-g128": _qwen("w4a8-g128"),
    "gpt-oss-20b-mxfp4": _experts("gpt-oss-20b", "MXFP4_MOE"),
    "30b-a3b-q4_k_m": _experts("qwen3-30b-a3b", "Q4_K_M"),
}


class Measured:
    """A part of a model, in a process of its own."""

    def __init__(self, name: str, path: str, part: str, sizes: Sizes) -> None:
        self.aims, self.path, self.part, self.sizes = MODELS[name].aims, path, part, sizes

    def cases(self, skip: set[str]) -> Iterator[Case]:
        """Those that are not among `skip`."""
        if self.part == "products":
            yield self._product()
            return
        short = self.sizes.short if self.part.endswith("-2") else self.sizes.prompt
        tests = [Trial("prefill", short)]
        if self.part in ("usual", "threads"):
            tests += [self._replies(n) for n in (1, *(self.sizes.many if "x8" in self.aims else ()))]
        for threads in self._threads():
            if left := [test for test in tests if f"{test.name}, {threads} threads" not in skip]:
                yield from self._tests(left, threads)

    def _threads(self) -> list[int]:
        if self.part == "threads":
            return [2**i for i in range(cores().bit_length()) if 2**i < cores()]
        return [min(2, cores()) if self.part.endswith("-2") else cores()]

    def _replies(self, n: int) -> Trial:
        return Trial("decode", self.sizes.steps, DEPTH, n)

    def _tests(self, tests: Sequence[Trial], threads: int) -> Iterator[Case]:
        most, rounds = max(test.batch for test in tests), 3 if self.part == "threads" else self.sizes.rounds
        with octavo.load(
            self.path, device="cpu", threads=threads, n_ctx=self.sizes.prompt + DEPTH, max_sequences=most + 1,
            weight_cache=False,
        ) as model:
            subject, first = EngineSubject(model.engine), EngineSubject(model.engine)
            one = self._replies(1)

            def rate_of_one() -> float:
                return one.produced / first.decode(one.tokens)

            if most > 1:
                first.prepare(DEPTH, 1)
            for test in tests:
                timing = time_test(
                    test, [subject], rounds, lambda: read_limit(threads),
                    baseline=rate_of_one if test.batch > 1 else None,
                )
                decode = test.kind == "decode"
                cost = subject.decode_cost(test.batch, DEPTH) if decode else subject.prefill_cost(test.tokens)
                row = report(timing, cost, max(timing.limits))
                rate = row.pop("rates")[subject.name]
                del row["ratio"], row["kind"]
                row |= {"test": f"{test.name}, {threads} threads", "rate": round(rate["median"], 1),
                        "rounds": rate["rounds"], "threads": threads, "tiles": host_cpu.has_tiles(),
                        "fallbacks": list(model.engine.schedule.fallbacks)}
                yield row | self._aim(row)

    def _aim(self, found: dict[str, Any]) -> Case:
        """What a test with all threads and with tiles is to reach."""
        if self.part != "usual":
            return {}
        if "share_of_read_limit" not in found:
            return aim(found["rate"], self.aims["prompt"]) if "prompt" in self.aims else {}
        key, reached = "share", found["share_of_read_limit"]
        if found["batch"] > 1:
            key, reached = f"x{found['batch']}", found["to_first"]
        return aim(reached, self.aims[key]) if key in self.aims else {}

    def _product(self) -> Case:
        m, n, k = self.sizes.product
        found = bench_gemm(m, n, k, "int8", "cpu")
        tera = found["gops"] / 1e3
        return {"test": f"int8 {m} x {n} x {k}", "tops": round(tera, 2), **aim(tera, 16.0)} | found


class Run(PublishedRun):
    """On the CPU, and without matrix tiles where a part says so."""

    script, models, usual = __file__, MODELS, USUAL

    def about(self) -> tuple[str, str, dict[str, Any]]:
        return "cpu", KEPT, results_file.described(commit=self.asked.commit)

    def environment(self, part: str) -> dict[str, str]:
        return {host_cpu.CHOSEN: WITHOUT_TILES} if part.startswith("vectors") and host_cpu.has_tiles() else {}


def markdown(result: dict[str, Any]) -> str:
    """Speeds by model; by threads; with and without tiles; products."""
    found: dict[str, list[Case]] = {}
    for case in result["cases"]:
        found.setdefault(case["part"], []).append(case)
    failed = [f"- {c['model']}, {c['part']}: {c['failed']}" for c in result["cases"] if "failed" in c]
    rated = {part: [c for c in cases if "rate" in c] for part, cases in found.items()}
    products = [f"{c['test']}: {c['tops']} TOPS, {c['of_aim']:.2f} of the aim" for c in found.get("products", [])
                if "tops" in c]
    parts = [_speeds(rated), _by_threads(rated), _tiles(rated), "\n".join(products), "\n".join(failed)]
    return "\n\n".join(filter(None, parts))


def _speeds(rated: dict[str, list[Case]]) -> str:
    """A row for each model: prompt, one reply, several."""
    rows: dict[str, dict[str, str]] = {}
    for case in rated.get("usual", ()):
        rows.setdefault(case["model"], {})[case["test"].split(", ")[0]] = _cell(case)
    used = list(dict.fromkeys(test for tests in rows.values() for test in tests))
    return published_table.table(
        ["model", *used], [[name, *(tests.get(test, "") for test in used)] for name, tests in rows.items()]
    )


def _by_threads(rated: dict[str, list[Case]]) -> str:
    """A row for each number of threads, the usual number among them."""
    rows: dict[tuple[str, int], list[str]] = {}
    models = {case["model"] for case in rated.get("threads", ())}
    for case in (*rated.get("threads", ()), *rated.get("usual", ())):
        if case["model"] in models and case["batch"] == 1:
            rows.setdefault((case["model"], case["threads"]), []).append(_cell(case | {"of_aim": 1}))
    return published_table.table(
        ["model", "threads", "prompt", "one reply"], [[name, str(n), *cells] for (name, n), cells in rows.items()]
    )


def _tiles(rated: dict[str, list[Case]]) -> str:
    """Prompts with tiles and without."""
    found = {part: {(c["model"], c["test"]): c["rate"] for c in cases} for part, cases in rated.items()}
    pairs = [
        (*which, rate, found[vectors][which])
        for tiles, vectors in (("tiles-2", "vectors-2"), ("usual", "vectors"))
        for which, rate in found.get(tiles, {}).items() if which in found.get(vectors, ())
    ]
    lines = [[model, test, f"{tiles:,.1f}", f"{vectors:,.1f}", f"{tiles / vectors:.2f}"]
             for model, test, tiles, vectors in pairs]
    return published_table.table(["model", "test", "tiles", "vectors", "ratio"], lines)


def _cell(case: Case) -> str:
    """A rate; of replies also what they read, and times the rate of one."""
    said = []
    if case.get("weights_gbps") and case["batch"] == 1:
        most = max(case["read_limits"])
        said.append(f"{case['weights_gbps']:.1f} of {most:.1f} GB/s, {case['share_of_read_limit']:.0%}")
    if case.get("to_first"):
        said.append(f"{case['to_first']:.2f} times one")
    if case.get("of_aim", 1) < 1:
        said.append(f"{case['of_aim']:.2f} of the aim")
    return f"{case['rate']:,.1f}" + (f" ({'; '.join(said)})" if said else "")


def measure(name: str, path: str, part: str, dry: bool, skip: list[str], **_: Any) -> None:
    """Print the cases of a part."""
    measured = Measured(name, path, part, DRY if dry else Sizes())
    tell(lambda: measured.cases(set(skip)), part)


if __name__ == "__main__":
    main(__doc__, Run, PARTS, "what a model has beside", measure, markdown)
