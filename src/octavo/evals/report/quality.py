"""Size against quality: what a model, its base, and the base quantized in several ways predict on a text."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from octavo.calibrate.texts import Text, named_text
from octavo.errors import UsageError
from octavo.evals.eval_model import context_for, open_subject
from octavo.evals.kl_divergence import divergence
from octavo.evals.likelihood import Perplexity, perplexity
from octavo.evals.report.variants import Way, those_there_are, ways
from octavo.evals.stats import Estimate
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.io.regular import open_regular
from octavo.quantizers.job.job_source import FLOATS
from octavo.runtime import Model

CHUNKS = 20
"""Windows of a text that are run, unless more are wished for."""


@dataclass(frozen=True)
class Point:
    """A model on the text.

    role        the base, the model that the report is on, or how the base was quantized (`Way.role`)
    kl          mean KL divergence from the base, nats; None for the base, and without one
    same_top    share of tokens where it and the base find the same one likeliest
    """

    name: str
    role: str
    nbytes: int
    bits: float
    perplexity: Estimate
    kl: Estimate | None = None
    same_top: Estimate | None = None


@dataclass(frozen=True)
class Quality:
    """Points of models on `text`, `tokens` scored tokens in `chunks` windows of `context`.

    left_out  of each way to quantize the base that there is none of: which, and why

    For the demo text a divergence scores all tokens, and a perplexity the answers only.
    """

    text: str
    tokens: int
    chunks: int
    context: int
    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class QualityPlan:
    """What to run: the text ("demo" or a file's path), what to compare with, and how.

    presets, schemes  of the base
    methods      by which each of these is made too, where it has them
    calibration  the text that methods go by, apart from `text`; None: "demo", with that text
    context, chunks, device, threads  as of `octavo eval`; no context: that of `subject.context_for`
    """

    text: str
    presets: Sequence[str] = ()
    schemes: Sequence[str] = ()
    methods: Sequence[str] = ()
    calibration: str | None = None
    context: int | None = None
    chunks: int = CHUNKS
    device: str = "auto"
    threads: int | None = None
    progress: Callable[[int, int, str], None] = field(default=lambda done, total, note: None)

    @property
    def ways(self) -> list[Way]:
        """Ways to quantize the base. Raises UsageError for names that are not known."""
        return ways(self.presets, self.schemes, self.methods)


def check(plan: QualityPlan) -> None:
    """Raises UsageError for names that are not known and methods without a text, FileError for unreadable texts."""
    if any(way.method for way in plan.ways) and plan.calibration is None and plan.text != "demo":
        raise UsageError(f"methods {', '.join(plan.methods)} without a text (allowed: together with --calibration)")
    for text in (plan.text, plan.calibration):
        if text not in (None, "demo"):
            open_regular(text, "a text").close()


def measure_quality(model: str, base: str | None, plan: QualityPlan) -> Quality:
    """Run `plan.text` through the model, its base, and the base quantized in each way, one after another.

    They are written to a temporary folder (TMPDIR), one at a time. Without a base a model of floats is its own. Methods
    that a preset or a scheme lacks are left out of it, and said.
    Raises UsageError for presets of a quantized model without a base, and what `divergence`, `quantize_file` and
    `quantize_checkpoint` raise.
    """
    found, left_out = plan.ways, list[str]()
    if found and base is None:
        with open_model_file(model) as file:
            if any(info.type_name not in FLOATS for info in file.tensors.values()):
                raise UsageError("presets of a quantized model (allowed: with a base, a model of floats)")
        base = model
    if base is not None:
        found, left_out = those_there_are(base, found)
    context = context_for(plan.context, model, *([base] if base else []))
    run = _Run(plan, context, total=len(found) + 1 + (base is not None and base != model))
    with ExitStack() as stack:
        reference = stack.enter_context(run.open(base)) if base else None
        if reference is not None:
            run.add(os.path.basename(reference.file.path), "base", reference, None)
        if model != base:
            with run.open(model) as loaded:
                run.add(os.path.basename(model), "model", loaded, reference)
        for way in found:
            assert base is not None
            with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
                path = way.write(base, folder, plan.calibration or "demo", plan.device, plan.threads)
                with run.open(path) as loaded:
                    run.add(way.name, way.role, loaded, reference)
    return run.quality(left_out)


class _Run:
    """Adds up points."""

    def __init__(self, plan: QualityPlan, context: int, total: int) -> None:
        self.plan, self.context, self.total = plan, context, total
        self.points: list[Point] = []
        self.text: Text | None = None
        self.extent = 0, 0

    def open(self, path: str) -> Model:
        return open_subject(path, self.context, device=self.plan.device, threads=self.plan.threads)

    def add(self, name: str, role: str, model: Model, reference: Model | None) -> None:
        plan = self.plan
        plan.progress(len(self.points), self.total, name)
        text = self.text = self.text or named_text(plan.text, model.tokenizer, "test")
        size = _size(model.file)
        if reference is None:
            own = self._perplexity(model, text)
            self.extent = self.extent if self.points else (own.tokens, own.chunks)
            self.points.append(Point(name, role, *size, own.perplexity))
        else:
            found = divergence(model, reference, text.tokens, context=self.context, chunks=plan.chunks)
            ppl = self._perplexity(model, text).perplexity if text.scored is not None else found.perplexity
            self.extent = found.tokens, found.chunks
            self.points.append(Point(name, role, *size, ppl, found.kl, found.same_top))
        plan.progress(len(self.points), self.total, name)

    def _perplexity(self, model: Model, text: Text) -> Perplexity:
        plan = self.plan
        return perplexity(model, text.tokens, scored=text.scored, context=self.context, chunks=plan.chunks)

    def quality(self, left_out: Sequence[str]) -> Quality:
        assert self.text is not None
        return Quality(self.text.name, *self.extent, self.context, tuple(self.points), tuple(left_out))


def _size(file: GGUFFile) -> tuple[int, float]:
    """Bytes of tensors, and bits a weight."""
    return file.nbytes, 8 * file.nbytes / sum(info.size for info in file.tensors.values())
