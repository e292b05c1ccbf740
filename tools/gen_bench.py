"""Writes docs/speed.md's tables from bench/results/*.json; `--check` compares, and exits with 1 if it is stale.

The tables go between the lines `<!-- bench:start -->` and `<!-- bench:end -->`. Of results for the same machine,
device, threads, KV cache and model the newest counts; of bench/gpu_models.py for the same card and model. What was
measured while other programs took more than BUSY of the CPU is not in them, nor is a model of which there is only a
`part`. A table's heading says which CPU of a name it was, what the peer was set to, and on which days it was measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import page_section

RESULTS = Path(__file__).resolve().parent.parent / "bench" / "results"
PAGE = page_section.DOCS / "speed.md"
BUSY = 0.2
LEVELS = {"amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx512f": "AVX-512", "avx2": "AVX2"}
"""CPU features by which kernels are chosen, the most first, and what they are called."""
NONE_YET = "No results have been committed yet."

Result = dict[str, Any]


def newest(results: Sequence[Result]) -> list[Result]:
    """The newest result for each machine, device, threads, KV cache and model; sorted by these and by what they are
    against, small models first."""
    by_key: dict[tuple[Any, ...], Result] = {}
    for r in sorted(results, key=lambda r: r["date"]):
        by_key[_where(r), r["model"]["file"]] = r
    return sorted(by_key.values(), key=lambda r: (_title(r), r["model"]["parameters"], r["model"]["file"]))


def _where(result: Result) -> str:
    machine = result["machine"]
    features = machine.get("features", [])
    family = [part for part in [(machine.get("family") or "").partition(" ")[2]] if part]
    level = [name for feature, name in LEVELS.items() if feature in features][:1]
    kind = f" ({', '.join([*family, *level])})" if family or level else ""
    cores = f"{result['threads']} of {machine['cores']} cores"
    return f"{machine['cpu']}{kind}, {cores}, {result['device']}, KV {result['kv']}"


def table(results: Sequence[Result]) -> str:
    """A table for each machine: prefill and decode of each model, and their ratios to the peer."""
    lines: list[str] = []
    for _, group in groupby(newest(results), key=_title):
        alike = list(group)
        lines += ["", *_heading(alike), *("| " + " | ".join(_cells(result)) + " |" for result in alike)]
    return "\n".join(lines).strip() or NONE_YET


def _title(result: Result) -> str:
    versions = ", ".join(_version(result, peer) for peer in _peers(result))
    return _where(result) + (f"; against {versions}" if versions else "")


def _heading(alike: Sequence[Result]) -> list[str]:
    """Of results of one title."""
    columns = ["model", "prefill tok/s", "decode tok/s", "of read limit"]
    columns += [f"{kind} against {peer}" for peer in _peers(alike[0]) for kind in ("prefill", "decode")]
    title = f"{_title(alike[0])}; {_days(result['date'] for result in alike)}"
    return [title, "", "| " + " | ".join(columns) + " |", "|" + "---|" + "---:|" * (len(columns) - 1)]


def _days(dates: Iterable[str]) -> str:
    """The days of times in UTC, each once, in order."""
    return "measured on " + ", ".join(sorted({date[:10] for date in dates}))


def _version(result: Result, peer: str) -> str:
    """With flash attention, which its own programs choose, or without; older results don't say, and were without."""
    flash = result.get("peers", {}).get(peer, {}).get("flash_attention")
    return f"{peer} {result['versions'][peer]} {'with' if flash else 'without'} flash attention"


def _peers(result: Result) -> list[str]:
    return list(dict.fromkeys(name for test in result["tests"] for name in test["ratio"]))


def _cells(result: Result) -> list[str]:
    prefill, decode = (_test(result, kind) for kind in ("prefill", "decode"))
    share = (decode or {}).get("share_of_read_limit")
    cells = [result["model"]["file"].removesuffix(".gguf"), _rate(prefill), _rate(decode)]
    cells.append("" if share is None else f"{share:.0%}")
    for peer in _peers(result):
        cells += [_ratio(prefill, peer), _ratio(decode, peer)]
    return cells


def _ratio(test: dict[str, Any] | None, peer: str) -> str:
    return "" if test is None or peer not in test["ratio"] else f"{test['ratio'][peer]:.2f}x"


def _test(result: Result, kind: str) -> dict[str, Any] | None:
    """The first test of a kind with one sequence."""
    return next((t for t in result["tests"] if t["kind"] == kind and t["batch"] == 1), None)


GPU_TESTS = {
    "prefill 512": "prefill 512",
    "prefill 2048": "prefill 2048",
    "decode 1 at 0": "decode",
    "decode 1 at 4096": "at depth 4096",
    "decode 8 at 0": "8 sequences",
}


def gpu_table(result: Result) -> str:
    """Tokens a second of each model in a result of bench/gpu_models.py, measured on its `days`."""
    where, versions = result["machine"], result["versions"]
    title = f"{where['gpu']}, gpu, KV f16; torch {versions['torch']}, Triton {versions['triton']}; "
    title += f"{_days(result['days'].values())}; tokens a second"
    lines = [title, "", "| model | " + " | ".join(GPU_TESTS.values()) + " |", "|---|" + "---:|" * len(GPU_TESTS)]
    for model, tests in result["models"].items():
        rates = {test["test"]: test["tokens_per_second"] for test in tests}
        lines.append(f"| {model} | " + " | ".join(f"{rates[name]:,.0f}" for name in GPU_TESTS) + " |")
    return "\n".join(lines)


def _rate(test: dict[str, Any] | None) -> str:
    if test is None:
        return ""
    median = test["rates"]["octavo"]["median"]
    return f"{median:,.0f}" if median >= 100 else f"{median:.1f}"


def tables() -> str:
    """The tables of all results."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    compared = [r for r in found if any(test["ratio"] for test in r.get("tests", []))]  # `octavo bench model --peer`
    quiet = [r for r in compared if all((test["others_cpu"] or 0.0) <= BUSY for test in r["tests"])]
    results = [r for r in quiet if "part" not in r]
    gpu = sorted((r for r in found if "models" in r and "gpu" in r["machine"]), key=lambda r: str(r["date"]))
    of_cards: dict[str, Result] = {}  # the last results of bench/gpu_models.py on each
    for r in gpu:
        older = of_cards.get(r["machine"]["gpu"], {"models": {}, "days": {}})
        days = {**older["days"], **dict.fromkeys(r["models"], str(r["date"]))}
        of_cards[r["machine"]["gpu"]] = {**r, "models": {**older["models"], **r["models"]}, "days": days}
    return "\n\n".join([table(results), *(gpu_table(r) for r in of_cards.values())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 where `--check` finds the tables stale or the marks are missing, 0 otherwise."""
    return page_section.main(arguments, __file__, __doc__, PAGE, "bench", tables)


if __name__ == "__main__":
    sys.exit(main())
