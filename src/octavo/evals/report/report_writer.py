"""From model files to a report file."""

from __future__ import annotations

import os
from dataclasses import replace

from octavo.evals.report.advice import advise
from octavo.evals.report.findings import ModelFindings
from octavo.evals.report.quality import QualityPlan, check, measure_quality
from octavo.evals.report.report_page import Findings, render
from octavo.evals.report.report_tensors import Progress, measure
from octavo.evals.report.svg import require_matplotlib
from octavo.huggingface import open_model_file
from octavo.io.apart import MODEL, TEXT, model_files, require_apart, text_files
from octavo.io.atomic import require_target, written_file
from octavo.runtime import resolve

StrPath = str | os.PathLike[str]


def write_report(
    model: StrPath,
    out: StrPath,
    *,
    base: StrPath | None = None,
    plan: QualityPlan | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Write a report on the model at `model`, a GGUF file, a checkpoint folder or "demo", to the HTML file `out`.

    Returns what is in it.

    base      the model it was made of, to measure errors against
    plan      a text to run, and presets of the base to compare with; None: tensors only
    progress  of the tensors

    `out` appears whole or not at all. Raises FileError where it can't be written, UsageError for what does not go
    together or where matplotlib is missing, and what `measure` and `measure_quality` raise.
    """
    require_matplotlib()
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
    quality = measure_quality(path, reference, plan) if plan is not None else None
    found = Findings(_as_named(measured), advice, quality, None if plan is None else plan.text)
    page = render(found)
    with written_file(out) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.write(page)
    return found


def _as_named(model: ModelFindings) -> ModelFindings:
    """The findings with the demo model by its name, not by where it is installed."""
    demo = resolve("demo")
    base = "demo" if model.base == demo else model.base
    return replace(model, path="demo" if model.path == demo else model.path, base=base)
