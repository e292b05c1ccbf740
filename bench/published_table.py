"""A result of bench/gpu_published.py as tables of Markdown."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
DECODE = {f"decode {n}": str(n) for n in (1, 8, 32, 128, 256, 512)}
"""Columns of the first table, by test; prompts are the last."""


def markdown(result: dict[str, Any]) -> str:
    """Tokens a second by model, with the part of the limit in brackets; then what starting took, and long contexts."""
    rows: dict[tuple[str, str], dict[str, Case]] = {}
    for case in result["cases"]:
        kind = {"cache": "cache", "depth": "depth", "start": "start"}.get(case["part"], "")
        rows.setdefault((kind, case["model"]), {})[case["test"]] = case
    parts = [_speeds(rows), _depths(rows), _starts(rows)]
    failed = [f"- {c['model']}, {c['part']}: {c['failed']}" for c in result["cases"] if "failed" in c]
    return "\n\n".join(filter(None, [*parts, "\n".join(failed)]))


def _speeds(rows: dict[tuple[str, str], dict[str, Case]]) -> str:
    found = {name + (", cache fp8" if kind else ""): tests for (kind, name), tests in rows.items()
             if kind in ("", "cache")}
    used = [test for test in DECODE if any(test in tests for tests in found.values())]
    prompts = sorted({test for tests in found.values() for test in tests if test.startswith("prompt ")})
    head = [*(DECODE[test] for test in used), *prompts]
    return table(["model", *head], [[name, *(_rate(tests.get(t)) for t in (*used, *prompts))]
                                     for name, tests in found.items()])


def _depths(rows: dict[tuple[str, str], dict[str, Case]]) -> str:
    found = {name: tests for (kind, name), tests in rows.items() if kind == "depth"}
    used = list(dict.fromkeys(test for tests in found.values() for test in tests))
    return table(["model", *used], [[name, *(_rate(tests.get(t)) for t in used)] for name, tests in found.items()])


def _starts(rows: dict[tuple[str, str], dict[str, Case]]) -> str:
    found = {name: tests["start"] for (kind, name), tests in rows.items() if kind == "start" and "start" in tests}
    keys = {"answers": "answers after, s", "ready": "ready after, s", "reserved_mib": "captured, MiB"}
    lines = [[name, *(_number(case.get(key, "")) for key in keys)] for name, case in found.items()]
    return table(["model", *keys.values()], lines)


def _number(value: Any) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def _rate(case: Case | None) -> str:
    """A rate, the part of its aim where it falls short, and the part of the limit."""
    if case is None:
        return ""
    if "failed" in case:
        return "failed"
    said = [f"{case['limit']:.0%}"] if "limit" in case else []
    said += [f"{case['of_aim']:.2f} of the aim"] if case.get("of_aim", 1) < 1 else []
    return f"{case['rate']:,.0f}" + (f" ({', '.join(said)})" if said else "")


def table(head: list[str], lines: list[list[str]]) -> str:
    if not lines:
        return ""
    rule = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join(["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)])
