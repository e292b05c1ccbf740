"""Methods of `quantize_checkpoint`: weights of a scheme by what they lose over a text, stage by stage.

Each stage of the model is run with the weights of the stages before as they are quantized, so what a weight is judged
by are the inputs that it will have.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from octavo.backends import select
from octavo.calibrate.fold.rotation import rotate_possible
from octavo.calibrate.methods.channel_scales import ROUNDINGS, Search, best_of, roundings, search_of, unless
from octavo.calibrate.methods.gptq.gptq_schemes import gptq_row
from octavo.calibrate.row_batches import memory_told
from octavo.calibrate.run_name import run_name
from octavo.calibrate.runner import Journal, Layerwise, OpenStage, ProductInput, Samples
from octavo.calibrate.runner.journal import read_file, stage_files, stage_path, write_file
from octavo.calibrate.schemes.fold_scales import scale_model, with_scales
from octavo.calibrate.schemes.scheme_weights import GPTQ_WAYS, placed_values, scheme_weights
from octavo.calibrate.schemes.static_inputs import DYNAMIC, static_input
from octavo.calibrate.texts import text_samples
from octavo.errors import UsageError
from octavo.formats.spec import F32
from octavo.graph.protocol import Backend
from octavo.graph.stages import Stage
from octavo.huggingface.kv_out import TOPS
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES, CheckpointScheme
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.models.shared.weights import scale_of
from octavo.quantizers.job.method_result import MethodRun
from octavo.quantizers.job.scheme_method import FoldScales, SchemeResult, SchemeWeight, StaticInput
from octavo.quantizers.statistics import ChannelStatistics
from octavo.quantizers.statistics.outliers import channels

Progress = Callable[[str, int, int], None]
SCALES = "scales.safetensors"
"""The file of a run's folder with what was chosen for channels."""
WORTH_MIXED = 0.8
"""Scales of channels are taken only if they leave at most this share of the error, where an input can keep a scale for
each token instead: weights lose by them."""
_log = logging.getLogger(__name__)
MIXED = 1.25
"""Times as much as with a scale for each token may products with a static scale err where activations are mixed."""
E4M3, NUMBERS = "static-fp8", CHECKPOINT_SCHEMES["fp8"].with_static()
"""Activations that become e4m3 numbers where they err more, and the scheme of products with those."""
SAMPLES, CONTEXT = 32, 512
"""Windows of the text, and tokens of a window, at most."""


@dataclass(frozen=True, eq=False)
class StageResults:
    """What stages have come to.

    made    weights by name
    inputs  static scales of what they are multiplied with
    caches  the largest magnitudes of the caches that stages wrote to
    """

    made: dict[str, SchemeWeight] = field(default_factory=dict)
    inputs: list[StaticInput] = field(default_factory=list)
    caches: dict[str, F32] = field(default_factory=dict)

    def take(self, other: StageResults) -> None:
        """Move what another has here."""
        self.made.update(other.made)
        self.inputs.extend(other.inputs)
        self.caches.update(other.caches)
        for part in (other.made, other.inputs, other.caches):
            part.clear()


@dataclass(frozen=True, eq=False)
class KeptScales:
    """Scales of channels, by the names of their folds, and what is told of them."""

    scales: dict[str, F32]
    chosen: tuple[FoldScales, ...]


@dataclass(frozen=True, eq=False)
class SchemeRun:
    """A method at work on a model.

    scales  the way in which scales of channels are chosen, by its name; None: channels stay as they are
    ways    in which weights are made
    kv      whether what caches hold is measured: their type, or None
    most    times as much as with a scale for each token may products with a static scale err, if these are to be used
    other   the scheme of products that err more; None: they keep a scale for each token
    """

    file: GGUFFile
    scheme: CheckpointScheme
    samples: Samples
    backends: Sequence[Backend]
    scales: str | None
    ways: Sequence[str]
    kv: str | None
    threads: int | None
    progress: Progress | None
    most: float = math.inf
    other: CheckpointScheme | None = None

    def scaled(self, journal: Journal) -> tuple[GGUFFile, tuple[FoldScales, ...]]:
        """The file with scales of channels, and what was chosen; that of an earlier run, as far as it went."""
        if self.scales is None:
            return self.file, ()
        path = os.path.join(journal.folder, SCALES)
        if journal.holds and os.path.exists(path):
            kept = read_file(path, KeptScales)
            return with_scales(self.file, kept.scales), kept.chosen
        dynamic = ROUNDINGS[DYNAMIC[self.scheme.activation]] if self.scheme.static else None
        made = scale_model(
            self.file, self.backends, self.samples, self._searching(self.scales), *roundings(self.scheme), dynamic,
            folder=journal.folder, by_rows=self.scheme.strategy != "tensor_group",
            kept=self.scheme.left,
        )
        choices = tuple(replace(choice, how=choice.how or self.scales) for choice in made.choices)
        write_file(path, KeptScales(dict(made.scales), choices))
        journal.advance(journal.stage)
        return made.file, choices

    def weights(self, file: GGUFFile, journal: Journal) -> StageResults:
        """Weights of linear layers in the scheme, and what was measured on the way."""
        made, mine = StageResults(), StageResults()
        for kept in stage_files(journal.folder, journal.stage, StageResults):
            made.take(kept)

        def done(stage: Stage, written: Mapping[str, ChannelStatistics]) -> None:
            if self.kv:
                mine.caches.update((name, found.absmax.max(axis=1)) for name, found in written.items())
            if mine.made or mine.inputs or mine.caches:
                path = stage_path(journal.folder, stage.number)
                write_file(path, mine)
                mine.made.update(read_file(path, StageResults).made)  # codes are no longer in memory
                made.take(mine)

        run = Layerwise(
            read_model(file), self.backends, self.samples, original=self._original, journal=journal,
            made=self._values_of(dict(made.made), made.inputs), done=done, caches=self.kv is not None,
            progress=None if self.progress is None else self._tell,
        )
        run.tell_memory()
        for stage in run.run():
            for given in stage.inputs:
                linear, scheme = [name for name in given.names if self.scheme.takes(name)], self.scheme
                if scheme.static and linear and not given.experts:
                    mine.inputs.append(self._static(stage, given, linear))
                    scheme = self._named(mine.inputs[-1].scheme)
                names = [name for name in linear if scale_of(file, name) is None]
                met = channels(given.absmax()) if names else None
                for name, weight in scheme_weights(stage, given, names, scheme, self.ways, self.threads):
                    values = placed_values(scheme, weight.coded, stage.device)
                    stage.replace(name, values.reshape(stage.tensor(name).shape))
                    mine.made[name] = replace(weight, channels=met)
        return made

    def _static(self, stage: OpenStage, given: ProductInput, names: Sequence[str]) -> StaticInput:
        """The static scale of an input, with its weights in memory as long as it is looked for."""
        weights = [stage.weight(name) for name in names]
        return static_input(given, names, weights, self.scheme, self.most, self.other)

    def _values_of(
        self, made: Mapping[str, SchemeWeight], inputs: Sequence[StaticInput]
    ) -> Callable[[str], F32 | None]:
        """The values of weights that an earlier run has made."""
        schemes = {name: self._named(found.scheme) for found in inputs for name in found.names}

        def values(name: str) -> F32 | None:
            found, scheme = made.get(name), schemes.get(name, self.scheme)
            if found is None:
                return None
            made_again: F32 = placed_values(scheme, found.coded, None)
            return made_again.reshape(self.file.tensors[name].shape)

        return values

    def _named(self, name: str) -> CheckpointScheme:
        """The scheme of an input's products."""
        return self.other if self.other is not None and self.other.name == name else self.scheme

    def _searching(self, scales: str) -> Search:
        """The way to choose scales; of `auto` that of several which errs least."""
        way = search_of(scales, self.scheme, self.ways)
        if not self.scheme.static or math.isinf(self.most):
            return way
        # An input that becomes e4m3 numbers, or keeps a scale for each token, needs none for its channels.
        if self.other is not None:
            weight, activation = roundings(self.other)
            return unless(way, lambda pair: replace(pair, weight=weight, activation=activation))
        dynamic, held = ROUNDINGS[DYNAMIC[self.scheme.activation]], best_of({scales: way}, WORTH_MIXED)
        return unless(held, lambda pair: replace(pair, activation=dynamic), self.most**2)

    @property
    def _original(self) -> bool:
        return "qronos" in self.ways

    def _tell(self, done: int, total: int) -> None:
        assert self.progress is not None
        self.progress("calibration", done, total)


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
            raise UsageError(f"activations are {E4M3!r} with {scheme.name}: they need int8-w8a8")
        return E4M3 if self.activations is None and KINDS[self.kind].static and integers else self.activations


def samples_of(
    file: GGUFFile, text: str, count: int, context: int | None, usual: int, seed: int = 0
) -> Samples:
    """Samples of a text for a method: at most `count` windows of `context` tokens.

    context  default: `usual`, or what the model was made for

    Raises what `read_calibration` raises, and UsageError for a context that the model was not made for.
    """
    spec = read_model(file)
    most = spec.hparams.n_ctx_most
    if context is not None and context > most:
        problem = f"context is {context}; the model was made for up to {most}"
        raise UsageError(problem, argument="context")
    size = min(usual, most) if context is None else context
    return Samples(text_samples(text, file, count, size, seed).samples)
