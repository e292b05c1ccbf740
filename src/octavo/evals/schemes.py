"""Methods of `quantize_checkpoint`: weights of a scheme by what they lose over a text, stage by stage.

Each stage of the model is run with the weights of the stages before as they are quantized, so what a weight is judged
by are the inputs that it will have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.backends import select
from octavo.errors import UsageError
from octavo.evals.calibration import samples_of
from octavo.evals.layerwise import Layerwise, OpenStage, ProductInput, Samples
from octavo.evals.smoothing import smooth_model
from octavo.formats.rows import GROUP
from octavo.formats.spec import F32
from octavo.graph.protocol import Backend
from octavo.huggingface.coded import Coded, nearest, values_of
from octavo.huggingface.names import is_linear
from octavo.huggingface.schemes import CheckpointScheme
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.models.weights import scale_of
from octavo.quantizers.compensation.coded import compensated, compensated_row
from octavo.quantizers.fold import rotate
from octavo.quantizers.job.prepared import MadeWeight, Prepared, Scaled
from octavo.quantizers.smoothing import METHODS as SCALES
from octavo.quantizers.smoothing import best_of, clip, tokens_fp8, tokens_int8

SAMPLES, CONTEXT = 32, 512
"""Windows of the text, and tokens of a window, at most."""
HELD_OUT = 8
"""One in so many tokens tells which of several ways is best, and is used for nothing else."""
CLIPPED = 512
"""Tokens with which limits of groups are tried."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Steps:
    """What a method does.

    scales  the way in which scales of channels are chosen, by its name; None: channels stay as they are
    ways    in which weights are made; of several that is taken which errs least over held-out tokens
    """

    scales: str | None
    ways: tuple[str, ...]


KINDS = {
    "rtn": Steps(None, ("nearest",)),
    "gptq": Steps(None, ("gptq",)),
    "qronos": Steps(None, ("qronos",)),
    "awq": Steps("awq", ("clip",)),
    "smoothquant": Steps("smoothquant", ("nearest",)),
    "qqq": Steps("qqq", ("gptq",)),
    "auto": Steps("auto", ("nearest", "gptq", "qronos")),
}
"""Methods by their names."""
COMPENSATE = ("gptq", "qronos")


@dataclass(frozen=True)
class SchemeMethod:
    """A method of `quantize_checkpoint`.

    text      a file of UTF-8 text, a JSONL file, or "demo"; apart from what the result is judged by
    kind      one of KINDS
    rotate    turn the residual stream and heads' values by random Hadamard matrices before anything else
    samples   windows of the text that are run, at most
    context   tokens of a window (default: CONTEXT, or what the model was made for)
    seed      says which windows, and which rotations
    device, threads  as of `octavo.load`
    progress  is told how much of the model was run

    Raises UsageError for a scheme that the kind has nothing for and for a text shorter than a window, NonFiniteError
    naming a weight, ModelError for a model that can't be turned, and as loading a model does.
    """

    text: str
    kind: str = "gptq"
    rotate: bool = False
    samples: int = SAMPLES
    context: int | None = None
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"method {self.kind!r} (allowed: {', '.join(KINDS)})")

    def __call__(self, file: GGUFFile, scheme: CheckpointScheme) -> Prepared:
        steps, ways = KINDS[self.kind], self._ways(scheme)
        samples = samples_of(file, self.text, self.samples, self.context, CONTEXT, self.seed)
        backends = select(self.device, self.threads)
        turned = rotate(file, seed=self.seed) if self.rotate else file
        scaled, choices = turned, tuple[Scaled, ...]()
        if steps.scales is not None:
            found = smooth_model(
                turned, backends, samples, best_of(SCALES) if steps.scales == "auto" else SCALES[steps.scales],
                lambda w: values_of(scheme, nearest(scheme, w)), _tokens(scheme),
            )  # fmt: skip
            scaled = found.file
            choices = tuple(Scaled(c.fold, c.how or steps.scales, c.setting, c.before, c.after) for c in found.choices)
        return Prepared(scaled, self._weights(scaled, backends, samples, scheme, ways), choices)

    def _ways(self, scheme: CheckpointScheme) -> tuple[str, ...]:
        """Those of the kind that the scheme has. Raises UsageError where there is none."""
        ways = KINDS[self.kind].ways
        if compensated_row(scheme, scheme.multiple * 4) is None:
            ways = tuple(way for way in ways if way not in COMPENSATE)
        if not ways:
            allowed = ", ".join(name for name, steps in KINDS.items() if set(steps.ways) - set(COMPENSATE))
            raise UsageError(
                f"method {self.kind} for {scheme.name}, whose errors are not made up for (allowed: {allowed})"
            )
        return ways

    def _weights(
        self, file: GGUFFile, backends: list[Backend], samples: Samples, scheme: CheckpointScheme, ways: Sequence[str]
    ) -> dict[str, MadeWeight]:
        made: dict[str, MadeWeight] = {}
        run = Layerwise(
            read_model(file), backends, samples, original="qronos" in ways,
            progress=None if self.progress is None else self._tell,
        )  # fmt: skip
        for stage in run.run():
            for given in stage.inputs:
                names = [name for name in given.names if is_linear(name) and scale_of(file, name) is None]
                for name, weight in self._made(stage, given, names, scheme, ways):
                    stage.replace(name, values_of(scheme, weight.coded))
                    made[name] = weight
        return made

    def _tell(self, done: int, total: int) -> None:
        assert self.progress is not None
        self.progress("calibration", done, total)

    def _made(
        self, stage: OpenStage, given: ProductInput, names: list[str], scheme: CheckpointScheme, ways: Sequence[str]
    ) -> Iterator[tuple[str, MadeWeight]]:
        """Each of the weights of an input in the scheme, by the way that errs least."""
        if not names:
            return
        seen, judged = held_out(given) if len(ways) > 1 else (given, given)
        maker = _Maker(scheme, seen, self.threads)
        for name in names:
            weight = stage.weight(name)
            plain = nearest(scheme, weight)
            tried = {way: plain if way == "nearest" else maker.make(way, name, weight) for way in ways}
            wanted = _Outputs(judged, weight)
            errors = {way: wanted.error(values_of(scheme, coded)) for way, coded in tried.items()}
            best = min(errors, key=lambda way: errors[way])
            before = wanted.error(values_of(scheme, plain))
            yield name, MadeWeight(tried[best], errors[best], before, best)


class _Maker:
    """Makes weights of the same inputs, whose Hessian is added up once."""

    def __init__(self, scheme: CheckpointScheme, given: ProductInput, threads: int | None) -> None:
        self._scheme, self._given, self._threads = scheme, given, threads
        self._cross = given.cross() if given.original is not None else None
        self._hessian = given.hessian().matrix() if self._cross is None else self._cross.hessian.matrix()

    def make(self, way: str, name: str, weight: F32) -> Coded:
        """The weight [N, K] by a way of KINDS other than "nearest"."""
        if way == "clip":
            return self._clipped(name, weight)
        if compensated_row(self._scheme, weight.shape[1]) is None:
            return nearest(self._scheme, weight)
        cross = None if way == "gptq" or self._cross is None else self._cross.cross()
        return compensated(self._scheme, weight, self._hessian, cross=cross, threads=self._threads)

    def _clipped(self, name: str, weight: F32) -> Coded:
        """Values cut off at the limits that serve some of the inputs best; not of q and k, which a softmax follows."""
        if any(part in name for part in ("attn_q.", "attn_k.")):
            return nearest(self._scheme, weight)
        x = np.concatenate(list(self._given.batches()))
        some = x[np.linspace(0, len(x) - 1, min(CLIPPED, len(x))).astype(np.int64)]
        group = self._scheme.group or GROUP
        whole = weight.shape[1] if self._scheme.group is None or weight.shape[1] % group else group
        return nearest(self._scheme, clip(weight, some, self._rounded, whole).weight)

    def _rounded(self, weight: F32) -> F32:
        return values_of(self._scheme, nearest(self._scheme, weight))


class _Outputs:
    """What a product gives over some tokens: of the original model where that is run, else of the original weight."""

    def __init__(self, given: ProductInput, weight: F32) -> None:
        self._given, self._weight = given, weight
        self._pairs = list(given.pairs()) if given.original is not None else [(x, x) for x in given.batches()]
        self._power = sum(_squares(then @ weight.T) for _, then in self._pairs) or 1.0

    def error(self, values: F32) -> float:
        """The root of sum |y' - y|^2 / sum |y|^2 of outputs y' with `values` for the weight."""
        wrong = sum(_squares(now @ values.T - then @ self._weight.T) for now, then in self._pairs)
        return math.sqrt(wrong / self._power)


def held_out(given: ProductInput) -> tuple[ProductInput, ProductInput]:
    """An input's tokens but the last ones, and those."""
    tokens = len(given.vectors)
    at = tokens - max(1, tokens // HELD_OUT)
    return given.part(slice(at)), given.part(slice(at, None))


def _tokens(scheme: CheckpointScheme) -> Callable[[F32], F32]:
    """How a scheme rounds activations."""
    if not scheme.tokens or scheme.square:
        return lambda x: x
    return tokens_int8 if scheme.kind == "int" else tokens_fp8


def _squares(x: F32) -> float:
    return float(np.square(x, dtype=np.float64).sum())
