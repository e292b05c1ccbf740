"""Writes the README's tables of speeds from bench/results/*.json; `--check` compares, and exits with 1 if it is stale.

The tables go between the lines `<!-- bench:start -->` and `<!-- bench:end -->`. Of results for the same machine,
device, threads, KV cache and model the newest counts; of bench/gpu_models.py for the same card and model. What was
measured while other programs took more than BUSY of the CPU is not in them, nor is a model of which there is only a
`part`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marked

RESULTS = Path(__file__).resolve().parent.parent / "bench" / "results"
BUSY = 0.2
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
    narrow = " without AVX-512" if "avx2" in features and "avx512f" not in features else ""
    cores = f"{result['threads']} of {machine['cores']} cores"
    return f"{machine['cpu']}{narrow}, {cores}, {result['device']}, KV {result['kv']}"


def table(results: Sequence[Result]) -> str:
    """A table for each machine: prefill and decode of each model, and their ratios to the peer."""
    lines: list[str] = []
    last = None
    for result in newest(results):
        title = _title(result)
        if title != last:
            lines += ["", *_heading(result)]
            last = title
        lines.append("| " + " | ".join(_cells(result)) + " |")
    return "\n".join(lines).strip() or NONE_YET


def _title(result: Result) -> str:
    versions = ", ".join(_version(result, peer) for peer in _peers(result))
    return _where(result) + (f"; against {versions}" if versions else "")


def _heading(result: Result) -> list[str]:
    columns = ["model", "prefill tok/s", "decode tok/s", "of read limit"]
    columns += [f"{kind} against {peer}" for peer in _peers(result) for kind in ("prefill", "decode")]
    return [_title(result), "", "| " + " | ".join(columns) + " |", "|" + "---|" + "---:|" * (len(columns) - 1)]


def _version(result: Result, peer: str) -> str:
    """With what it did without, though its own programs choose it."""
    plain = not result.get("peers", {}).get(peer, {}).get("flash_attention")
    return f"{peer} {result['versions'][peer]}" + (" without flash attention" if plain else "")


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
    """Tokens a second of each model in a result of bench/gpu_models.py."""
    where, versions = result["machine"], result["versions"]
    title = f"{where['gpu']}, gpu, KV f16; torch {versions['torch']}, Triton {versions['triton']}; tokens a second"
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
        older = of_cards.get(r["machine"]["gpu"], {}).get("models", {})
        of_cards[r["machine"]["gpu"]] = {**r, "models": {**older, **r["models"]}}
    return "\n\n".join([table(results), *(gpu_table(r) for r in of_cards.values())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 where `--check` finds the tables stale or the marks are missing, 0 otherwise."""
    return marked.main(arguments, __file__, __doc__, "bench", tables)


if __name__ == "__main__":
    sys.exit(main())
