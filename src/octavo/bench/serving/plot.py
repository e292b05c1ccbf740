"""A result of `octavo bench serve` as a picture: how times are distributed, and what more streams bring."""

from __future__ import annotations

import os
from typing import Any

from octavo.errors import UsageError
from octavo.io.atomic import written_file

WIDTH, HEIGHT = 11.0, 3.6
COLOURS = ("#2a6fdb", "#d9822b", "#2f9e62", "#b04fb5", "#c23b3b", "#6b7280", "#0f8b8d", "#8a6d1f")


def format_of(path: str) -> str:
    """The format of pictures that a path's ending names, PNG without one. Raises UsageError for one that is unknown."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    ending = os.path.splitext(path)[1].removeprefix(".").lower() or "png"
    if ending not in known:
        raise UsageError(f"--plot is {path!r} (allowed: a name with .{', .'.join(sorted(known))})")
    return ending


def plot(result: dict[str, Any], path: str) -> None:
    """Write the picture to `path`, in the format that its ending names, else as PNG.

    Raises UsageError for one that is unknown, and FileError where it can't be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's own style may not fit
        matplotlib.rcParams.update({"font.size": 9.0, "axes.grid": True, "grid.alpha": 0.25, "axes.axisbelow": True,
                                    "axes.spines.top": False, "axes.spines.right": False})
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        {"a": _short, "b": _among_streams, "c": _turns}[result["workload"]](result["runs"], left, middle, right)
        figure.suptitle(f"{result['server']['model']}, workload {result['workload']}", fontsize=10)
        with written_file(path) as temporary:
            figure.savefig(temporary, dpi=150, format=format_of(path))


def _short(runs: list[dict[str, Any]], left: Any, middle: Any, right: Any) -> None:
    _shares(left, runs, "ttft", "time to first text, ms")
    _shares(middle, runs, "itl", "between texts, ms")
    known = [run for run in runs if "output_rate" in run]
    right.plot([r["streams"] for r in known], [r["output_rate"] for r in known], "o-", color=COLOURS[0])
    right.set(xlabel="streams", ylabel="tokens a second, all replies", ylim=(0, None), xscale="log")
    right.set_xticks([r["streams"] for r in known], [str(r["streams"]) for r in known], minor=False)
    right.minorticks_off()


def _among_streams(runs: list[dict[str, Any]], left: Any, middle: Any, right: Any) -> None:
    _shares(left, runs, "during", "between texts while a prompt is computed, ms")
    _shares(middle, runs, "steady", "between texts otherwise, ms")
    last = runs[-1]
    for first, end in last["arrivals"]:
        right.axvspan(first, end, color=COLOURS[1], alpha=0.15, linewidth=0)
    points = last["timeline"]
    right.plot([t for t, _ in points], [gap for _, gap in points], ".", markersize=3, color=COLOURS[0])
    right.set(
        xlabel=f"seconds; {last['streams']} streams, long prompts shaded", ylabel="before this text, ms", ylim=(0, None)
    )


def _turns(runs: list[dict[str, Any]], left: Any, middle: Any, right: Any) -> None:
    for colour, run in zip(COLOURS, runs, strict=False):
        turns = [turn for turn in run["turns"] if turn["ttft"]]
        label = f"{run['streams']} at a time"
        left.plot([t["turn"] for t in turns], [t["ttft"]["p50"] for t in turns], "o-", color=colour, label=label)
        if run["cold"]:
            left.axhline(run["cold"]["p50"], color=colour, linestyle=":")
        known = [t for t in turns if t["cached_tokens"] is not None]
        middle.plot(
            [t["turn"] for t in known], [t["cached_tokens"] / t["input_tokens"] for t in known], "o-", color=colour
        )
    left.set(xlabel="turn (dotted: the last, unseen)", ylabel="time to first text, ms", ylim=(0, None))
    left.legend(frameon=False)
    middle.set(xlabel="turn", ylabel="share of the prompt found in the cache", ylim=(0, 1.02))
    _shares(right, runs, "itl", "between texts, ms")


def _shares(axes: Any, runs: list[dict[str, Any]], name: str, what: str) -> None:
    """A line for each run: the share of values that are at most x."""
    for colour, run in zip(COLOURS, runs, strict=False):
        if run.get(name):
            points = run[name]["percentiles"]
            axes.plot(
                points, [i / (len(points) - 1) for i in range(len(points))], color=colour, label=str(run["streams"])
            )
    axes.set(xlabel=what, ylabel="share of values", ylim=(0, 1.02), xscale="log")
    if len(runs) > 1:
        axes.legend(title="streams", frameon=False)
