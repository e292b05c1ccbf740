"""Results of `octavo bench model` as Markdown, JSON or CSV, and the name of a result's file."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

from octavo.bench.others import BUSY, misleading
from octavo.sizes import size

Result = dict[str, Any]
APART = 0.1
"""By how much gains of turns may differ before a result says so."""


def to_json(result: Result) -> str:
    """The whole result, indented; ends in a line end."""
    return json.dumps(result, indent=1, allow_nan=False) + "\n"


def to_markdown(result: Result) -> str:
    """What was measured where, in three lines, and a table with a row for each test; ends in a line end."""
    model, where, names = result["model"], result["machine"], subjects(result)
    versions = result["versions"]
    built = f"octavo {versions['octavo']}" + (f" ({versions['commit']})" if versions["commit"] else "")
    card = f"{where['gpu']} (driver {where.get('driver')}), " if "gpu" in where else ""
    names_of = [*(n for n in ("torch", "triton") if n in versions), *names[1:]]
    added = [f"{one['name']} x {one['scale']:g}" for one in result.get("lora", ())]
    lora = f" with LoRA {', '.join(added)}" if added else ""
    ranks = f" of {n} ranks" if (n := result.get("tensor_parallel", 1)) > 1 else ""
    ranks += f", a pipeline of {n}" if (n := result.get("pipeline", 1)) > 1 else ""
    lines = [
        f"**{model['file']}**{lora}: {size(model['bytes'])}, {model['bits_per_weight']:.2f} bits per weight",
        "",
        f"{card}{where['cpu']}, {_count(where['cores'], 'core')}, {where['os']}; {result['device']}, "
        f"{_count(result['threads'], 'thread')}{ranks}, KV {result['kv']}; "
        f"{', '.join([built, *(f'{name} {versions[name]}' for name in names_of)])}; {result['date'][:10]}",
        "",
    ]
    limits = [value for test in result["tests"] for value in test["read_limits"]]
    if limits:
        lines += [f"Read limit: {max(limits):.1f} GB/s (measured {min(limits):.1f} to {max(limits):.1f})", ""]
    others = max((test["others_cpu"] or 0.0 for test in result["tests"]), default=0.0)
    if others > BUSY:
        lines += [
            f"**Busy machine**: other programs took up to {others:.0%} of the CPU, so rates mislead, and ratios are"
            " withheld.",
            "",
        ]
    head = ["test", "tok/s: median (mean ± deviation)"]
    for name in names[1:]:
        head += [f"{name} tok/s", "ratio"]
    if result["tests"]:
        lines += _row([*head, "weights GB/s", "of read limit", "of first decode", "GOPS"])
        lines += _row(["---", *["---:"] * (len(head) + 3)])
    for test in result["tests"]:
        lines += _row(_cells(test, names))
    if rows := result.get("speculation"):
        lines += [*([""] if result["tests"] else []), *speculation_table(rows)]
    return "\n".join(lines) + "\n"


def speculation_table(rows: list[Result]) -> list[str]:
    """A table of replies with drafts, and what its figures are worth."""
    lines = _row(["drafts", "replies", "text", "tok/s", "without", "gain (all turns)", "drafted tokens accepted",
                  "tokens a step, of all replies"])
    lines += _row(["---", "---:", "---", *["---:"] * 5])
    for row in rows:
        share = row["acceptance"]
        text = row["settings"] if row["same"] else f"{row['settings']}, **another than without**"
        lines += _row([
            _way(row), str(row["replies"]), text, f"{row['rate']:.1f}", f"{row['rate_without']:.1f}", _gain(row),
            "no drafts" if share is None else f"{share:.0%} of {row['drafted']:,}", f"{row['tokens_a_step']:.2f}",
        ])
    lines += [""]
    if all(row["same"] for row in rows):
        lines += ["Replies are the same with drafts and without."]
    apart = max(max(row["gains"][1:]) / min(row["gains"][1:]) - 1 for row in rows)
    if apart > APART:
        others = max(row["others_cpu"] or 0.0 for row in rows)
        busy = f"other programs took up to {others:.0%} of the CPU" if others > BUSY else "more turns (-r) tell more"
        lines += [f"Gains of one row differ by up to {apart:.0%} between turns: {busy}."]
    if any(row["simulated"] is not None for row in rows):
        lines += ["Simulated: a layer of the model and its output matrix compute each token of a draft; only the "
                  "choice is replaced, so that it is right with this probability if those before it are."]
    return lines


def _way(row: Result) -> str:
    return str(row["drafts"]) if row["simulated"] is None else f"simulated {row['simulated']:g}"


def _gain(row: Result) -> str:
    """How many times as fast replies are with drafts: the median of turns, after the one that learns, and the least and
    the most of them; bold where several turns agree whether it is a gain, on a machine that others left alone."""
    turns = row["gains"][1:]
    low, high = min(turns), max(turns)
    sure = len(turns) > 1 and not low <= 1 <= high and (row["others_cpu"] or 0.0) <= BUSY
    median = f"**{row['gain']:.2f}**" if sure else f"{row['gain']:.2f}"
    return f"{median} ({low:.2f} to {high:.2f})"


def gain_line(row: Result) -> str:
    """A row of replies with drafts in a line, as soon as it is there."""
    found = _gain(row).replace("**", "")
    return f"{_way(row)}, {row['settings']}, {row['replies']} at a time: {found} times as fast as without drafts"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def to_csv(result: Result) -> str:
    """A header, and a row for each test and subject, with the values of all rounds in the last column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["date", "machine", "device", "threads", "model", "subject", "test", "tokens", "depth", "batch",
                     "median", "mean", "deviation", "weights_gbps", "share_of_read_limit", "rounds"])
    same = [result["date"], result["machine"]["cpu"], result["device"], result["threads"], result["model"]["file"]]
    for test in result["tests"]:
        for i, (name, rate) in enumerate(test["rates"].items()):
            speeds = ["", ""] if i else [test.get("weights_gbps", ""), test.get("share_of_read_limit", "")]
            writer.writerow([*same, name, test["test"], test["tokens"], test["depth"], test["batch"], rate["median"],
                             rate["mean"], rate["deviation"], *speeds, " ".join(map(str, rate["rounds"]))])
    return text.getvalue()


FORMATS: dict[str, Callable[[Result], str]] = {"md": to_markdown, "json": to_json, "csv": to_csv}


def subjects(result: Result) -> list[str]:
    """Names of what was timed, this package's first."""
    return list(dict.fromkeys(name for test in result["tests"] for name in test["rates"]))


def file_name(result: Result, extension: str = "json") -> str:
    """As `cpu-qwen3-1.7b-q4_k_m-2025-01-31.json`: device, model and day."""
    stem = re.sub(r"[^a-z0-9._-]+", "-", result["model"]["file"].removesuffix(".gguf").lower()).strip("-")
    return f"{result['device']}-{stem}-{result['date'][:10]}.{extension}"


def _cells(test: dict[str, Any], names: list[str]) -> list[str]:
    ours, *others = names
    withheld = misleading(test["others_cpu"], test.get("share_of_read_limit"))
    cells = [test["test"], _rate(test["rates"][ours])]
    for name in others:
        known = name in test["rates"]
        ratio = f"**{test['ratio'][name]:.2f}**" if known and not withheld else "withheld"
        cells += [_rate(test["rates"][name]), ratio] if known else ["", ""]
    return [
        *cells, _number(test.get("weights_gbps"), ".1f"), _number(test.get("share_of_read_limit"), ".0%"),
        _number(test.get("to_first"), ".2f"), _number(test["gops"], ".0f"),
    ]


def _rate(rate: dict[str, Any]) -> str:
    """Median, and mean and deviation if there was more than one round."""
    digits = 1 if rate["median"] >= 100 else 2
    if not rate["deviation"]:
        return f"{rate['median']:.{digits}f}"
    return f"{rate['median']:.{digits}f} ({rate['mean']:.{digits}f} ± {rate['deviation']:.{digits}f})"


def _number(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)


def _row(cells: list[str]) -> list[str]:
    return ["| " + " | ".join(cells) + " |"]
