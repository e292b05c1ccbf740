"""What a run of a scheme's method leaves in its folder, so that one that was killed goes on from there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, overload

import numpy as np

from octavo.calibrate.runner.stage_files import read_file, stage_files, stage_path, write_file
from octavo.formats.spec import F32, AnyArray
from octavo.huggingface.scheme_weight import Coded
from octavo.io.safetensors import StoredTensor
from octavo.quantizers.job.quantization_record import (
    JsonFields,
    channel_values,
    channels_of,
    scaled_of,
    scaled_values,
    starved_of,
    starved_values,
)
from octavo.quantizers.job.scheme_method import FoldScales, SchemeWeight, StaticInput

SCALES = "scales.safetensors"


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


class StoredCodes(Sequence[Coded]):
    """A weight, or those of its experts, in a file, from which each is read whenever it is asked for."""

    def __init__(self, tensors: Mapping[str, StoredTensor], name: str, factors: Sequence[float]) -> None:
        self._tensors, self._name, self._factors = tensors, name, factors

    def __len__(self) -> int:
        return len(self._factors)

    @overload
    def __getitem__(self, i: int) -> Coded: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Coded]: ...
    def __getitem__(self, i: int | slice) -> Coded | Sequence[Coded]:
        if isinstance(i, slice):
            return [self[at] for at in range(len(self))[i]]
        at = range(len(self))[i]
        return _coded(self._tensors, f"{at} {self._name}", self._factors[at])


def save_stage(folder: str, number: int, done: StageResults) -> None:
    """Write what a stage came to; its weights are in the file from then on, and no longer in memory."""
    made, caches = done.made, done.caches
    arrays: dict[str, AnyArray] = {f"cache {name}": values for name, values in caches.items()}
    told: dict[str, list[Any]] = {}
    for name, weight in made.items():
        for i, coded in enumerate(weight.coded):
            parts: dict[str, AnyArray | None] = {"q": coded.q, "scales": coded.scales, "zeros": coded.zeros}
            arrays |= {f"{end} {i} {name}": values for end, values in parts.items() if values is not None}
        seen = {"tried": dict(weight.tried), **channel_values(weight.channels), **starved_values(weight.starved)}
        told[name] = [[coded.factor for coded in weight.coded], weight.error, weight.before, weight.how, seen]
    if arrays:
        inputs = [asdict(found) for found in done.inputs]
        write_file(stage_path(folder, number), arrays, {"made": told, "inputs": inputs})
        stored = read_file(stage_path(folder, number))[0].tensors
        for name, weight in made.items():
            codes = StoredCodes(stored, name, [coded.factor for coded in weight.coded])
            made[name] = replace(weight, coded=codes)


def load_stages(folder: str, first: int) -> StageResults:
    """What `save_stage` wrote of the stages before `first`."""
    done = StageResults()
    for file, about in stage_files(folder, first):
        tensors = file.tensors
        for name, (factors, error, before, how, seen) in about["made"].items():
            at, codes = JsonFields(seen, file.path, ""), StoredCodes(tensors, name, factors)
            done.made[name] = SchemeWeight(codes, error, before, how, seen["tried"], channels_of(at), starved_of(at))
        done.inputs.extend(StaticInput(**{**row, "names": tuple(row["names"])}) for row in about["inputs"])
        done.caches.update(
            (name.removeprefix("cache "), t.floats()) for name, t in tensors.items() if name.startswith("cache ")
        )
    return done


def _coded(tensors: Mapping[str, StoredTensor], name: str, factor: float) -> Coded:
    zeros = tensors[f"zeros {name}"].array() if f"zeros {name}" in tensors else None
    return Coded(tensors[f"q {name}"].array(), tensors[f"scales {name}"].floats(), zeros, factor)


def save_scales(folder: str, scales: Mapping[str, F32], chosen: Sequence[FoldScales]) -> None:
    """Write the scales of channels, by the names of their folds, and what is told of them."""
    arrays = {"none": np.zeros(1, np.float32), **scales}
    write_file(os.path.join(folder, SCALES), arrays, list(map(scaled_values, chosen)))


def load_scales(folder: str) -> tuple[dict[str, F32], tuple[FoldScales, ...]] | None:
    """What `save_scales` wrote; None where nothing is."""
    if not os.path.exists(os.path.join(folder, SCALES)):
        return None
    file, about = read_file(os.path.join(folder, SCALES))
    scales = {name: tensor.floats() for name, tensor in file.tensors.items() if name != "none"}
    return scales, tuple(scaled_of(JsonFields(row, file.path, "")) for row in about)
