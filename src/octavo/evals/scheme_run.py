"""A run of a scheme's method over a model: scales of channels first, then weights, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from octavo.errors import HostMemoryError
from octavo.evals.layerwise import Journal, Layerwise, Samples
from octavo.evals.layerwise.needs import Needs, at_work, needs
from octavo.evals.scheme_weights import made_weights
from octavo.evals.scheme_work import load_scales, load_stages, save_scales, save_stage
from octavo.evals.smoothing import smooth_model, with_scales
from octavo.formats.spec import F32
from octavo.graph.protocol import Backend
from octavo.graph.stages import Stage
from octavo.huggingface.coded import nearest, values_of
from octavo.huggingface.names import is_linear
from octavo.huggingface.schemes import CheckpointScheme
from octavo.io.gguf import GGUFFile
from octavo.io.memory import room
from octavo.models import read_model
from octavo.models.weights import scale_of
from octavo.quantizers.calibration import ChannelStatistics
from octavo.quantizers.job.prepared import MadeWeight, Scaled
from octavo.quantizers.smoothing import METHODS as SCALES
from octavo.quantizers.smoothing import best_of, tokens_fp8, tokens_int8

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class SchemeRun:
    """A method at work on a model.

    scales  the way in which scales of channels are chosen, by its name; None: channels stay as they are
    ways    in which weights are made
    kv      whether what caches hold is measured: their type, or None
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

    def scaled(self, journal: Journal) -> tuple[GGUFFile, tuple[Scaled, ...]]:
        """The file with scales of channels, and what was chosen; that of an earlier run, if it went so far."""
        if self.scales is None:
            return self.file, ()
        found = load_scales(journal.folder) if journal.stage else None
        if found is not None:
            return with_scales(self.file, found[0]), found[1]
        scheme = self.scheme
        made = smooth_model(
            self.file, self.backends, self.samples, best_of(SCALES) if self.scales == "auto" else SCALES[self.scales],
            lambda w: values_of(scheme, nearest(scheme, w)), _tokens(scheme),
        )  # fmt: skip
        how = self.scales
        choices = tuple(Scaled(c.fold, c.how or how, c.setting, c.before, c.after) for c in made.choices)
        save_scales(journal.folder, made.scales, choices)
        return made.file, choices

    def weights(self, file: GGUFFile, journal: Journal) -> tuple[dict[str, MadeWeight], dict[str, F32]]:
        """Weights of linear layers in the scheme, and the largest magnitudes of what heads' caches hold."""
        made, caches = load_stages(journal.folder, journal.stage)
        mine: dict[str, MadeWeight] = {}

        def done(stage: Stage, written: Mapping[str, ChannelStatistics]) -> None:
            largest = {name: found.absmax.max(axis=1) for name, found in written.items()} if self.kv else {}
            save_stage(journal.folder, stage.number, mine, largest)
            made.update(mine)
            caches.update(largest)
            mine.clear()

        run = Layerwise(
            read_model(file), self.backends, self.samples, original=self._original, journal=journal, done=done,
            progress=None if self.progress is None else self._tell,
        )  # fmt: skip
        for stage in run.run():
            for given in stage.inputs:
                names = [name for name in given.names if is_linear(name) and scale_of(file, name) is None]
                for name, weight in made_weights(stage, given, names, self.scheme, self.ways, self.threads):
                    values = [values_of(self.scheme, coded) for coded in weight.coded]
                    stage.replace(name, np.stack(values) if given.experts else values[0])
                    mine[name] = weight
        return made, caches

    def needs(self) -> Needs:
        """What the run takes: memory with all weights that were made, and disk and time without them."""
        run = Layerwise(read_model(self.file), self.backends, self.samples, original=self._original)
        takes = needs(run, hessians=True)
        shapes = [info.shape for name, info in self.file.tensors.items() if is_linear(name)]
        return replace(takes, memory=takes.memory + at_work(shapes) + self.coded_bytes())

    def coded_bytes(self) -> int:
        """Bytes of the weights in their scheme before they are packed."""
        shapes = [info.shape for name, info in self.file.tensors.items() if is_linear(name)]
        return sum(prod(shape) + 4 * prod(shape[:-1]) * self.scheme.groups(shape[-1]) for shape in shapes)

    def require_room(self) -> None:
        """Raise HostMemoryError where the memory does not hold what the run takes."""
        takes, there = self.needs().memory, room()
        if there is not None and takes > there.free + there.swap:
            free = f"{there.free + there.swap:,} are free; fewer samples take less"
            raise HostMemoryError(f"the method takes {takes:,} bytes of memory, and {free}")

    @property
    def _original(self) -> bool:
        return "qronos" in self.ways

    def _tell(self, done: int, total: int) -> None:
        assert self.progress is not None
        self.progress("calibration", done, total)


def _tokens(scheme: CheckpointScheme) -> Callable[[F32], F32]:
    """How a scheme rounds activations."""
    if not scheme.tokens or scheme.square:
        return lambda x: x
    return tokens_int8 if scheme.kind == "int" else tokens_fp8
