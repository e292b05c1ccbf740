"""Times replies with drafts and without in turns: tokens a second, and what share of drafts is accepted.

    python bench/speculation.py MODEL [--draft MODEL] [--ways lookup,draft,simulated:0.75] [--replies 1,4,8]
        [--settings greedy,sampled,random] [--tokens N] [--turns N] [-o FOLDER]

Writes bench/results/speculation-<model>-<date>.json. `octavo.bench.speculation` says what ways and settings there are,
and what is in a row. The texts of all ways have to be the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import results_file
from octavo import load
from octavo.bench.machine import commit
from octavo.bench.speculation import SETTINGS, Drafts, compared


def way_of(text: str) -> Drafts:
    """As `lookup`, or `simulated:0.75`."""
    kind, _, acceptance = text.partition(":")
    return Drafts(kind, float(acceptance) if acceptance else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ways", help="(default: lookup, and draft where there is one)")
    parser.add_argument("--settings", default="greedy,sampled", help=f"of {', '.join(SETTINGS)}")
    parser.add_argument("--replies", default="1,4", help="at a time, several numbers")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    ways = (asked.ways or ("lookup,draft" if asked.draft else "lookup")).split(",")
    numbers, rows = [int(n) for n in asked.replies.split(",")], list[dict[str, Any]]()
    with load(
        asked.model, draft=asked.draft, device=asked.device, threads=asked.threads, n_ctx=asked.tokens + 96,
        max_sequences=max(numbers), speculate=way_of(ways[0]).setting,
    ) as model:
        for way in map(way_of, ways):
            for how in asked.settings.split(","):
                for replies in numbers:
                    rows.append(compared(model, way, how, replies, asked.tokens, asked.turns))
                    print(rows[-1], flush=True)
    what = {"model": Path(asked.model).name, "draft": asked.draft and Path(asked.draft).name}
    described = results_file.described(commit=asked.commit)
    name = f"speculation-{Path(asked.model).stem.lower()}"
    results_file.write(name, described | what | {"rows": rows}, asked.output)


if __name__ == "__main__":
    main()
