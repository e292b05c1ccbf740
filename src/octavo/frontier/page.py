"""What a frontier came to: a page, a picture and JSON in its folder."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from typing import Any

from octavo import __version__
from octavo.evals.judge.picture import draw, interval, section
from octavo.evals.report.cells import Table, number, percent, size
from octavo.evals.report.report_page import environment
from octavo.frontier.run import Frontier
from octavo.io.atomic import written_file

PAGE, PICTURE, DATA = "frontier.html", "frontier.svg", "frontier.json"


def write_page(made: Frontier, folder: str) -> None:
    """Write PAGE, PICTURE and DATA into a folder, each whole or not at all. Raises FileError."""
    draw(made.judgement, os.path.join(folder, PICTURE))
    for name, text in ((DATA, json.dumps(_finite(asdict(made)), indent=1)), (PAGE, render(made))):
        with written_file(os.path.join(folder, name)) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")


def render(made: Frontier) -> str:
    """The page, without scripts, and fetching nothing."""
    shown = section(made.judgement)
    verdicts = {v.name: v for v in made.judgement.files}
    rows, types = [], sorted({kind for each in made.files for kind in each.types})
    for each in made.files:
        verdict = verdicts.get(each.name)
        judged = ["–"] * 3 if verdict is None else [
            interval(verdict.kl, 3), percent(verdict.same_top.value), interval(verdict.ratio, 5)]
        rates = ["–" if x is None else number(x, 3) for x in (each.prompt, each.decode)]
        rows.append([each.name, each.target, size(each.nbytes), number(each.bits, 3), *judged, *rates])
    headings = ["file", "made for", "tensors", "bits per weight", "KL divergence", "same top token",
                "perplexity / base", "prompt, tokens/s", "decode, tokens/s"]
    counts = [[each.name, *(str(each.types.get(kind, "–")) for kind in types)] for each in made.files]
    return environment().get_template("frontier.html").render(
        version=__version__, made=made, found=made.judgement, calibration=made.options["calibration"],
        drawn=shown["picture"], judged=shown["table"],
        files=Table("Files from the smallest", headings, rows, range(2, 9)),
        types=Table("Tensors by type", ["file", *types], counts, range(1, len(types) + 1)),
    )


def _finite(value: Any) -> Any:
    """Values for JSON, which lacks NaN and Inf: None."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
