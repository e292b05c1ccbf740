"""Checkpoint folders with the shapes of real models and random weights, in the layouts that are published."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from octavo.bench.synthetic import ROWS_DRAWN, ModelShape, Progress, metadata, shape_of, tensors
from octavo.errors import UsageError
from octavo.formats import QTensor
from octavo.formats.rows import GROUP
from octavo.formats.spec import AnyArray
from octavo.huggingface.config.config_out import config_json
from octavo.huggingface.scheme_weight import Coded, nearest
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES, KEY, CheckpointScheme, checkpoint_scheme
from octavo.huggingface.tensors.tensor_names import is_linear
from octavo.huggingface.tokenizer.tokenizer_out import tokenizer_files
from octavo.huggingface.writers import find_writer
from octavo.io.atomic import failures_of, new_folder, require_new_folder, require_room
from octavo.io.gguf import GGUFFile, PlainMetadata, TensorInfo
from octavo.io.safetensors import TensorHead, write_safetensors
from octavo.io.safetensors.checkpoint import CONFIG, SINGLE
from octavo.io.safetensors.safetensors_file import FLOATS
from octavo.models import read_model
from octavo.quantizers.job.scheme_method import SchemeResult
from octavo.quantizers.schemes.checkpoint_folder import write_objects
from octavo.quantizers.schemes.scheme_tensors import CheckpointJob, CheckpointTarget

PLAIN = ("BF16", "F16")
"""Types of a folder whose matrices are not quantized."""
STEP = 1 / 32
"""A static scale of activations, which reaches 4 by int8 and 14 by e4m3."""


def is_folder(preset: str, path: str | os.PathLike[str]) -> bool:
    """Whether a preset at this path is a folder: a scheme, or one of PLAIN unless the path is a GGUF file's."""
    return preset in CHECKPOINT_SCHEMES or (preset.upper() in PLAIN and not os.fspath(path).endswith(".gguf"))


def make_folder(
    name: str, scheme: str, path: str | os.PathLike[str], *, layout: str = "compressed-tensors", static: bool = False,
    seed: int = 0, progress: Progress | None = None
) -> None:
    """Write a checkpoint of the shape called `name`, its linear layers in a scheme, the rest in BF16.

    scheme  one of CHECKPOINT_SCHEMES, or one of PLAIN for weights that are not quantized
    layout  one that holds the scheme, see `octavo.huggingface.writers.WRITERS`
    static  activations have one scale each, which is in the file

    Matrices of one shape have the same bytes in all layers, of rows that are drawn once and repeat. Raises UsageError
    for a shape or a scheme that is not known and for a layout that does not hold it, FileError for a path where no
    folder can be made or a disk without room for it.
    """
    shape, plain = shape_of(name), scheme.upper() in PLAIN
    if not plain and scheme not in CHECKPOINT_SCHEMES:
        raise UsageError(f"unknown scheme {scheme!r} (allowed: {', '.join((*PLAIN, *CHECKPOINT_SCHEMES))})")
    if static and (plain or "expert_count" in shape.keys):
        raise UsageError(f"static activations of {name} in {scheme} (allowed: of schemes, and without experts)")
    if plain and layout != "compressed-tensors":
        raise UsageError(f"layout {layout} does not hold {scheme.upper()}, which needs none")
    require_new_folder(path)
    writer = find_writer(layout)
    kind = writer.scheme(checkpoint_scheme("int8-w8a8" if plain else scheme))
    source = ShapeFile(name, shape, scheme.upper() if plain else "BF16", seed)
    if plain:
        kind = replace(kind, left=frozenset(filter(is_linear, source.tensors)))
    elif static:
        kind = writer.with_static(kind)
    job = CheckpointJob(CheckpointTarget(read_model(source), kind, writer, 1, False, None), SchemeResult(source))
    if static:
        job.given = {tensor: STEP for tensor in job.stored if kind.takes(tensor)}
    heads = job.heads({})
    require_room(path, sum(head.nbytes for head in heads))
    config = config_json(job.model) | ({} if plain else {KEY: job.config()})
    with failures_of(path), new_folder(path) as folder:
        arrays = _arrays(job, np.random.default_rng(seed))
        write_safetensors(os.path.join(folder, SINGLE), heads, _reported(heads, arrays, progress))
        write_objects(folder, {CONFIG: config, **tokenizer_files(source)})


class ShapeFile(GGUFFile):
    """A model of a shape that lies in no file: its tensors are made when they are asked for."""

    def __init__(self, name: str, shape: ModelShape, preset: str, seed: int) -> None:
        self.path, self.version, self.alignment, self._sources = name, 3, 32, {}
        self.metadata = PlainMetadata(name, {"general.architecture": shape.arch, **metadata(name, shape)})
        self._made = {part.name: part for part in tensors(shape, preset, seed)}
        self.tensors = {
            part.name: TensorInfo(part.name, part.shape, part.format.gguf or 0, 0, part.nbytes, name)
            for part in self._made.values()
        }

    def tensor(self, name: str, *, copy: bool = False) -> QTensor:
        """A tensor of random numbers."""
        return self._made[name].load()


def _arrays(job: CheckpointJob, rng: np.random.Generator) -> Iterator[AnyArray]:
    """The values of `job.heads`, made once for each shape and type."""
    made: dict[tuple[Any, ...], list[AnyArray]] = {}
    for name, stored in job.stored.items():
        shape, plain = job.file.tensors[name].shape, stored.format in FLOATS
        key = (shape[-2:], stored.format, plain and len(shape) == 1 and name)
        if key not in made:
            if plain:
                data = job.file.tensor(name).data
                made[key] = [data[0] if stored.experts else data]
            else:
                made[key] = list(job.writer.arrays(job.scheme, drawn(job.scheme, shape[-2], shape[-1], rng)))
        for _ in stored.names:
            yield from made[key]
        if name in job.given:
            yield np.array([job.given[name]], np.float32)


def drawn(scheme: CheckpointScheme, n: int, k: int, rng: np.random.Generator) -> Coded:
    """A weight [n, k] of normal numbers of deviation k^-0.5: rows that are drawn and rounded, again and again."""
    rows = min(n, GROUP if scheme.square else ROWS_DRAWN)
    few = nearest(scheme, rng.standard_normal((rows, k), dtype=np.float32) / np.float32(k**0.5))
    again = np.arange(n) % rows
    scales = np.repeat(few.scales, -(-n // GROUP), axis=0) if scheme.square else few.scales[again]
    return Coded(few.q[again], scales, None if few.zeros is None else few.zeros[again], few.factor)


def _reported(heads: list[TensorHead], arrays: Iterator[AnyArray], progress: Progress | None) -> Iterator[AnyArray]:
    """The same arrays, of each of which `progress` is told."""
    done, total = 0, sum(head.nbytes for head in heads)
    for values in arrays:
        yield values
        done += values.nbytes
        if progress is not None:
            progress(done, total)
