"""The page's sections. Each is markup, or empty where there is nothing to show."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from octavo.evals.report import curve
from octavo.evals.report.advice import Advice, command, option
from octavo.evals.report.findings import ModelFindings, TensorFindings, by_kind, total_error
from octavo.evals.report.heat import error_map, grid, sensitivity_map
from octavo.evals.report.markup import (
    NOTHING,
    Html,
    bar,
    join,
    number,
    paragraph,
    percent,
    picture,
    section,
    size,
    table,
    text,
)
from octavo.evals.report.quality import Point, Quality
from octavo.evals.stats import Estimate

ABOUT_ERRORS = {
    "measured": "Errors are relative: the root of the squared difference from the base over the squared weights of the"
    " base, over all values of a tensor.",
    "estimated": "There is no base to compare with. Errors are therefore estimated from the distances between codes, as"
    " if weights lay evenly between them. Such an estimate is about a fifth too high for types whose encoder searches"
    " for scales. It does not include what was lost before this model was made. With --base errors are measured.",
    "trial": "This is a model of floats, and there is no base to compare with. The errors shown are those that it would"
    " have as {trial}. They are measured on a sample of the rows of each tensor.",
}

ABOUT_SENSITIVITY = (
    "The same error costs more in one tensor than in another. Sensitivity is what a squared error of a tensor adds to"
    " the squared error of the output. It is estimated here from where the tensor stands in the model."
    " <code>octavo quantize --target-bpw --text</code> measures it."
)
SENSITIVITY_CAPTION = "Estimated sensitivity, in percent of the largest."


def verdict(model: ModelFindings, measured: Quality | None) -> Html:
    """One sentence: what this model costs against its base, or what is known instead."""
    bits, error = f"At {model.bits:.3g} bits per weight", percent(model.error, 3)
    point = next((p for p in measured.points if p.role == "model"), None) if measured else None
    if point is not None and point.kl is not None and point.same_top is not None:
        said = (
            f"{bits} its predictions are {_nearness(point.kl.value)} those of its base: the divergence is"
            f" {point.kl.value:.2g} nats a token, and both find the same token likeliest at"
            f" {percent(point.same_top.value, 3)} of all places."
        )
        return paragraph(Html(said), kind="verdict")
    if model.error is None:
        return NOTHING
    if model.basis == "trial":
        said = f"A model of floats. As {text(model.trial)} its weights would change by {error}."
    elif model.basis == "estimated":
        said = f"{bits} rounding has changed its weights by about {error}, which is an estimate."
    else:
        said = f"{bits} its weights differ from those of the base by {error}."
    return paragraph(Html(said), kind="verdict")


def _nearness(kl: float) -> str:
    for most, words in (
        (0.003, "almost the same as"),
        (0.03, "nearly the same as"),
        (0.15, "noticeably different from"),
    ):
        if kl <= most:
            return words
    return "far from"


def summary(model: ModelFindings, measured: Quality | None) -> Html:
    """What the model is, how large, and how far from its base; the types of its tensors."""
    error = {"measured": "relative error", "estimated": "estimated error", "trial": f"error as {model.trial}"}
    facts = {
        "architecture": text(model.arch),
        "preset": text(model.preset or "–"),
        "parameters": Html(f"{model.size:,}"),
        "tensors": Html(f"{len(model.tensors):,}"),
        "size": size(model.nbytes),
        "bits per weight": number(model.bits),
        error[model.basis]: percent(model.error),
    }
    point = next((p for p in measured.points if p.role == "model"), None) if measured else None
    if point is not None:
        if point.kl:
            facts["KL divergence"] = estimate(point.kl)
        facts["perplexity"] = estimate(point.perplexity)
    cells = join([Html(f"<div><dt>{name}</dt><dd>{value}</dd></div>") for name, value in facts.items()])
    return section("summary", "Summary", Html(f"<dl>{cells}</dl>"), _types(model))


def _types(model: ModelFindings) -> Html:
    by_type: dict[str, list[TensorFindings]] = {}
    for t in model.tensors:
        by_type.setdefault(t.type, []).append(t)
    rows = []
    for kind, members in sorted(by_type.items(), key=lambda item: -sum(t.nbytes for t in item[1])):
        nbytes, values = sum(t.nbytes for t in members), sum(t.size for t in members)
        share = nbytes / model.nbytes
        rows.append(
            [text(kind), Html(str(len(members))), Html(f"{values:,}"), size(nbytes), bar(share, percent(share, 3)),
             number(8 * nbytes / values), percent(total_error(members) if model.basis != "trial" else None)]
        )  # fmt: skip
    headings = ["type", "tensors", "parameters", "size", "share of the size", "bits per weight", "error"]
    return table("Types of tensors", headings, rows, numbers=(1, 2, 3, 5, 6))


def errors(model: ModelFindings) -> Html:
    """Errors by layer and kind of tensor, as maps and as a table; where sensitivities are known, these too."""
    found = grid(model)
    about = paragraph(text(ABOUT_ERRORS[model.basis].format(trial=model.trial)))
    if not found.cells:
        return section("errors", "Errors", about, paragraph(Html("No tensor has an error that is known.")))
    top = max(c.tensor.error or 0 for c in found.cells)
    legend = Html(f'<p class="legend" aria-hidden="true">0 % <i></i> {percent(top, 3)}</p>')
    caption = "Relative error in percent by layer and kind of tensor. Pointing at a field names its tensor and type."
    if any("-" in row for row in found.rows[: len(found.cells)] if row[0].isdigit()):
        caption += " A row stands for several layers, and shows the worst."
    if found.left_out:
        caption += f" {found.left_out} kinds of small tensors are left out."
    shown = [about, picture(error_map(found), Html(caption)), legend]
    if model.basis != "measured" or any(c.tensor.error for c in found.cells):
        shown += [paragraph(Html(ABOUT_SENSITIVITY)), picture(sensitivity_map(model, found), Html(SENSITIVITY_CAPTION))]
    return section("errors", "Errors by layer", *shown, _kinds(model))


def _kinds(model: ModelFindings) -> Html:
    """The errors of each kind of tensor: the least, the middle one, the largest and where it is."""
    rows = []
    for kind, members in by_kind(model.matrices).items():
        known = sorted((t for t in members if t.error is not None), key=lambda t: t.error or 0)
        if known:
            worst = known[-1]
            middle = float(np.median([t.error or 0 for t in known]))
            rows.append(
                [text(kind), text(", ".join(sorted({t.error_type for t in known}))), percent(total_error(known)),
                 percent(known[0].error), percent(middle), percent(worst.error), text(worst.name)]
            )  # fmt: skip
    headings = ["kind", "types", "all together", "least", "median", "largest", "the worst"]
    return table("Errors by kind of tensor", headings, rows, numbers=(2, 3, 4, 5))


def worst(model: ModelFindings, advice: Sequence[Advice], plan_text: str | None = None) -> Html:
    """The tensors whose errors cost most, and what to give them instead."""
    if not advice:
        return NOTHING
    names = [t.name for t in model.tensors]
    top = max(a.tensor.error or 0 for a in advice)
    rows = [
        [text(a.tensor.name), text(a.tensor.error_type), bar((a.tensor.error or 0) / top, percent(a.tensor.error, 3)),
         text(a.type or "–"), percent(a.error, 3), Html(f"+{size(a.bytes)}" if a.type else "–"),
         Html(f"<code>{text(option(a, names), 2000)}</code>" if a.type else "–")]
        for a in advice
    ]  # fmt: skip
    headings = ["tensor", "type", "error", "better as", "error then", "costs", "option of octavo quantize"]
    parts = [
        paragraph(Html(
            "The errors of these tensors cost most: the squared error times the sensitivity. Each option makes one of"
            " them more precise. Whether that was worth its bytes shows in the divergence from the base on a text"
            " (<code>octavo eval kl</code>)."
        )),
        *[paragraph(_sentence(a, names)) for a in advice if a.type][:1],
        table("Tensors whose errors cost most", headings, rows, numbers=(4, 5)),
    ]  # fmt: skip
    whole = command(model, advice, plan_text)
    if whole:
        parts.append(
            paragraph(
                Html(
                    "This command makes a model of the size that all of these options together would give. It chooses"
                    " the types of all tensors so that the loss is least:"
                )
            )
        )
        parts.append(Html(f"<pre><code>{text(whole, 4000)}</code></pre>"))
        if model.imatrix and not os.path.exists(model.imatrix):
            needed = (
                f"It needs the importance matrix that this model was made with: <code>{text(model.imatrix)}</code>."
            )
            parts.append(paragraph(Html(f"{needed} It is not there now; <code>octavo imatrix</code> makes one.")))
    return section("worst", "Worst tensors", *parts)


def _sentence(a: Advice, names: Sequence[str]) -> Html:
    layer, kind = a.tensor.place
    where = f"{kind} of layer {layer}" if layer is not None else kind
    then = f"; as {a.type} it has {percent(a.error, 3)}" if a.error is not None else ""
    return join([
        text(where), Html(f" at {text(a.tensor.error_type)} has {percent(a.tensor.error, 3)} error{then}. "),
        Html(f"<code>{text(option(a, names), 2000)}</code> costs {size(a.bytes)} more."),
    ])  # fmt: skip


def quality(found: Quality | None) -> Html:
    """Size against divergence and perplexity of the models that were run on the text."""
    if found is None:
        return NOTHING
    rows = [
        [_name(p), text(p.role), size(p.nbytes), number(p.bits), estimate(p.kl) if p.kl else Html("–"),
         percent(p.same_top.value) if p.same_top else Html("–"), estimate(p.perplexity)]
        for p in found.points
    ]  # fmt: skip
    headings = ["model", "role", "size", "bits per weight", "KL divergence", "same top token", "perplexity"]
    about = paragraph(
        text(f"On {found.text}: {found.tokens:,} tokens scored in {found.chunks:,} windows of {found.context}."),
        Html(" The divergence is from the base, in nats a token; lower is better. ± is one standard error."),
    )
    others = [paragraph(text(f"Left out, as it can't be made: {said}.", 2000)) for said in found.left_out]
    svg = curve.quality_picture(found)
    shown = picture(svg, Html("Size against quality. Bars are standard errors.")) if svg else NOTHING
    return section("quality", "Size against quality", about, shown,
                   table("Models on the text", headings, rows, numbers=(2, 3, 4, 5, 6)), *others)  # fmt: skip


def _name(point: Point) -> Html:
    return Html(f"<strong>{text(point.name)}</strong>") if point.role == "model" else text(point.name)


def estimate(found: Estimate) -> Html:
    """A value and its standard error: two digits of the error, but no more than six of the value."""
    if not (math.isfinite(found.error) and found.error > 0):
        return number(found.value)
    digits = max(1 - math.floor(math.log10(found.error)), 0)
    if found.value:
        digits = max(min(digits, 5 - math.floor(math.log10(abs(found.value)))), 0)
    if found.error < 0.5 * 10.0**-digits:
        return Html(f"{found.value:.{digits}f}")
    return Html(f"{found.value:.{digits}f} ± {found.error:.{digits}f}")
