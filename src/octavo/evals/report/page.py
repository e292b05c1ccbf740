"""The page: one HTML file with its style and pictures inside, without scripts, that fetches nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

from octavo import __version__
from octavo.errors import shown
from octavo.evals.report import method, sections, spreads
from octavo.evals.report.advice import Advice
from octavo.evals.report.findings import ModelFindings
from octavo.evals.report.markup import NOTHING, Html, join, paragraph, text
from octavo.evals.report.quality import Quality


class Findings(NamedTuple):
    """All that a page shows; `quality` is None where no text was run. `text` is "demo" or the path of that text."""

    model: ModelFindings
    advice: Sequence[Advice]
    quality: Quality | None = None
    text: str | None = None


def render(found: Findings) -> str:
    """The page. The same findings give the same bytes. Raises UsageError where matplotlib is missing."""
    model = found.model
    title = model.name or os.path.basename(model.path)
    parts = [
        sections.summary(model, found.quality),
        sections.errors(model),
        sections.worst(model, found.advice, found.text),
        method.calibration(model),
        sections.quality(found.quality),
        spreads.weights(model),
        spreads.codes(model),
        spreads.scales(model),
        spreads.tensors(model),
    ]
    style = (files("octavo.evals.report") / "page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{text(title)}: quantization report</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            f"<header><h1>{text(title)}</h1>\n{_subtitle(model)}\n"
            f"{sections.verdict(model, found.quality)}\n{_warning(model)}</header>",
            f"<main>\n{join([p for p in parts if p], chr(10))}\n</main>",
            f"<footer>Made by octavo {text(__version__)}, <code>octavo report</code>.</footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _subtitle(model: ModelFindings) -> Html:
    against = Html(f", against <code>{text(model.base)}</code>") if model.basis == "measured" else NOTHING
    return paragraph(Html(f"<code>{text(model.path)}</code>"), against, kind="soft")


def _warning(model: ModelFindings) -> Html:
    bad = [t for t in model.tensors if t.bad]
    if not bad:
        return NOTHING
    named = ", ".join(f"{shown(t.name)} ({t.bad:,} values)" for t in bad[:5])
    more = f", and {len(bad) - 5} more" if len(bad) > 5 else ""
    return paragraph(Html("<strong>NaN or Inf</strong> in "), text(named + more, 2000), Html("."), kind="warning")
