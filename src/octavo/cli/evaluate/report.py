"""`octavo report`: a page on a model's quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.options import Device, Window, refuse
from octavo.cli.plain import printable
from octavo.cli.quantize.command import Threads

DEMO_PRESETS = "Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q3_K_M,Q2_K"


@dataclass
class Compared:
    """What the base is quantized to, to be measured next to the model."""

    presets: Annotated[
        str | None,
        typer.Option("--presets", metavar="NAMES",
                     help="Presets of the base to compare with, e.g. Q8_0,Q4_K_M. Needs --text.")
    ] = None
    schemes: Annotated[
        str | None,
        typer.Option("--schemes", metavar="NAMES", help="Schemes to compare with, e.g. w4a16-g128,int8-w8a8."),
    ] = None
    methods: Annotated[
        str | None, typer.Option("--methods", metavar="NAMES", help="Also by these methods, e.g. gptq,qronos,awq.")
    ] = None
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="TEXT",
                     help="A text to calibrate with: a file (text or .jsonl) or `demo`.")
    ] = None

    def names(self, text: str | None) -> list[list[str]]:
        """Presets, schemes and methods. Raises UsageError for any without a text."""
        given = {"--presets": self.presets, "--schemes": self.schemes, "--methods": self.methods}
        found = {option: _names(names) for option, names in given.items()}
        if text is None:
            refuse(found, "needs --text, a text to measure them on")
        return list(found.values())


def report(
    model: ModelName,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The page to write, an HTML file.")],
    compared: Compared,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="MODEL", help="The model that it was made of: errors are measured against it."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="TEXT",
                     help="A file of UTF-8 text, or `demo`, to measure divergence and perplexity on.")
    ] = None,
    judged: Annotated[
        str | None,
        typer.Option("--judged", metavar="FILE", help="Also show what `octavo eval compare -o FILE` found.")
    ] = None,
    context: Window = None,
    chunks: Annotated[int, typer.Option(help="Most windows of the text to run.")] = 20,
    device: Device = "auto", threads: Threads = None, offline: Offline = False,
) -> None:
    """Write a page on a model: errors by layer, worst tensors, weights, codes, scales, size against quality.

    `octavo report model-q4.gguf --base model-f16.gguf -o report.html`.
    The demo model, as MODEL or base, brings its questions as the text, and presets to compare, unless told otherwise.
    """
    from octavo.cli.progress_bar import Bar
    from octavo.evals.report.quality import QualityPlan
    from octavo.evals.report.report_page import write_report

    if "demo" in (model, base) and text is None:
        text, compared.presets = "demo", DEMO_PRESETS if compared.presets is None else compared.presets
    presets, schemes, methods = compared.names(text)
    model, base = local(model, offline), None if base is None else local(base, offline)
    with Bar() as bar:

        def show(done: int, total: int, name: str) -> None:
            bar.show(name, done, total)

        plan = None
        if text is not None:
            plan = QualityPlan(
                text, presets, schemes, methods, compared.calibration, context, chunks, device, threads, show
            )
        found = write_report(model, output, base=base, plan=plan, threads=threads, progress=show, judged=judged)
    error = found.model.error
    said = "" if error is None else f", {found.model.basis} error {100 * error:#.4g}%"
    print(f"{printable(output)}: {len(found.model.tensors)} tensors, {found.model.bits:.4g} bits per weight{said}")


def _names(given: str | None) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in (given or "").split(",") if name.strip()]
