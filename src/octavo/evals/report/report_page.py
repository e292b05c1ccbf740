"""The page: one HTML file with its style and pictures inside, without scripts, that fetches nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from octavo import __version__
from octavo.errors import shown
from octavo.evals.report import method_section, sections, spreads
from octavo.evals.report.advice import Advice
from octavo.evals.report.cells import as_text, text
from octavo.evals.report.findings import ModelFindings
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
    environment = Environment(
        loader=PackageLoader("octavo.evals.report", ""), autoescape=True, finalize=as_text, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(
        version=__version__,
        title=model.name or os.path.basename(model.path),
        model=model,
        verdict=sections.verdict(model, found.quality),
        bad=_bad(model),
        summary=sections.summary(model, found.quality),
        errors=sections.errors(model),
        worst=sections.worst(model, found.advice, found.text),
        calibration=method_section.calibration(model),
        quality=sections.quality(found.quality),
        weights=spreads.weights(model),
        codes=spreads.codes(model),
        scales=spreads.scales(model),
        tensors=spreads.tensors(model),
    )


def _bad(model: ModelFindings) -> str:
    """The tensors with values that are not finite."""
    bad = [t for t in model.tensors if t.bad]
    named = ", ".join(f"{shown(t.name)} ({t.bad:,} values)" for t in bad[:5])
    return text(f"{named}, and {len(bad) - 5} more" if len(bad) > 5 else named, 2000)
