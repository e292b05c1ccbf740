"""A judgement as a picture, divergence over the bytes of the body, and as cells of a report's table."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pydantic

from octavo import sizes
from octavo.errors import FileError, UsageError
from octavo.evals.clusters import Interval
from octavo.evals.judge.judgement import Judgement, Verdict
from octavo.evals.judge.label_places import Spot, name_spots
from octavo.evals.report.cells import Parts, Table, number, percent, size
from octavo.evals.report.pictures import ACCENT, GRID, MUTED, SECOND, figure, scale, to_svg
from octavo.evals.report.tensor_labels import label
from octavo.io import regular_file
from octavo.io.atomic import written_file

KINDS = (".svg", ".png", ".pdf")
MAX_BYTES = 1 << 26
HEIGHT = 3.4
"""Inches."""
MOST_OF_NAME = 22
LARGEST = 1e6
"""Nats beyond which nothing diverges: a token has no log-probability like it."""


class Colours(NamedTuple):
    """What files are drawn in, broken ones, those beside a line, and the grid."""

    one: str
    broken: str
    muted: str
    grid: str


def require_kind(path: str) -> None:
    """Raises UsageError for a picture that is called otherwise than KINDS."""
    if not path.lower().endswith(KINDS):
        raise UsageError(f"--plot is {path} (allowed: a name that ends in {', '.join(KINDS)})")


def read_judgement(path: str | os.PathLike[str]) -> Judgement:
    """What `octavo eval compare -o` wrote. Raises FileError for a file that is something else, naming the field."""
    text = regular_file.read_text(path, MAX_BYTES)
    try:
        found = pydantic.TypeAdapter(Judgement).validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or None
        raise FileError(
            f"is not a result of `octavo eval compare -o`: {first['msg']}", file=path, field=where
        ) from None
    for i, verdict in enumerate(found.files):
        kl = verdict.kl
        ends = (kl.low, kl.high) if kl.known else (kl.value, kl.value)
        possible = all(abs(x) < LARGEST for x in (kl.value, *ends, verdict.noise or 0.0))
        if not (possible and ends[0] <= kl.value <= ends[1] and 0 < verdict.sizes.body < 1 << 60):
            problem = f"is not a result of `octavo eval compare -o`: KL {kl}, {verdict.sizes.body} bytes"
            raise FileError(problem, file=path, field=f"files.{i}")
    return found


def draw(found: Judgement, path: str, joined: Collection[str] = ()) -> None:
    """Write the picture to a file of one of KINDS; files of the names `joined` are one line, and others grey.

    Raises FileError where it can't be written.
    """
    with figure(HEIGHT) as fig, written_file(path) as temporary:
        _axes(fig, found, joined, Colours("#2a78d6", "#c4501f", "#6f6d68", "#dddddd"))
        kind = Path(path).suffix[1:].lower()
        dated = {"Date": None} if kind == "svg" else None
        fig.savefig(temporary, format=kind, dpi=200, facecolor="white", metadata=dated)


def section(found: Judgement, joined: Collection[str] = ()) -> Parts:
    """The picture within a page, and the table."""
    with figure(HEIGHT) as fig:
        _axes(fig, found, joined, Colours(ACCENT, SECOND, MUTED, GRID))
        said = "; ".join(
            f"{label(v.name, 60)} of {sizes.size(v.sizes.body)} diverges by {v.kl.value:.3g}" for v in found.files
        )
        picture = to_svg(fig, "judgement", "Divergence over bytes", f"{said}.")
    rows = [
        [str(v.rank), v.name, size(v.sizes.body), number(v.sizes.body_bits, 3), size(v.sizes.head),
         *(interval(x, 3) for x in (v.kl, v.p99)), percent(v.same_top.value), interval(v.ratio, 5),
         number(v.noise, 2) if v.noise is not None else "–", "; ".join(v.suspicions)]
        for v in found.files
    ]
    headings = ["rank", "file", "body", "bits per weight", "head", "KL divergence", "99th percentile", "same top token",
                "perplexity / base", "noise", "looks broken"]
    table = Table("Files beside their base", headings, rows, (0, 2, 3, 4, 5, 6, 7, 8, 9))
    return {"found": found, "picture": picture, "table": table}


def interval(value: Interval, digits: int) -> str:
    """A value and the ends of its interval, if it has one."""
    if not value.known:
        return number(value.value, digits)
    return f"{number(value.value, digits)} ({number(value.low, digits)} to {number(value.high, digits)})"


def _axes(fig: Any, found: Judgement, joined: Collection[str], colours: Colours) -> None:
    ax, spots, line = fig.subplots(), list[Spot](), list[tuple[float, float]]()
    ax.grid(color=colours.grid)
    names = _short([v.name for v in found.files])
    for verdict in sorted(found.files, key=lambda v: v.sizes.body):
        x, kl = verdict.sizes.body / 1e6, verdict.kl
        low, high = (min(kl.low, kl.value), max(kl.high, kl.value)) if kl.known else (kl.value, kl.value)
        one = not joined or verdict.name in joined
        ax.errorbar(x, kl.value, yerr=[[kl.value - low], [high - kl.value]] if kl.known else None, markersize=5,
                    marker=_marker(verdict), linewidth=1, capsize=2, zorder=3 if one else 2,
                    color=colours.broken if verdict.suspicions else colours.one if one else colours.muted)
        spots.append(Spot(x, kl.value, low, high, names[verdict.name]))
        if verdict.name in joined:
            line.append((x, kl.value))
    ax.plot(*zip(*line, strict=True) if line else (), color=colours.one, linewidth=0.8, alpha=0.6)
    noises = [v.noise for v in found.files if v.noise and not v.rounds]
    shown = [v.kl.value for v in found.files]
    dashed = bool(noises) and max(noises) > min((kl for kl in shown if kl > 0), default=0.0) / 20
    if dashed:
        ax.axhline(max(noises), color=colours.muted, linestyle="--", linewidth=0.8)
        shown.append(max(noises))
    scale(ax, shown, 2)
    ax.margins(x=0.15)
    said = "; dashed: the engine's noise" if dashed else ""
    ax.set(xlabel="MB of the body", title=f"KL divergence, nats (bars: 95%{said})")
    name_spots(ax, spots, colours.muted, line)


def _short(names: Sequence[str]) -> dict[str, str]:
    """Names as the picture has room for: long ones without what all begin with."""
    whole = {name: os.path.basename(name.removesuffix(".gguf")) for name in names}
    parts = [re.split("(?<=[-_])", text) for text in whole.values()]
    alike = list(takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False)))
    cut = len("".join(same[0] for same in alike)) if len(names) > 1 and max(map(len, names)) > MOST_OF_NAME else 0
    return {name: label(text[cut:] or text, MOST_OF_NAME) for name, text in whole.items()}


def _marker(verdict: Verdict) -> Literal["x", "o"]:
    return "x" if verdict.suspicions else "o"
