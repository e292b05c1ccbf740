"""What the page's sections show. A section that has nothing to show is None."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from octavo.evals.report import curve
from octavo.evals.report.advice import Advice, command, option
from octavo.evals.report.cells import Table, bar, code, number, percent, size, text
from octavo.evals.report.findings import ModelFindings, TensorFindings, by_kind, total_error
from octavo.evals.report.heat import error_map, grid, sensitivity_map
from octavo.evals.report.quality import Point, Quality
from octavo.evals.stats import Estimate

Parts = dict[str, Any]
"""What the template shows of a section, by the names that it has there."""


def verdict(model: ModelFindings, measured: Quality | None) -> str:
    """One sentence: what this model costs against its base, or what is known instead."""
    bits, error = f"At {model.bits:.3g} bits per weight", percent(model.error, 3)
    point = next((p for p in measured.points if p.role == "model"), None) if measured else None
    if point is not None and point.kl is not None and point.same_top is not None:
        return (
            f"{bits} its predictions are {_nearness(point.kl.value)} those of its base: the divergence is"
            f" {point.kl.value:.2g} nats a token, and both find the same token likeliest at"
            f" {percent(point.same_top.value, 3)} of all places."
        )
    if model.error is None:
        return ""
    if model.basis == "trial":
        return f"A model of floats. As {model.trial} its weights would change by {error}."
    if model.basis == "estimated":
        return f"{bits} rounding has changed its weights by about {error}, which is an estimate."
    return f"{bits} its weights differ from those of the base by {error}."


def _nearness(kl: float) -> str:
    for most, words in (
        (0.003, "almost the same as"),
        (0.03, "nearly the same as"),
        (0.15, "noticeably different from"),
    ):
        if kl <= most:
            return words
    return "far from"


def summary(model: ModelFindings, measured: Quality | None) -> Parts:
    """What the model is, how large, and how far from its base; the types of its tensors."""
    error = {"measured": "relative error", "estimated": "estimated error", "trial": f"error as {model.trial}"}
    facts = {
        "architecture": model.arch,
        "preset": model.preset or "–",
        "parameters": f"{model.size:,}",
        "tensors": f"{len(model.tensors):,}",
        "size": size(model.nbytes),
        "bits per weight": number(model.bits),
        error[model.basis]: percent(model.error),
    }
    point = next((p for p in measured.points if p.role == "model"), None) if measured else None
    if point is not None:
        if point.kl:
            facts["KL divergence"] = estimate(point.kl)
        facts["perplexity"] = estimate(point.perplexity)
    return {"facts": facts, "types": _types(model)}


def _types(model: ModelFindings) -> Table:
    by_type: dict[str, list[TensorFindings]] = {}
    for t in model.tensors:
        by_type.setdefault(t.type, []).append(t)
    rows = []
    for kind, members in sorted(by_type.items(), key=lambda item: -sum(t.nbytes for t in item[1])):
        nbytes, values = sum(t.nbytes for t in members), sum(t.size for t in members)
        share = nbytes / model.nbytes
        rows.append(
            [kind, str(len(members)), f"{values:,}", size(nbytes), bar(share, percent(share, 3)),
             number(8 * nbytes / values), percent(total_error(members) if model.basis != "trial" else None)]
        )
    headings = ["type", "tensors", "parameters", "size", "share of the size", "bits per weight", "error"]
    return Table("Types of tensors", headings, rows, numbers=(1, 2, 3, 5, 6))


def errors(model: ModelFindings) -> Parts:
    """Errors by layer and kind of tensor, as maps and as a table; where sensitivities are known, these too."""
    found = grid(model)
    if not found.cells:
        return {"map": None}
    estimated = model.basis != "measured" or any(c.tensor.error for c in found.cells)
    return {
        "map": error_map(found),
        "top": percent(max(c.tensor.error or 0 for c in found.cells), 3),
        "grouped": any("-" in row for row in found.rows[: len(found.cells)] if row[0].isdigit()),
        "left_out": found.left_out,
        "sensitivity": sensitivity_map(model, found) if estimated else None,
        "kinds": _kinds(model),
    }


def _kinds(model: ModelFindings) -> Table:
    """The errors of each kind of tensor: the least, the middle one, the largest and where it is."""
    rows = []
    for kind, members in by_kind(model.matrices).items():
        known = sorted((t for t in members if t.error is not None), key=lambda t: t.error or 0)
        if known:
            worst = known[-1]
            middle = float(np.median([t.error or 0 for t in known]))
            rows.append(
                [kind, ", ".join(sorted({t.error_type for t in known})), percent(total_error(known)),
                 percent(known[0].error), percent(middle), percent(worst.error), worst.name]
            )
    headings = ["kind", "types", "all together", "least", "median", "largest", "the worst"]
    return Table("Errors by kind of tensor", headings, rows, numbers=(2, 3, 4, 5))


def worst(model: ModelFindings, advice: Sequence[Advice], plan_text: str | None = None) -> Parts | None:
    """The tensors whose errors cost most, and what to give them instead."""
    if not advice:
        return None
    names = [t.name for t in model.tensors]
    top = max(a.tensor.error or 0 for a in advice)
    rows = [
        [a.tensor.name, a.tensor.error_type, bar((a.tensor.error or 0) / top, percent(a.tensor.error, 3)),
         a.type or "–", percent(a.error, 3), f"+{size(a.bytes)}" if a.type else "–",
         code(option(a, names)) if a.type else "–"]
        for a in advice
    ]
    headings = ["tensor", "type", "error", "better as", "error then", "costs", "option of octavo quantize"]
    whole = command(model, advice, plan_text)
    return {
        "first": next((_first(a, names) for a in advice if a.type), None),
        "tensors": Table("Tensors whose errors cost most", headings, rows, numbers=(4, 5)),
        "command": text(whole, 4000) if whole else None,
        "imatrix": model.imatrix if model.imatrix and not os.path.exists(model.imatrix) else None,
    }


def _first(a: Advice, names: Sequence[str]) -> Parts:
    """What the sentence on an advice says."""
    layer, kind = a.tensor.place
    return {
        "where": f"{kind} of layer {layer}" if layer is not None else kind,
        "type": a.tensor.error_type,
        "error": percent(a.tensor.error, 3),
        "better": a.type,
        "then": None if a.error is None else percent(a.error, 3),
        "option": code(option(a, names)),
        "bytes": size(a.bytes),
    }


def quality(found: Quality | None) -> Parts | None:
    """Size against divergence and perplexity of the models that were run on the text."""
    if found is None:
        return None
    rows = [
        [_name(p), p.role, size(p.nbytes), number(p.bits), estimate(p.kl) if p.kl else "–",
         percent(p.same_top.value) if p.same_top else "–", estimate(p.perplexity)]
        for p in found.points
    ]
    headings = ["model", "role", "size", "bits per weight", "KL divergence", "same top token", "perplexity"]
    return {
        "found": found,
        "picture": curve.quality_picture(found),
        "models": Table("Models on the text", headings, rows, numbers=(2, 3, 4, 5, 6)),
        "left_out": [text(said, 2000) for said in found.left_out],
    }


def _name(point: Point) -> str:
    return Markup("<strong>{}</strong>").format(text(point.name)) if point.role == "model" else point.name


def estimate(found: Estimate) -> str:
    """A value and its standard error: two digits of the error, but no more than six of the value."""
    if not (math.isfinite(found.error) and found.error > 0):
        return number(found.value)
    digits = max(1 - math.floor(math.log10(found.error)), 0)
    if found.value:
        digits = max(min(digits, 5 - math.floor(math.log10(abs(found.value)))), 0)
    if found.error < 0.5 * 10.0**-digits:
        return f"{found.value:.{digits}f}"
    return f"{found.value:.{digits}f} ± {found.error:.{digits}f}"
