"""Statistics of a model's products and caches over a text, and the file that they are kept in.

The file is a safetensors file. Of each distinct input of products it has, under the name of the first weight that reads
it, NAME.FIELD [K] or [experts, K] for each of `channels.FIELDS` and NAME.tokens [1] or [experts]. Caches are called as
in "blk.0.cache_k", with fields [heads, D], and may have NAME.clip [heads], the magnitudes that are best cut off at.
Metadata say of which text they are; "shared" is a JSON object of other weights and the first that reads the same.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from octavo.errors import FileError, UsageError, shown
from octavo.formats.spec import F32, AnyArray
from octavo.io.atomic import written_file
from octavo.io.safetensors import SafetensorsFile, TensorHead, write_safetensors
from octavo.quantizers.statistics.channels import FIELDS, ChannelStatistics

KIND = "calibration"
TOKENS, CLIP = ".tokens", ".clip"


@dataclass(eq=False)
class Statistics:
    """What a model's products are given, and what its caches hold.

    inputs  by the first weight that reads them; a row for each expert, or one
    shared  other weights that read the same, and that first one
    caches  by name; a row for each head
    about   what is known of the run: names and text
    path    of the file that they were read from
    clips   of caches, magnitudes float32 [heads] at which int8 is best cut off, if they were looked for
    """

    inputs: dict[str, ChannelStatistics] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    caches: dict[str, ChannelStatistics] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    path: str | None = None
    clips: dict[str, F32] = field(default_factory=dict)

    def of(self, weight: str) -> ChannelStatistics:
        """Statistics of what a weight is given. Raises FileError where there are none."""
        first = self.shared.get(weight, weight)
        if first not in self.inputs:
            raise FileError("has no statistics", file=self.path, field=f"weight {shown(weight)}")
        return self.inputs[first]

    def starved(self) -> list[tuple[str, int, int]]:
        """Experts with too few tokens to go by: input, expert and tokens, of those with fewer tokens than channels."""
        return [
            (name, expert, int(tokens))
            for name, found in self.inputs.items()
            if len(found.tokens) > 1
            for expert, tokens in enumerate(found.tokens)
            if tokens < found.shape[1]
        ]

    def merge(self, other: Statistics) -> None:
        """Count another part of the same model's, or the same inputs over another text.

        Raises UsageError where the two are of different models.
        """
        for mine, more in ((self.inputs, other.inputs), (self.caches, other.caches)):
            for name, statistics in more.items():
                if name in mine:
                    mine[name].merge(statistics)
                else:
                    mine[name] = statistics
        self.clips.update(other.clips)
        for weight, first in other.shared.items():
            if self.shared.setdefault(weight, first) != first:
                raise UsageError(f"{weight} shares its input with {self.shared[weight]} and with {first}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all. Raises FileError."""
        heads, data = list[TensorHead](), list[AnyArray]()
        for name, statistics in (self.inputs | self.caches).items():
            flat = name in self.inputs and len(statistics.tokens) == 1
            fields = [values[0] if flat else values for values in statistics.fields().values()]
            heads += [TensorHead(f"{name}.{k}", "F32", v.shape) for k, v in zip(FIELDS, fields, strict=True)]
            heads.append(TensorHead(name + TOKENS, "I64", statistics.tokens.shape))
            data += [*fields, statistics.tokens]
        heads += [TensorHead(name + CLIP, "F32", values.shape) for name, values in self.clips.items()]
        data += self.clips.values()
        about = {**self.about, "kind": KIND, "shared": json.dumps(self.shared)}
        with written_file(path) as temporary:
            write_safetensors(temporary, heads, iter(data), about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file. Raises FileError naming the file and the tensor for one that is not of this kind, or wrong."""
        file = SafetensorsFile.open(path)
        if file.metadata.get("kind") != KIND:
            raise FileError("holds no statistics", file=path, field="metadata 'kind'", allowed=repr(KIND))
        shared = _shared(file)
        about = {k: v for k, v in file.metadata.items() if k not in ("kind", "shared", "format")}
        made = cls({}, shared, {}, about, os.fsdecode(path))
        for tensor in [t for t in file.tensors if t.endswith(TOKENS)]:
            name = tensor.removesuffix(TOKENS)
            (made.inputs if name.endswith(".weight") else made.caches)[name] = _read(file, name)
        made.clips = {
            name: _read_clips(file, name, made.caches[name]) for name in made.caches if name + CLIP in file.tensors
        }
        missing = next((first for first in shared.values() if first not in made.inputs), None)
        if missing is not None:
            raise FileError("has no statistics", file=path, field=f"tensor {shown(missing)}")
        return made


def _shared(file: SafetensorsFile) -> dict[str, str]:
    """Which weights read the same as another one."""
    try:
        shared = json.loads(file.metadata["shared"])
    except (KeyError, ValueError, RecursionError):
        shared = None
    if not (isinstance(shared, dict) and all(isinstance(first, str) for first in shared.values())):
        raise FileError("is not a JSON object of names", file=file.path, field="metadata 'shared'")
    return shared


def _read_clips(file: SafetensorsFile, name: str, cache: ChannelStatistics) -> F32:
    """Magnitudes of a cache's heads, checked."""
    values = file.tensors[name + CLIP].floats()
    if values.shape != cache.shape[:1] or not (np.isfinite(values) & (values >= 0)).all():
        allowed = f"finite numbers [{cache.shape[0]}], 0 or more"
        raise FileError("holds no magnitudes", file=file.path, field=f"tensor {shown(name + CLIP)}", allowed=allowed)
    return values


def _read(file: SafetensorsFile, name: str) -> ChannelStatistics:
    """Statistics of a file, checked."""

    def fault(key: str, problem: str, allowed: str) -> FileError:
        return FileError(problem, file=file.path, field=f"tensor {shown(f'{name}.{key}')}", allowed=allowed)

    tokens = file.tensors[name + TOKENS]
    if tokens.dtype != "I64" or len(tokens.shape) != 1 or not tokens.shape[0] or (tokens.array() < 0).any():
        raise fault("tokens", "holds no counts", "I64 [rows], 0 or more")
    fields = {}
    for key in FIELDS:
        stored = file.tensors.get(f"{name}.{key}")
        if stored is None:
            raise fault(key, "is missing", "all of " + ", ".join(FIELDS))
        values = stored.floats()
        values = values[None] if values.ndim == 1 else values
        if values.ndim != 2 or len(values) != tokens.shape[0] or not np.isfinite(values).all():
            raise fault(key, f"holds {list(stored.shape)}, or values that are not finite", "finite numbers [rows, K]")
        fields[key] = values
    if len({values.shape for values in fields.values()}) > 1:
        raise fault(FIELDS[0], "is of another shape than the other fields", "one shape")
    if any((fields[key] < 0).any() for key in ("absmax", "mean_abs", "mean_square")):
        raise fault("absmax", "or what is like it is below 0", "0 or more")
    return ChannelStatistics.of(fields, tokens.array(), name)
