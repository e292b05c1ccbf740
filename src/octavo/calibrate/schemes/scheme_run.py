"""A run of a scheme's method over a model: scales of channels first, then weights, stage by stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from octavo.calibrate.methods import best_of, unless
from octavo.calibrate.methods.scale_search import Search
from octavo.calibrate.methods.scheme_search import ROUNDINGS, roundings, search_of
from octavo.calibrate.methods.static_activations import DYNAMIC
from octavo.calibrate.runner import Journal, Layerwise, OpenStage, ProductInput, Samples
from octavo.calibrate.schemes.fold_scales import scale_model, with_scales
from octavo.calibrate.schemes.scheme_resume import StageResults, load_scales, load_stages, save_scales, save_stage
from octavo.calibrate.schemes.scheme_weights import WeightQuantizer, scheme_weights
from octavo.calibrate.schemes.static_inputs import static_input
from octavo.formats.spec import F32
from octavo.graph.protocol import Backend
from octavo.graph.stages import Stage
from octavo.huggingface.scheme_weight import values_of
from octavo.huggingface.schemes import CheckpointScheme
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.models.shared.weights import scale_of
from octavo.quantizers.job.scheme_method import FoldScales, SchemeWeight, StaticInput
from octavo.quantizers.statistics import ChannelStatistics
from octavo.quantizers.statistics.outliers import channels

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[str, int, int], None]
WORTH_MIXED = 0.8
"""Scales of channels are taken only if they leave at most this share of the error, where an input can keep a scale for
each token instead: weights lose by them."""


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
        found = load_scales(journal.folder) if journal.holds else None
        if found is not None:
            return with_scales(self.file, found[0]), found[1]
        dynamic = ROUNDINGS[DYNAMIC[self.scheme.activation]] if self.scheme.static else None
        made = scale_model(
            self.file, self.backends, self.samples, self._searching(self.scales), *roundings(self.scheme), dynamic,
            folder=journal.folder, by_rows=self.scheme.strategy != "tensor_group",
            kept=self.scheme.left,
        )
        choices = tuple(replace(choice, how=choice.how or self.scales) for choice in made.choices)
        save_scales(journal.folder, made.scales, choices)
        journal.advance(journal.stage)
        return made.file, choices

    def weights(self, file: GGUFFile, journal: Journal) -> StageResults:
        """Weights of linear layers in the scheme, and what was measured on the way."""
        made, mine = load_stages(journal.folder, journal.stage), StageResults()

        def done(stage: Stage, written: Mapping[str, ChannelStatistics]) -> None:
            if self.kv:
                mine.caches.update((name, found.absmax.max(axis=1)) for name, found in written.items())
            save_stage(journal.folder, stage.number, mine)
            made.take(mine)

        run = Layerwise(
            read_model(file), self.backends, self.samples, original=self._original, journal=journal,
            made=self._values_of(dict(made.made), made.inputs), done=done, caches=self.kv is not None,
            progress=None if self.progress is None else self._tell,
        )
        for stage in run.run():
            for given in stage.inputs:
                linear, scheme = [name for name in given.names if self.scheme.takes(name)], self.scheme
                if scheme.static and linear and not given.experts:
                    mine.inputs.append(self._static(stage, given, linear))
                    scheme = self._named(mine.inputs[-1].scheme)
                names = [name for name in linear if scale_of(file, name) is None]
                met = channels(given.absmax()) if names else None
                for name, weight in scheme_weights(stage, given, names, scheme, self.ways, self.threads, _maker(stage)):
                    stage.replace(name, _values(scheme, weight, stage.tensor(name).shape, stage.device))
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
            return None if found is None else _host_values(scheme, found, self.file.tensors[name].shape)

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


def _maker(stage: OpenStage) -> Callable[..., WeightQuantizer]:
    """What makes weights, where they are made."""
    if stage.device is None:
        return WeightQuantizer
    from octavo.calibrate.schemes.torch_weights import TorchWeightQuantizer

    return TorchWeightQuantizer


def _values(
    scheme: CheckpointScheme, weight: SchemeWeight, shape: tuple[int, ...], device: str | None
) -> F32 | Tensor:
    """A weight [N, K], or [experts, N, K], as the model is computed with, where weights are made."""
    if device is None:
        return _host_values(scheme, weight, shape)
    from octavo.calibrate.schemes.torch_weights import placed_values

    return placed_values(scheme, weight.coded, device).view(shape)


def _host_values(scheme: CheckpointScheme, weight: SchemeWeight, shape: tuple[int, ...]) -> F32:
    """The same in the host's memory."""
    if len(shape) == 2:
        return values_of(scheme, weight.coded[0])
    out = np.empty(shape, np.float32)
    for i, coded in enumerate(weight.coded):
        out[i] = values_of(scheme, coded)
    return out
