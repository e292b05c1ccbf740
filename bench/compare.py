"""Compares two results of one benchmark and writes bench/results/<name>-compared-<date>.json.

    python bench/compare.py BEFORE.json ... --after AFTER.json ... [-o FOLDER]

Entries are matched by everything in them that is not measured. `speed` is how many times as fast the later one is: the
inverse ratio of microseconds, or the ratio of tokens a second; of several files, the ratio of medians. All should be of
one machine and of one day, measured in turns.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import results_file

Case = tuple[tuple[str, Any], ...]
NAMES = ("scheme", "m", "n", "k", "op", "format", "cache", "tokens", "depth", "experts", "test")
"""What an entry says of its case."""


def speeds(value: Any, within: Case = ()) -> Iterator[tuple[Case, float]]:
    """Each case of a result with its speed, in cases a second or tokens a second."""
    if isinstance(value, list):
        for entry in value:
            yield from speeds(entry, within)
    elif isinstance(value, dict):
        case = within + tuple((name, value[name]) for name in NAMES if name in value)
        if "microseconds" in value:
            yield case, 1e6 / value["microseconds"]
        elif "tokens_per_second" in value:
            yield case, value["tokens_per_second"]
        else:
            for name, part in value.items():
                yield from speeds(part, (*within, ("of", name)))


def medians(paths: list[Path]) -> tuple[dict[str, Any], dict[Case, float]]:
    """The first of some results of one benchmark, and the median speed of each case in all of them."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    runs = [dict(speeds(result)) for result in results]
    return results[0], {case: statistics.median(run[case] for run in runs) for case in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="+")
    parser.add_argument("--after", type=Path, nargs="+", required=True)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    args = parser.parse_args()
    (before, old), (after, new) = medians(args.before), medians(args.after)
    cases = [{**dict(case), "speed": round(speed / old[case], 4)} for case, speed in new.items() if case in old]
    ratios = [case["speed"] for case in cases]
    result = {
        "command": after["command"],
        "date": after["date"],
        "machine": after["machine"],
        "versions": after["versions"],
        "before": {"command": before["command"], "date": before["date"], "versions": before["versions"]},
        "runs": [len(args.before), len(args.after)],
        "median": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "cases": cases,
    }
    results_file.write(re.sub(r"-\d{4}-\d\d-\d\d$", "", args.after[0].stem) + "-compared", result, args.output)
    print(f"{len(cases)} cases: {min(ratios):.3f} to {max(ratios):.3f} times as fast, median {result['median']:.3f}")


if __name__ == "__main__":
    main()
