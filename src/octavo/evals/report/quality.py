"""Size against quality: what a model, its base, and the base quantized in several ways predict on a text."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.calibrate.gguf.gguf_method import KINDS, GgufMethod, require_levels
from octavo.calibrate.schemes.scheme_method import KINDS as SCHEME_KINDS
from octavo.calibrate.schemes.scheme_method import SchemeMethod
from octavo.calibrate.texts import Text, named_text
from octavo.errors import UsageError
from octavo.evals.eval_model import context_for, open_subject
from octavo.evals.kl_divergence import Divergence, divergence
from octavo.evals.likelihood import Perplexity, perplexity
from octavo.evals.stats import Estimate
from octavo.huggingface import open_model_file
from octavo.huggingface.schemes import checkpoint_scheme
from octavo.io.gguf import GGUFFile
from octavo.io.regular_file import open_regular
from octavo.quantizers.job.job_plan import plan
from octavo.quantizers.job.job_source import FLOATS, gguf_source
from octavo.quantizers.job.quantize import quantize_file
from octavo.quantizers.mix.mixing import Choices
from octavo.quantizers.mix.presets import find_preset
from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint
from octavo.runtime import Model

CHUNKS = 20
"""Windows of a text that are run, unless more are wished for."""
NEAREST = "rtn"
"""What a scheme has without a method."""


@dataclass(frozen=True)
class Way:
    """A way to quantize a model.

    name    of a preset or a scheme
    kind    which of these
    method  by which weights are made over a text, None where they are only encoded
    """

    name: str
    kind: Literal["preset", "scheme"]
    method: str | None = None

    @property
    def role(self) -> str:
        """What a report calls it: "preset", "scheme, gptq"."""
        return self.kind if self.method is None else f"{self.kind}, {self.method}"

    @property
    def title(self) -> str:
        """Its name, and its method if it has one: "Q4_0", "Q4_0 by gptq"."""
        return self.name if self.method is None else f"{self.name} by {self.method}"

    def require(self, base: str) -> None:
        """Raise, before anything is run, what `write` raises for a preset, a scheme or a method that `base` lacks."""
        if self.method is None:
            with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
                self.write(base, folder, "", dry_run=True)
        elif self.kind == "scheme":
            SchemeMethod("", self.method).require(checkpoint_scheme(self.name))
        else:
            with GGUFFile.open(base) as file:
                require_levels(plan(gguf_source(file), find_preset(self.name), Choices()))

    def write(self, base: str, folder: str, text: str, device: str = "auto", **how: Any) -> str:
        """Quantize `base` into `folder`, over the text "demo" or a file's; the path of what is made.

        `how` are arguments of `quantize_file` and `quantize_checkpoint`.
        """
        path = os.path.join(folder, "made")
        options: dict[str, Any] = {"device": device, "threads": how.get("threads")}
        if self.kind == "scheme":
            by = None if self.method is None else SchemeMethod(text, self.method, **options)
            quantize_checkpoint(base, path, self.name, method=by, **how)
            return path
        kind = next((kind for kind in KINDS if kind == self.method), None)
        quantize_file(base, f"{path}.gguf", self.name, method=kind and GgufMethod(text, kind, **options), **how)
        return f"{path}.gguf"


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

    @property
    def of_model(self) -> Point | None:
        """That of the model that the report is on."""
        return next((p for p in self.points if p.role == "model"), None)


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
        raise UsageError(f"methods {', '.join(plan.methods)} without a text: give one with --calibration")
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
                raise UsageError("presets of a quantized model need a base, a model of floats")
        base = model
    if base is not None:
        found, left_out = those_there_are(base, found)
    context = context_for(plan.context, model, *([base] if base else []))
    total, points, extent = len(found) + len({model, base} - {None}), list[Point](), (0, 0)
    text: Text | None = None
    how: Any = {"context": context, "chunks": plan.chunks}

    def add(name: str, role: str, path: str, stack: ExitStack) -> Model:
        """Measure a model, which is closed with `stack`."""
        nonlocal text, extent
        loaded = stack.enter_context(open_subject(path, context, device=plan.device, threads=plan.threads))
        plan.progress(len(points), total, name)
        text = text or named_text(plan.text, loaded.tokenizer, "test")
        both = None if reference is None else divergence(loaded, reference, text.tokens, **how)
        alone: Perplexity | Divergence | None = both
        if alone is None or text.scored is not None:
            alone = perplexity(loaded, text.tokens, scored=text.scored, **how)
        if both is not None or not points:
            extent = (both or alone).tokens, (both or alone).chunks
        file, size = loaded.file, sum(info.size for info in loaded.file.tensors.values())
        kl, same_top = (both.kl, both.same_top) if both is not None else (None, None)
        points.append(Point(name, role, file.nbytes, 8 * file.nbytes / size, alone.perplexity, kl, same_top))
        plan.progress(len(points), total, name)
        return loaded

    reference: Model | None = None
    with ExitStack() as outer:
        if base is not None:
            reference = add(os.path.basename(base), "base", base, outer)
        if model != base:
            with ExitStack() as stack:
                add(os.path.basename(model), "model", model, stack)
        for way in found:
            assert base is not None
            with tempfile.TemporaryDirectory(prefix="octavo-") as folder, ExitStack() as stack:
                path = way.write(base, folder, plan.calibration or "demo", plan.device, threads=plan.threads)
                add(way.name, way.role, path, stack)
    assert text is not None
    return Quality(text.name, *extent, context, tuple(points), tuple(left_out))


def those_there_are(base: str, found: Sequence[Way]) -> tuple[list[Way], list[str]]:
    """Those of `found` that there are for a base, and of the others what they are and why there are none.

    Raises what `quantize_file` and `quantize_checkpoint` raise for a preset or a scheme that `base` can't have at all.
    """
    made, left_out = [], []
    for way in found:
        try:
            way.require(base)
            made.append(way)
        except UsageError as error:
            if way.method is None:
                raise
            left_out.append(f"{way.title}: {error}")
    return made, left_out


def ways(presets: Sequence[str], schemes: Sequence[str], methods: Sequence[str]) -> list[Way]:
    """Each preset and scheme without a method, and by those of `methods` that its kind has.

    Raises UsageError for names that are not known.
    """
    unknown = next((name for name in methods if name not in SCHEME_KINDS), None)
    if unknown is not None:
        raise UsageError(f"method {unknown!r} (allowed: {', '.join(SCHEME_KINDS)})")
    found = []
    for name in (find_preset(name).name for name in presets):
        found += [Way(name, "preset"), *(Way(name, "preset", method) for method in methods if method in KINDS)]
    for name in (checkpoint_scheme(name).name for name in schemes):
        found += [Way(name, "scheme"), *(Way(name, "scheme", method) for method in methods if method != NEAREST)]
    return found
