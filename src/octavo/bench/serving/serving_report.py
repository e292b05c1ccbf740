"""Results of `octavo bench serve` as Markdown, and the name of a result's file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

Result = dict[str, Any]

BUSY_CLIENT = 0.5
"""Share of a core that the client may take before a result says so."""


def to_markdown(result: Result) -> str:
    """What was asked of what, and a table with a row for each number of streams; ends in a line end."""
    where, server, versions = result["machine"], result["server"], result["versions"]
    product = f" ({server['product']})" if server["product"] else ""
    built = f"octavo {versions['octavo']}" + (f" ({versions['commit']})" if versions["commit"] else "")
    lines = [
        f"**{server['model']}** at {server['url']}{product}: {_asked(result)}",
        "",
        f"{where['cpu']}, {where['cores']} cores, {where['os']}; measured by {built}; {result['date'][:10]}",
        "",
    ]
    busy = max(run["client_cpu"] for run in result["runs"])
    if busy > BUSY_CLIENT:
        lines += [f"**Busy client**: it took up to {busy:.0%} of a core, so times may be its own.", ""]
    lines += _table(*_TABLES[result["workload"]](result["runs"], bool(result["goodput"])))
    for run in result["runs"]:
        lines += [f"- {run['streams']} at a time: {text}" for text in run["failures"]]
    return "\n".join(lines) + "\n"


def file_name(result: Result) -> str:
    """As `serve-a-qwen3-1.7b-q4_k_m-2025-01-31.json`: workload, model and day."""
    stem = re.sub(r"[^a-z0-9._-]+", "-", str(result["server"]["model"]).lower().removesuffix(".gguf")).strip("-")
    return f"serve-{result['workload']}-{stem}-{result['date'][:10]}.json"


def _asked(result: Result) -> str:
    each = f"{result['input']} tokens in, {result['output']} out, prompts of {result['prompts']}"
    arriving = "" if result["rate"] is None else f", {result['rate']:g} requests a second"
    kinds = {
        "a": f"requests of {each}{arriving}",
        "b": f"prompts of 2,048 tokens among streams; {each}",
        "c": f"conversations of 8 turns under a system prompt of 1,000 tokens, replies of {result['output']}",
    }
    return f"workload {result['workload']}, {kinds[result['workload']]}"


def _requests(runs: Sequence[Result], judged: bool) -> tuple[list[str], list[list[str]]]:
    drafted = any(_drafted(run) for run in runs)
    head = ["streams", "requests", "failed", "out tok/s", "all tok/s", "req/s", *(["goodput"] if judged else []),
            *(["drafts accepted", "tokens a step"] if drafted else []), *_heads("TTFT", "ITL", "TPOT"), "client CPU"]
    rows = [
        [str(run["streams"]), str(run["requests"]), str(run["failed"]), _rate(run, "output_rate"),
         _rate(run, "total_rate"), _rate(run, "request_rate", 2),
         *([f"{_rate(run, 'goodput', 2)} ({run.get('kept') or 0:.0%})"] if judged else []),
         *(_of_drafts(run) if drafted else []), *_percentiles(run, "ttft", "itl", "tpot"), f"{run['client_cpu']:.0%}"]
        for run in runs
    ]
    return head, rows


def _drafted(run: Result) -> int:
    """Tokens of drafts, as the server's usage counts them."""
    return int(run.get("accepted_tokens") or 0) + int(run.get("rejected_tokens") or 0)


def _of_drafts(run: Result) -> list[str]:
    """What share of drafts was accepted, and how many tokens of a reply a step brought by that."""
    if not (drafted := _drafted(run)):
        return ["", ""]
    accepted, tokens = run["accepted_tokens"], run["output_tokens"]
    return [f"{accepted / drafted:.0%} of {drafted:,}", f"{tokens / max(tokens - accepted, 1):.2f}"]


def _among_streams(runs: Sequence[Result], judged: bool) -> tuple[list[str], list[list[str]]]:
    head = ["streams", "long prompts", "failed", *_heads("TTFT", "ITL during", "ITL steady"), "client CPU"]
    rows = [
        [str(run["streams"]), str(run["requests"]), str(run["failed"]),
         *_percentiles(run, "ttft", "during", "steady"), f"{run['client_cpu']:.0%}"]
        for run in runs
    ]
    return head, rows


def _turns(runs: Sequence[Result], judged: bool) -> tuple[list[str], list[list[str]]]:
    head = ["streams", "turn", "tokens in", "cached", *_heads("TTFT")]
    rows = []
    for run in runs:
        last = {"turn": "8, unseen", "ttft": run.get("cold"), "input_tokens": None, "cached_tokens": None}
        for turn in (*run["turns"], last):
            counts = ["" if turn[key] is None else f"{turn[key]:.0f}" for key in ("input_tokens", "cached_tokens")]
            rows.append([str(run["streams"]), str(turn["turn"]), *counts, *_percentiles(turn, "ttft")])
    return head, rows


_TABLES = {"a": _requests, "b": _among_streams, "c": _turns}


def _heads(*names: str) -> list[str]:
    return [text for name in names for text in (f"{name} p50 ms", "p90", "p99")]


def _percentiles(run: Result, *names: str) -> list[str]:
    found = (run.get(name) for name in names)
    return ["" if d is None else f"{d[p]:,.{1 if d[p] < 100 else 0}f}" for d in found for p in ("p50", "p90", "p99")]


def _rate(run: Result, name: str, digits: int = 1) -> str:
    value = run.get(name)
    return "" if value is None else f"{value:,.{digits}f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---:"] * len(head), *rows)]
