"""Writes docs/quantize.md's table of the demo model quantized, from the newest bench/results/demo-presets-<date>.json.

The table goes between the lines `<!-- demo:start -->` and `<!-- demo:end -->`. `--check` compares, and exits with 1 if
it is stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import page_section

RESULTS = Path(__file__).resolve().parent.parent / "bench" / "results"
PAGE = page_section.DOCS / "quantize.md"
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
    ]
    return f"| {' | '.join(cells)} |"


def newest() -> str:
    """The table of the newest result. Raises ValueError where there is none."""
    found = sorted(RESULTS.glob("demo-presets-*.json"))
    if not found:
        raise ValueError(f"{RESULTS} has no results: run python bench/demo_presets.py")
    return table(json.loads(found[-1].read_text(encoding="utf-8"))["rows"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 where `--check` finds the table stale, or results or marks are missing; 0 otherwise."""
    return page_section.main(arguments, __file__, __doc__, PAGE, "demo", newest)


if __name__ == "__main__":
    sys.exit(main())
