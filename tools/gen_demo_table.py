"""Writes the README's table of the demo model quantized, from the newest bench/results/demo-presets-<date>.json.

The table goes between the lines `<!-- demo:start -->` and `<!-- demo:end -->`. `--check` compares, and exits with 1 if
it is stale.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
README = ROOT / "README.md"
START, END = "<!-- demo:start -->", "<!-- demo:end -->"
HEAD = "| preset | bits/weight | size | KL divergence | perplexity of answers | accuracy |"

Row = dict[str, Any]


def table(rows: Sequence[Row]) -> str:
    """A Markdown table, the largest model first."""
    lines = [_cells(row) for row in sorted(rows, key=lambda row: (-row["bits_per_weight"], row["imatrix"]))]
    return "\n".join([HEAD, "|---|" + "---:|" * 5, *lines])


def _cells(row: Row) -> str:
    base, comma, imatrix = row["name"].partition(",")
    name = f"`{base}`{comma}{imatrix}" if base.startswith("--") else row["name"]
    kl, kl_error = row["kl"]
    apart = f"{kl:.5f} ± {kl_error:.5f}" if kl else "0"
    cells = [
        name, f"{row['bits_per_weight']:.2f}", f"{row['file_bytes'] / 1e6:.2f} MB", apart,
        f"{row['perplexity'][0]:.5f}", f"{row['accuracy']:.1%}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def with_table(readme: str, text: str) -> str:
    """The README with `text` between the marks. Raises ValueError where a mark is missing."""
    if readme.count(START) != 1 or readme.count(END) != 1 or readme.index(START) > readme.index(END):
        raise ValueError(f"README.md needs a line {START} and, after it, a line {END}")
    before, rest = readme.split(START)
    return f"{before}{START}\n{text}\n{END}{rest.split(END)[1]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 where `--check` finds the table stale, or results or marks are missing; 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 where the table is stale")
    check = parser.parse_args(arguments).check
    found = sorted(RESULTS.glob("demo-presets-*.json"))
    if not found:
        print(f"{RESULTS} has no results: run python bench/demo_presets.py", file=sys.stderr)
        return 1
    old = README.read_text(encoding="utf-8")
    try:
        new = with_table(old, table(json.loads(found[-1].read_text(encoding="utf-8"))["rows"]))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if check and old != new:
        print("the demo model's table in README.md is stale: run python tools/gen_demo_table.py", file=sys.stderr)
        return 1
    if not check:
        README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
