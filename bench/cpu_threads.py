"""Draws a model's rates over threads, as in docs/cpu.md, from a result file with runs of `octavo bench model`.

    python bench/cpu_threads.py bench/results/cpu-16-cores-2026-11-30.json -o docs/pictures/cpu-threads.svg

Beside what was measured is a line of the rate of one thread times the threads.
"""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "octavo", "font.size": 8.0, "axes.spines.top": False,
    "axes.spines.right": False,
} | dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "axes.edgecolor"), "#7a828e")
FILE = "Q4_K_M.gguf"


def rates(result: dict[str, Any], kind: str) -> dict[int, float]:
    """Tokens a second of each number of threads; of several runs the last."""
    return {
        run["threads"]: test["rates"]["octavo"]["median"]
        for run in result["runs"] if run["model"]["file"] == FILE
        for test in run["tests"] if test["kind"] == kind and test["batch"] == 1
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    result = json.loads(options.result.read_text(encoding="utf-8"))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 2.6), layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        for axes, (kind, title) in zip(
            figure.subplots(1, 2), (("prefill", "prompt, tokens/s"), ("decode", "one reply, tokens/s")), strict=True
        ):
            found = dict(sorted(rates(result, kind).items()))
            threads = list(found)
            axes.set(title=title, xlabel="threads", xscale="log", yscale="log", facecolor="none")
            axes.plot(threads, [found[1] * n for n in threads], color="#8a8f98", linewidth=1, linestyle="--")
            axes.plot(threads, list(found.values()), color="#2a6fdb", marker="o", markersize=4)
            for n, rate in found.items():
                text = f"{rate:,.0f}" if rate > 100 else f"{rate:.1f}"
                axes.annotate(text, (n, rate), (4, -10), textcoords="offset points")
            axes.set_xticks(threads, [str(n) for n in threads])
            axes.set_yticks([])
            axes.minorticks_off()
            axes.set_ylim(bottom=found[1] * 0.7)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
