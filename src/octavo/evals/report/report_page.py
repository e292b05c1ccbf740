"""The page: one HTML file with its style and pictures inside, without scripts, that fetches nothing.

A function here gives each section of the template what it shows; a section that has nothing to show is None.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from octavo import __version__
from octavo.errors import require_matplotlib, shown
from octavo.evals.report import method_section, pictures
from octavo.evals.report.advice import Advice, advise, command, option
from octavo.evals.report.cells import Parts, Table, as_text, bar, code, number, percent, size, text
from octavo.evals.report.findings import ModelFindings, Progress, by_kind, largest, measure, total_error
from octavo.evals.report.quality import Quality, QualityPlan, check, measure_quality
from octavo.evals.stats import Estimate
from octavo.huggingface import open_model_file
from octavo.io.atomic import require_target, written_file
from octavo.io.distinct_paths import MODEL, TEXT, model_files, require_apart, text_files
from octavo.runtime import resolve

StrPath = str | os.PathLike[str]

NEAR = ((0.003, "almost the same as"), (0.03, "nearly the same as"), (0.15, "noticeably different from"))
"""Divergences up to which predictions are called that."""


class Findings(NamedTuple):
    """All that a page shows; `quality` is None where no text was run. `text` is "demo" or the path of that text.

    `judged` is what `octavo eval compare` found of several files, as `judge.picture.section` shows it.
    """

    model: ModelFindings
    advice: Sequence[Advice]
    quality: Quality | None = None
    text: str | None = None
    judged: Parts | None = None


def write_report(
    model: StrPath, out: StrPath, *, base: StrPath | None = None, plan: QualityPlan | None = None,
    threads: int | None = None, progress: Progress | None = None, judged: StrPath | None = None
) -> Findings:
    """Write a report on the model at `model`, a GGUF file, a checkpoint folder or "demo", to the HTML file `out`.

    Returns what is in it.

    base      the model it was made of, to measure errors against
    plan      a text to run, and presets of the base to compare with; None: tensors only, as where some have NaN or Inf
    progress  of the tensors
    judged    a file that `octavo eval compare -o` wrote

    `out` appears whole or not at all. Raises FileError where it can't be written, UsageError for what does not go
    together or where matplotlib is missing, and what `measure` and `measure_quality` raise.
    """
    require_matplotlib("a report's pictures need matplotlib")
    from octavo.evals.judge.picture import read_judgement, section

    comparison = None if judged is None else section(read_judgement(judged))
    path, reference = resolve(model), None if base is None else resolve(base)
    for source in (path, reference):
        if source is not None:
            with open_model_file(source) as file:
                require_apart(out, {MODEL: model_files(source, file.files)})
    require_target(out)
    if plan is not None:
        require_apart(out, {TEXT: text_files(plan.text, plan.calibration)})
        check(plan)
    measured = measure(path, reference, threads=threads, progress=progress)
    advice = advise(measured)
    runs = plan is not None and not any(tensor.bad for tensor in measured.tensors)
    quality = measure_quality(path, reference, plan) if plan is not None and runs else None
    if measured.path == resolve("demo"):  # by its name, not by where it is installed
        measured = replace(measured, path="demo")
    if measured.base == resolve("demo"):
        measured = replace(measured, base="demo")
    found = Findings(measured, advice, quality, None if plan is None else plan.text, comparison)
    page = render(found)
    with written_file(out) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.write(page)
    return found


def environment() -> Environment:
    """Where templates of this folder are read, with what their macros use."""
    made = Environment(
        loader=PackageLoader("octavo.evals.report", ""), autoescape=True, finalize=as_text, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )
    made.filters |= {"percent": percent, "size": size, "shown": shown}
    return made


def render(found: Findings) -> str:
    """The page. The same findings give the same bytes. Raises UsageError where matplotlib is missing."""
    model = found.model
    return environment().get_template("page.html").render(
        version=__version__, title=model.name or os.path.basename(model.path), model=model,
        verdict=verdict(model, found.quality), bad=[t for t in model.tensors if t.bad],
        summary=summary(model, found.quality), errors=errors(model), worst=worst(model, found.advice, found.text),
        calibration=method_section.calibration(model), quality=quality(found.quality), judged=found.judged,
        weights=weights(model),
        codes=codes(model), scales=scales(model), tensors=tensors(model),
    )


def verdict(model: ModelFindings, measured: Quality | None) -> str:
    """One sentence: what this model costs against its base, or what is known instead."""
    bits, error = f"At {model.bits:.3g} bits per weight", percent(model.error, 3)
    point = measured.of_model if measured else None
    if point is not None and point.kl is not None and point.same_top is not None:
        kl = point.kl.value
        return (
            f"{bits} its predictions are {next((words for most, words in NEAR if kl <= most), 'far from')} those of its"
            f" base: the divergence is {kl:.2g} nats a token, and both find the same token likeliest at"
            f" {percent(point.same_top.value, 3)} of all places."
        )
    if model.error is None:
        return ""
    if model.basis == "trial":
        return f"A model of floats. As {model.trial} its weights would change by {error}."
    if model.basis == "estimated":
        return f"{bits} rounding has changed its weights by about {error}, which is an estimate."
    return f"{bits} its weights differ from those of the base by {error}."


def summary(model: ModelFindings, measured: Quality | None) -> Parts:
    """What the model is, how large, and how far from its base; the types of its tensors."""
    error = {"measured": "relative error", "estimated": "estimated error", "trial": f"error as {model.trial}"}
    facts = {
        "architecture": model.arch, "preset": model.preset or "–", "parameters": f"{model.size:,}",
        "tensors": f"{len(model.tensors):,}", "size": size(model.nbytes), "bits per weight": number(model.bits),
        error[model.basis]: percent(model.error),
    }
    point = measured.of_model if measured else None
    if point is not None:
        facts |= {"KL divergence": estimate(point.kl)} if point.kl else {}
        facts["perplexity"] = estimate(point.perplexity)
    types, rows = dict.fromkeys(t.type for t in model.tensors), []
    by_type = {kind: [t for t in model.tensors if t.type == kind] for kind in types}
    for kind, members in sorted(by_type.items(), key=lambda item: -sum(t.nbytes for t in item[1])):
        nbytes, values = sum(t.nbytes for t in members), sum(t.size for t in members)
        share = nbytes / model.nbytes
        rows.append([kind, str(len(members)), f"{values:,}", size(nbytes), bar(share, percent(share, 3)),
                     number(8 * nbytes / values), percent(total_error(members) if model.basis != "trial" else None)])
    headings = ["type", "tensors", "parameters", "size", "share of the size", "bits per weight", "error"]
    return {"facts": facts, "types": Table("Types of tensors", headings, rows, (1, 2, 3, 5, 6))}


def errors(model: ModelFindings) -> Parts:
    """Errors by layer and kind of tensor, as maps and as a table; where sensitivities are known, these too."""
    found = pictures.grid(model)
    if not found.cells:
        return {"map": None}
    rows = []
    for kind, members in by_kind(model.matrices).items():
        known = sorted((t for t in members if t.error is not None), key=lambda t: t.error or 0)
        if known:
            middle = float(np.median([t.error or 0 for t in known]))
            rows.append([
                kind, ", ".join(sorted({t.error_type for t in known})), percent(total_error(known)),
                percent(known[0].error), percent(middle), percent(known[-1].error), known[-1].name,
            ])
    headings = ["kind", "types", "all together", "least", "median", "largest", "the worst"]
    estimated = model.basis != "measured" or any(c.tensor.error for c in found.cells)
    return {
        "map": pictures.error_map(found),
        "top": percent(max(c.tensor.error or 0 for c in found.cells), 3),
        "grouped": any("-" in row for row in found.rows if row[0].isdigit()),
        "left_out": found.left_out,
        "sensitivity": pictures.sensitivity_map(model, found) if estimated else None,
        "kinds": Table("Errors by kind of tensor", headings, rows, (2, 3, 4, 5)),
    }


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
    whole, first = command(model, advice, plan_text), next((a for a in advice if a.type), None)
    return {
        "first": first,
        "option": code(option(first, names)) if first else "",
        "tensors": Table("Tensors whose errors cost most", headings, rows, (4, 5)),
        "command": text(whole, 4000) if whole else None,
        "imatrix": model.imatrix if model.imatrix and not os.path.exists(model.imatrix) else None,
    }


def quality(found: Quality | None) -> Parts | None:
    """Size against divergence and perplexity of the models that were run on the text."""
    if found is None:
        return None
    rows = [
        [Markup("<strong>{}</strong>").format(text(p.name)) if p.role == "model" else p.name, p.role, size(p.nbytes),
         number(p.bits), estimate(p.kl) if p.kl else "–", percent(p.same_top.value) if p.same_top else "–",
         estimate(p.perplexity)]
        for p in found.points
    ]
    headings = ["model", "role", "size", "bits per weight", "KL divergence", "same top token", "perplexity"]
    return {
        "found": found,
        "picture": pictures.quality_picture(found),
        "models": Table("Models on the text", headings, rows, (2, 3, 4, 5, 6)),
        "left_out": [text(said, 2000) for said in found.left_out],
    }


def weights(model: ModelFindings) -> Parts | None:
    """How weights of each kind of tensor are spread, as histograms and as a table."""
    kinds, rows = largest(by_kind(model.matrices), pictures.MOST_PANELS), []
    for kind, members in kinds.items():
        peaks = {t.name: t.weights.largest / t.weights.rms if t.weights.rms else 0.0 for t in members}
        name = max(peaks, key=lambda name: peaks[name])
        outside = sum(t.weights.outside for t in members)
        seen = sum(int(t.weights.counts.sum()) for t in members) + outside
        rms = [t.weights.rms for t in members]
        rows.append([kind, f"{seen:,}", number(min(rms)), number(max(rms)), number(peaks[name], 3), name,
                     percent(outside / max(1, seen), 3)])
    headings = ["kind", "values seen", "least rms", "largest rms", "largest weight / rms", "which is in",
                "beyond 8 rms"]
    counts = {kind: np.sum([t.weights.counts for t in members], axis=0) for kind, members in kinds.items()}
    return {
        "picture": pictures.weights_picture(counts),
        "table": Table("Weights by kind of tensor", headings, rows, (1, 2, 3, 4, 6)),
    } if rows else None


def codes(model: ModelFindings) -> Parts | None:
    """How often each code of a type is used, and how many bits codes carry."""
    counts: dict[str, npt.NDArray[np.int64]] = {}
    for t in model.tensors:
        if t.codes is not None:
            counts[t.type] = counts.get(t.type, 0) + t.codes
    counts = dict(islice(counts.items(), pictures.MOST_PANELS))
    rows = [
        [kind, str(len(found)), number(pictures.entropy(found)), number(math.log2(len(found))),
         str(int((found == 0).sum())), *(percent(float(end) / found.sum(), 3) for end in (found[0], found[-1]))]
        for kind, found in counts.items()
    ]
    headings = ["type", "codes", "entropy, bits", "of", "never used", "lowest code", "highest code"]
    return {
        "picture": pictures.codes_picture(counts),
        "table": Table("Codes by type", headings, rows, (1, 2, 3, 4, 5, 6)),
    } if counts else None


def scales(model: ModelFindings) -> Parts | None:
    """The steps between codes, layer by layer and by kind of tensor."""
    known = by_kind(t for t in model.tensors if t.steps is not None)
    layers = {
        kind: {t.place.layer: t.steps for t in members if t.place.layer is not None and t.steps is not None}
        for kind, members in known.items()
    }
    kept = largest({kind: known[kind] for kind, found in layers.items() if found}, pictures.MOST_PANELS)
    rows = []
    for kind, members in known.items():
        steps = [t.steps for t in members if t.steps is not None]
        medians = [s.median for s in steps]
        rows.append([kind, number(min(s.low for s in steps)), number(min(medians)), number(max(medians)),
                     number(max(s.high for s in steps)), percent(max(s.zeros for s in steps), 3)])
    headings = ["kind", "least 5 %", "least median", "largest median", "largest 95 %", "most groups at 0"]
    return {
        "picture": pictures.scales_picture({kind: layers[kind] for kind in kept}) if kept else None,
        "table": Table("Steps by kind of tensor", headings, rows, (1, 2, 3, 4, 5)),
    } if rows else None


def tensors(model: ModelFindings) -> Table:
    """A row for every tensor."""
    rows = [
        [t.name, " × ".join(map(str, t.shape)), t.type, t.base_type or "–", size(t.nbytes), number(t.bits),
         percent(t.error), number(t.weights.rms), "–" if t.codes is None else number(pictures.entropy(t.codes)),
         number(t.steps.median) if t.steps else "–"]
        for t in model.tensors
    ]
    error = f"error as {model.trial}" if model.trial else "error"
    headings = ["tensor", "shape", "type", "in the base", "size", "bits per weight", error, "rms", "entropy, bits",
                "median step"]
    return Table("Every tensor, in the order of the file", headings, rows, (4, 5, 6, 7, 8, 9))


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
