"""How much each weight matters: the divergence that its quantization alone brings about.

A weight is replaced by what it would be after a probing type, the model is run over a few windows, and the divergence
from the model as it was is measured. Divided by the relative squared error that the type makes, it is the weight's
sensitivity; where errors are small the divergence grows in proportion to them, so it serves for other types as well.

Of a model with many weights those of a kind in neighbouring layers are replaced together and share a sensitivity:
divergences of small errors add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.calibrate.texts import Mask, Text, named_text
from octavo.errors import UsageError
from octavo.evals.probe_model import open_to_probe
from octavo.evals.scores import compare
from octavo.evals.stats import F64, Estimate, mean
from octavo.evals.windows import TextWindow, logits, step_sizes, windows
from octavo.formats import BlockFormat, QTensor, by_name
from octavo.formats.spec import F32
from octavo.graph.names import split_layer
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.job_source import ModelSource
from octavo.quantizers.job.recode import recode
from octavo.runtime import Model
from octavo.text import Tokenizer

BASE_BYTES = 256 << 20
"""Most memory for the logits of the model as it was; windows beyond it are left out, but for the first."""

CONTEXT = 512
WINDOWS = 4
PROBES = 80
"""Groups of weights that are measured, at most. A model of up to 11 layers has fewer weights."""

PROBE, PROBE_OF_32 = "Q3_K", "Q4_0"
"""What weights are replaced by, and what those whose rows are not whole blocks of the first are."""
COARSE = "Q2_K"
"""Instead of the first where the model computes with Q8_0: its error stands out more from that of activations."""
FINE, FINE_OF_32 = "Q6_K", "Q5_1"
"""These do next to nothing, so what divergence they bring about is that of activations being rounded otherwise."""
LEAST_SHARE = 0.05
"""The least share of a divergence that is left when that of the activations is taken off."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A weight's effect: the divergence `kl` that an error of `squared_error` (relative, squared, weighted) makes.

    Both are of all weights that were measured together.
    """

    kl: Estimate
    squared_error: float

    @property
    def slope(self) -> float:
        """Divergence for a squared error of 1."""
        return self.kl.value / self.squared_error if self.squared_error else 0.0


SquaredError = Callable[[str, str], float | None]
"""The relative squared error of a weight, by its name, in a type; None where it is not known."""


def sensitivities(
    model: Model, tokens: Sequence[int], names: Iterable[str], *, weights: Callable[[str], QTensor] | None = None,
    imatrix: Imatrix | None = None, context: int = 512, chunks: int | None = WINDOWS,
    scored: Sequence[bool] | Mask | None = None, every: bool = False, probes: int = PROBES,
    within: Mapping[str, BlockFormat] | None = None, squared_error: SquaredError | None = None,
    known: MutableMapping[str, Sensitivity] | None = None,
    progress: Callable[[int, int], None] | None = None
) -> dict[str, Sensitivity]:
    """The sensitivity of each weight in `names` of a model that computes with floats (F32, F16, BF16) or Q8_0.

    weights           gives a weight as it is to be quantized (default: as the model has it)
    imatrix           weighs the errors, in quantizing and in measuring them
    context, chunks, scored  as of `perplexity`
    every             all positions of a window count, not those of the second half alone
    probes            most groups of weights to measure
    within            types that all weights have meanwhile: what the whole diverges less with a group as it was. Errors
                      add up to less, or more, than each alone brings about, and this is the cost where they do
    squared_error     of a weight in a type, instead of what is measured with the importance
    known             of an earlier run: these are not measured again, and those that are get there one by one

    Takes one run of the windows for each group. Raises UsageError for a weight that the model lacks, or that is of
    another type or whose rows are not blocks of 32, and as `windows` does.
    """
    groups = layer_groups(names, probes)
    own = _own_weights(model, groups)
    found = windows(model, tokens, context, chunks, scored, every)
    prober = _Prober(model, own, weights or own.__getitem__, imatrix, found, squared_error)
    out = {} if known is None else known
    left = [group for group in groups if not all(name in out for name in group)]
    measured = prober.without(groups, left, within) if within is not None else prober.alone(groups, left)
    for i, (group, sensitivity) in enumerate(zip(left, measured, strict=True)):
        for name in group:
            out[name] = sensitivity
        if progress is not None:
            progress(len(groups) - len(left) + i + 1, len(groups))
    return {name: out[name] for group in groups for name in group}


def layer_groups(names: Iterable[str], most: int) -> list[list[str]]:
    """The weights `names` in groups, by kind and then by layer: each alone if there are at most `most`.

    Otherwise groups hold as few neighbouring layers as makes at most `most` of them, or a whole kind each. A weight of
    no layer is a group of its own.
    """
    kinds: dict[str, list[str]] = {}
    for name in sorted(names, key=_layer):
        kinds.setdefault(split_layer(name)[1], []).append(name)
    longest = max(map(len, kinds.values()), default=1)
    sizes = range(1, longest + 1)
    size = next((s for s in sizes if sum(-(-len(k) // s) for k in kinds.values()) <= most), longest)
    return [kind[i : i + size] for kind in kinds.values() for i in range(0, len(kind), size)]


def _layer(name: str) -> int:
    layer, _ = split_layer(name)
    return -1 if layer is None else layer


class _Prober:
    """Replaces weights of a model, runs its windows, and puts them back."""

    def __init__(
        self, model: Model, own: Mapping[str, QTensor], weights: Callable[[str], QTensor], imatrix: Imatrix | None,
        found: list[TextWindow], squared_error: SquaredError | None = None
    ) -> None:
        self.model, self.own, self.weights, self.imatrix = model, own, weights, imatrix
        self.squared_error = squared_error or (lambda name, kind: None)
        self.before = _base(model, found)
        self.windows = found[: len(self.before)]
        self.exact = all(tensor.format.is_float for tensor in own.values())
        self.types = (PROBE if self.exact else COARSE, PROBE_OF_32)

    def probe(self, group: list[str], types: tuple[str, str] | None = None) -> tuple[Estimate, float]:
        """The divergence that a group of weights brings about after a type, and their relative squared errors' sum."""
        error = 0.0
        try:
            for name in group:
                changed, lost = self._after(name, types or self.types)
                self.model.engine.load().replace(changed)
                error += lost
            return self._divergence(), error
        finally:
            for name in group:
                self.model.engine.load().replace(self.own[name])

    def alone(self, groups: list[list[str]], left: list[list[str]]) -> Iterator[Sensitivity]:
        """What each of the groups that are `left` costs by itself."""
        noise = self.noise(groups) if left else 0.0
        for group in left:
            kl, squared_error = self.probe(group)
            yield Sensitivity(Estimate(max(kl.value - noise, LEAST_SHARE * kl.value), kl.error), squared_error)

    def without(
        self, groups: list[list[str]], left: list[list[str]], types: Mapping[str, BlockFormat]
    ) -> Iterator[Sensitivity]:
        """What all weights in their types diverge more than with a group as it was, of the groups that are `left`."""
        engine, made, errors = self.model.engine, dict[str, QTensor](), dict[str, float]()
        names = [name for group in groups for name in group] if left else []
        try:
            for name in names:
                made[name], errors[name] = self._after(name, (types[name].name,) * 2)
                engine.load().replace(made[name])
            whole = self._divergences() if left else np.zeros(1)
            for group in left:
                for name in group:
                    engine.load().replace(self.own[name])
                gained = mean(whole - self._divergences())
                for name in group:
                    engine.load().replace(made[name])
                kept = max(gained.value, LEAST_SHARE * float(whole.mean()) / len(groups))
                yield Sensitivity(Estimate(kept, gained.error), sum(errors[name] for name in group))
        finally:
            for name in names:
                engine.load().replace(self.own[name])

    def noise(self, groups: list[list[str]]) -> float:
        """The divergence of a model that is all but the same, as its activations are rounded otherwise.

        Where they are not rounded there is none. Measured in the first layer, so that it goes through all of them.
        """
        if self.exact or not groups:
            return 0.0
        group = next((g for g in groups if g[0].startswith("blk.")), groups[0])
        (coarse, large), (fine, small) = self.probe(group), self.probe(group, (FINE, FINE_OF_32))
        share = small / large if large else 0.0
        return max(0.0, (fine.value - share * coarse.value) / (1 - share)) if share < 1 else 0.0

    def _after(self, name: str, types: tuple[str, str]) -> tuple[QTensor, float]:
        """The weight after a type, in the format that the model has it in, and its relative squared error."""
        tensor = self.weights(name)
        fmt = by_name(types[tensor.shape[-1] % by_name(types[0]).block != 0])
        importance = None if self.imatrix is None else self.imatrix.importance(name, tensor.shape)
        made = recode(tensor, fmt, importance=importance)
        error = self.squared_error(name, fmt.name)
        return recode(made.tensor, self.own[name].format).tensor, made.error**2 if error is None else error

    def _divergence(self) -> Estimate:
        return mean(self._divergences())

    def _divergences(self) -> F64:
        engine = self.model.engine
        kl = [
            compare(rows, base, targets).kl
            for window, bases in zip(self.windows, self.before, strict=True)
            for (rows, targets), base in zip(logits(engine, window, *step_sizes(engine)), bases, strict=True)
        ]
        return np.concatenate(kl)


@dataclass(frozen=True)
class MeasuredSlopes:
    """Sensitivities on a text for `quantize_to_size(..., slopes=)`.

    text     a file of UTF-8 text, or "demo"
    imatrix  weighs the errors
    chunks   windows of the text to run

    A large model is run in Q8_0 on a CPU. Weights that it does not compute with get the median.
    """

    text: str
    imatrix: Imatrix | None = None
    chunks: int = WINDOWS
    device: str = "auto"
    threads: int | None = None
    progress: Callable[[str, int, int], None] | None = None

    def __call__(self, source: ModelSource, names: list[str]) -> dict[str, float]:
        """Divergence, in nats, for a relative squared error of 1 in each of the weights."""
        with GGUFFile.open(source.path) as file:
            context = min(CONTEXT, read_model(file).hparams.n_ctx_most)
            text = named_text(self.text, Tokenizer.from_gguf(file), "train")
            if len(text.tokens) < context:
                problem = f"the text {self.text} has {len(text.tokens)} tokens"
                raise UsageError(f"{problem} (allowed: {context} or more; {self.chunks * context} are used)")
            with open_to_probe(source.path, context, device=self.device, threads=self.threads) as model:
                used = {node.tensor.name for node in model.engine.schedule.graph.leaves("weight")}
                wanted = [n for n in names if n in used and file.tensors[n].shape[-1] % by_name(PROBE_OF_32).block == 0]
                slopes = self._slopes(model, file, text, wanted, context)
        middle = float(np.median(list(slopes.values()))) if slopes else 1.0
        return {name: slopes.get(name, middle) for name in names}

    def _slopes(self, model: Model, file: GGUFFile, text: Text, names: list[str], context: int) -> dict[str, float]:
        progress = self.progress
        tell = (lambda done, total: progress("probing weights", done, total)) if progress is not None else None
        found = sensitivities(
            model, text.tokens, names, weights=file.tensor, imatrix=self.imatrix, context=context, chunks=self.chunks,
            progress=tell,
        )
        return {name: sensitivity.slope for name, sensitivity in found.items()}


def _own_weights(model: Model, groups: list[list[str]]) -> dict[str, QTensor]:
    """The weights that the model computes with, checked."""
    weights = {n.tensor.name: n.tensor for n in model.engine.schedule.graph.leaves("weight")}
    for name in (name for group in groups for name in group):
        if name not in weights:
            raise UsageError(f"{model.file.path} computes with no weight {name!r}")
        fmt = weights[name].format
        if not (fmt.is_float or fmt.name == "Q8_0"):
            raise UsageError(f"{name!r} is {fmt.name} (allowed: F32, F16, BF16, Q8_0)")
        if weights[name].shape[-1] % by_name(PROBE_OF_32).block:
            raise UsageError(f"rows of {name!r} have {weights[name].shape[-1]} values (allowed: multiples of 32)")
    return {name: weights[name] for group in groups for name in group}


def _base(model: Model, found: list[TextWindow]) -> list[list[F32]]:
    """The model's own logits, window by window and step by step, as far as they fit in memory."""
    kept: list[list[F32]] = []
    nbytes = 0
    for window in found:
        rows = [r for r, _ in logits(model.engine, window, *step_sizes(model.engine))]
        nbytes += sum(r.nbytes for r in rows)
        if kept and nbytes > BASE_BYTES:
            break
        kept.append(rows)
    return kept
