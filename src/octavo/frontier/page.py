"""What a frontier came to: a page, a picture and JSON in its folder."""

from __future__ import annotations

import json
import math
import os
import shlex
from dataclasses import asdict
from typing import Any

from octavo import __version__
from octavo.evals.judge.judgement import remarks
from octavo.evals.judge.picture import draw, interval, section
from octavo.evals.report.cells import Table, code, percent, size
from octavo.evals.report.report_page import environment
from octavo.frontier.run import Frontier
from octavo.io.atomic import written_file

PAGE, PICTURE, DATA = "frontier.html", "frontier.svg", "frontier.json"
MORE = (1, 0, 2, 3, 4, 6, 9, 10)
"""Columns of the judgement's table that the first one lacks."""
SPREAD = 1.1
"""Times that the fastest run is as fast as the slowest, from which both are told."""


def write_page(made: Frontier, folder: str) -> None:
    """Write PAGE, PICTURE and DATA into a folder, each whole or not at all. Raises FileError."""
    draw(made.judgement, os.path.join(folder, PICTURE), {each.name for each in made.files})
    for name, text in ((DATA, json.dumps(_finite(asdict(made)), indent=1)), (PAGE, render(made))):
        with written_file(os.path.join(folder, name)) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")


def render(made: Frontier) -> str:
    """The page, without scripts, and fetching nothing."""
    shown = section(made.judgement, {each.name for each in made.files})
    verdicts = {v.name: v for v in made.judgement.files}
    rows, types = [], sorted({kind for each in made.files for kind in each.types})
    for each in made.files:
        verdict = verdicts.get(each.name)
        judged = ["–"] * 3 if verdict is None else [
            interval(verdict.kl, 3), percent(verdict.same_top.value, 3), interval(verdict.ratio, 4)]
        wish = each.target.replace("bits per weight", "bpw")
        rows.append([each.name, wish, size(each.nbytes), f"{each.bits:.2f}", *judged])
    headings = ["file", "made for", "tensors", "bpw", "KL divergence", "same top", "perplexity / base"]
    more = [[row[i] for i in MORE] for row in [shown["table"].headings, *shown["table"].rows]]
    speeds = [[each.name, rate(each.prompt, each.prompt_runs), rate(each.decode, each.decode_runs)]
              for each in made.files if each.prompt is not None]
    counts = [[each.name, *(str(each.types.get(kind, "–")) for kind in types)] for each in made.files]
    return environment().get_template("frontier.html").render(
        version=__version__, made=made, found=made.judgement, calibration=made.options["calibration"],
        drawn=shown["picture"], judged=Table("Files by rank", more[0], more[1:], range(1, 7)),
        speeds=speeds and Table("Tokens a second", ["file", "prompt", "reply"], speeds, (1, 2)),
        remarks=remarks(made.judgement), beside=code(beside("MODEL", "DIR")),
        files=Table("Files from the smallest", headings, rows, range(2, 7)),
        types=Table("Tensors by type", ["file", *types], counts, range(1, len(types) + 1)),
    )


def rate(middle: float | None, runs: tuple[float, float] | None) -> str:
    """Tokens a second in three digits; of the slowest and the fastest run where they differ by more than SPREAD."""
    if middle is None:
        return ""
    shown = (middle,) if runs is None or runs[1] <= SPREAD * runs[0] else runs
    return " to ".join(f"{float(f'{x:.3g}'):,g}" for x in shown)


def beside(model: str, folder: str) -> str:
    """The command that judges other files beside those of a frontier."""
    name = shlex.quote(folder) if folder else "."
    return f"octavo eval compare {shlex.quote(model)} {name}/*.gguf PRESET.gguf"


def _finite(value: Any) -> Any:
    """Values for JSON, which lacks NaN and Inf: None."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
