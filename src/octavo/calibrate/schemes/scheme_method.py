"""Methods of `quantize_checkpoint`: weights of a scheme by what they lose over a text, stage by stage.

Each stage of the model is run with the weights of the stages before as they are quantized, so what a weight is judged
by are the inputs that it will have.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Literal

from octavo.backends import select
from octavo.calibrate.fold import rotate_possible
from octavo.calibrate.methods.gptq.gptq_schemes import gptq_row
from octavo.calibrate.row_batches import memory_told
from octavo.calibrate.run_name import run_name
from octavo.calibrate.runner import Journal
from octavo.calibrate.schemes.scheme_run import Progress, SchemeRun
from octavo.calibrate.schemes.scheme_weights import GPTQ_WAYS
from octavo.calibrate.text_samples import samples_of
from octavo.errors import UsageError
from octavo.huggingface.kv_out import TOPS
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES, CheckpointScheme
from octavo.io.gguf import GGUFFile
from octavo.quantizers.job.method_run import MethodRun
from octavo.quantizers.job.scheme_method import SchemeResult

_log = logging.getLogger(__name__)

MIXED = 1.25
"""Times as much as with a scale for each token may products with a static scale err where activations are mixed."""
E4M3, NUMBERS = "static-fp8", CHECKPOINT_SCHEMES["fp8"].with_static()
"""Activations that become e4m3 numbers where they err more, and the scheme of products with those."""
SAMPLES, CONTEXT = 32, 512
"""Windows of the text, and tokens of a window, at most."""


@dataclass(frozen=True)
class MethodSteps:
    """What a method does.

    scales  the way in which scales of channels are chosen, by its name; None: channels stay as they are
    ways    in which weights are made; of several that is taken which errs least over held-out tokens
    static  activations have static scales, and can't have others
    """

    scales: str | None
    ways: tuple[str, ...]
    static: bool = False


KINDS = {
    "rtn": MethodSteps(None, ("nearest",)),
    "gptq": MethodSteps(None, ("gptq",)),
    "qronos": MethodSteps(None, ("qronos",)),
    "awq": MethodSteps("awq", ("clip",)),
    "smoothquant": MethodSteps("smoothquant", ("nearest",)),
    "qqq": MethodSteps("qqq", ("gptq",)),
    "rptq": MethodSteps("rptq", ("gptq",), static=True),
    "auto": MethodSteps("auto", ("nearest", "gptq", "qronos")),
}
"""Methods by their names."""


def ways_of(kind: str, scheme: CheckpointScheme) -> tuple[str, ...]:
    """The ways of a kind of KINDS that the scheme has. Raises UsageError where there is none."""
    ways = KINDS[kind].ways
    if gptq_row(scheme, scheme.multiple * 4) is None:
        ways = tuple(way for way in ways if way not in GPTQ_WAYS)
    if not ways:
        allowed = ", ".join(name for name, steps in KINDS.items() if set(steps.ways) - set(GPTQ_WAYS))
        problem = f"method {kind} does not apply to {scheme.name}, whose scales are for whole blocks"
        raise UsageError(f"{problem} (allowed: {allowed})")
    return ways


@dataclass(frozen=True)
class SchemeMethod:
    """A method of `quantize_checkpoint`.

    text      a file of UTF-8 text, a JSONL file, or "demo"; apart from what the result is judged by
    kind      one of KINDS
    rotate    turn the residual stream and heads' values by random Hadamard matrices before anything else; heads' alone,
              with a warning, where the stream can't be turned
    activations  "static": activations have one scale for all tokens of a product, of what the text gives it; "mixed":
              where products then err up to MIXED times as much as with a scale for each token; "static-fp8": where
              they err more, and less with e4m3 numbers, weights and activations are these, for int8-w8a8; "dynamic":
              all have one for each token; None: what goes with the kind
    kv        the type of caches that the checkpoint is to have scales for: of what they hold over the text
    samples   windows of the text that are run, at most
    context   tokens of a window (default: CONTEXT, or what the model was made for)
    seed      says which windows, and which rotations
    resume    go on with a run that was killed, from the last stage that it had done; it gives the same bytes
    device, threads  as of `octavo.load`
    progress  is told how much of the model was run

    Raises UsageError for a scheme that the kind has nothing for, for a text shorter than a window and for a folder of
    another run, NonFiniteError naming a weight, ModelError for a model of which nothing can be turned, HostMemoryError
    and DeviceMemoryError where memory runs out, and as loading a model does.
    """

    text: str
    kind: str = "gptq"
    rotate: bool = False
    kv: Literal["int8", "fp8"] | None = None
    samples: int = SAMPLES
    context: int | None = None
    seed: int = 0
    resume: bool = False
    device: str = "auto"
    threads: int | None = None
    progress: Progress | None = None
    activations: Literal["static", "mixed", "static-fp8", "dynamic"] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"method {self.kind!r} (allowed: {', '.join(KINDS)})")
        if self.kv not in (None, *TOPS):
            raise UsageError(f"kv is {self.kv!r} (allowed: {', '.join(TOPS)})", argument="kv")
        allowed = ("static", "mixed", E4M3) if KINDS[self.kind].static else ("static", "mixed", E4M3, "dynamic")
        if self.activations not in (None, *allowed):
            problem = f"activations are {self.activations!r} with method {self.kind}"
            raise UsageError(f"{problem} (allowed: {', '.join(allowed)})", argument="activations")

    @property
    def static(self) -> bool:
        """Whether activations get static scales."""
        return self.activations in ("static", "mixed", E4M3) or KINDS[self.kind].static

    def __call__(self, file: GGUFFile, scheme: CheckpointScheme, work: str) -> SchemeResult:
        run = self._opened(file, scheme)
        journal = Journal(work, self._name(file, scheme, run), resume=self.resume)
        try:
            with memory_told("the method"):
                scaled, choices = run.scaled(journal)
                done = run.weights(scaled, journal)
        except BaseException as error:
            journal.stop(error)
            raise
        about = MethodRun.of(self.kind, self.text, run.samples.tokens, rotate=self.rotate, kv=self.kv)
        return SchemeResult(scaled, done.made, choices, done.inputs, done.caches, journal.end, about)

    def require(self, scheme: CheckpointScheme) -> None:
        """Raise UsageError for a scheme that the kind has nothing for."""
        ways_of(self.kind, scheme)
        self._activations(scheme)
        if self.static:
            scheme.with_static()

    def outline(self, file: GGUFFile, scheme: CheckpointScheme) -> GGUFFile:
        return self._opened(file, scheme).file

    def _name(self, file: GGUFFile, scheme: CheckpointScheme, run: SchemeRun) -> str:
        """What two runs must share for one to go on from the other."""
        options = (self.kind, self.rotate, self.kv, self.seed, scheme.name, scheme.row, self.activations,
                   *sorted(scheme.left))
        return run_name(file, run.samples, *options, *(b.name for b in run.backends))

    def _opened(self, file: GGUFFile, scheme: CheckpointScheme) -> SchemeRun:
        ways, activations = ways_of(self.kind, scheme), self._activations(scheme)
        samples = samples_of(file, self.text, self.samples, self.context, CONTEXT, self.seed)
        turned = self._turned(file) if self.rotate else file
        return SchemeRun(
            turned, scheme, samples, select(self.device, self.threads), KINDS[self.kind].scales, ways, self.kv,
            self.threads, self.progress, MIXED if activations in ("mixed", E4M3) else math.inf,
            NUMBERS if activations == E4M3 else None,
        )

    def _turned(self, file: GGUFFile) -> GGUFFile:
        """The model turned as far as it can be, and a warning of what was not."""
        turned, problem = rotate_possible(file, seed=self.seed)
        if problem is not None:
            _log.warning("only heads' values are turned, not the residual stream: %s", problem)
        return turned

    def _activations(self, scheme: CheckpointScheme) -> str | None:
        """Those that were asked for, or that go with the kind. Raises UsageError for a scheme that has none such."""
        integers = scheme.activation.startswith("int8") and scheme.bits == 8
        if self.activations == E4M3 and not integers:
            raise UsageError(f"activations are {E4M3!r} with {scheme.name} (allowed: with int8-w8a8)")
        return E4M3 if self.activations is None and KINDS[self.kind].static and integers else self.activations
