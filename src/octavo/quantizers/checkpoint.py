"""Checkpoints whose linear layers are quantized with 8-bit activations in mind, as compressed-tensors lays them out.

Rounding is to the nearest; what calibrates comes on top of it. A model goes through GGUF's names, whatever it was, so
one way leads from GGUF files and from checkpoint folders to a folder.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.backends.cores import threads_of
from octavo.errors import FileError, NonFiniteError, QuantFormatError, UsageError, shown
from octavo.formats import QTensor, by_name, channel_format, decode, dequantize, quantize_reference, unpack
from octavo.formats.channel import group_scales
from octavo.formats.codec import chunks
from octavo.formats.rows import Scheme, find_scheme
from octavo.formats.spec import F32, U8, AnyArray
from octavo.huggingface import CheckpointFile, open_model_file
from octavo.huggingface.compressed_out import module_arrays, module_heads
from octavo.huggingface.config_out import config_json, generation_config
from octavo.huggingface.folder import read_folder
from octavo.huggingface.layouts.compressed_weights import row_planes
from octavo.huggingface.names import as_checkpoint, checkpoint_name, is_linear
from octavo.huggingface.schemes import KEY, quantization_config
from octavo.huggingface.tokenizer_out import tokenizer_files
from octavo.io.atomic import new_folder, require_room
from octavo.io.gguf import GGUFFile
from octavo.io.named import resolve
from octavo.io.safetensors import TensorHead, write_safetensors
from octavo.io.safetensors.checkpoint import CONFIG, SINGLE
from octavo.io.safetensors.file import FLOATS
from octavo.models import ModelSpec, read_model
from octavo.models.weights import INPUT_SCALE, SCALE, scale_of
from octavo.quantizers.job.report import Report, TensorRow

_log = logging.getLogger(__name__)

StrPath = str | os.PathLike[str]
Progress = Callable[[str, int, int], None]

CARRIED = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
"""Files of a checkpoint that go with its weights."""
REQUANTIZE = "; --allow-requantize (allow_requantize=True) does it"
SLAB = 1 << 20
"""Values that a thread encodes at a time."""


def quantize_checkpoint(
    src: StrPath,
    dst: StrPath,
    scheme: str,
    *,
    allow_requantize: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Quantize the linear layers of a dense model into the new folder `dst`, readable by compressed-tensors and vLLM.

    src               a GGUF file, a checkpoint folder, or "demo"
    scheme            "int8-w8a8", "w4a8", "w4a8-g128" or "fp8", see `octavo.huggingface.SCHEMES`
    allow_requantize  quantized tensors may be quantized again, at a loss
    dry_run           nothing is written; the report has types and sizes

    The embedding, the output matrix and vectors stay as they are. Holds a tensor at a time; `dst` appears when all of
    it is written and was read again. Raises what opening `src` raises, UsageError for what does not go together,
    FileError where `dst` has something in it or can't be written, ModelError for a model with experts, NonFiniteError
    and QuantFormatError for values that can't be stored.
    """
    kind = find_scheme(scheme)
    count = threads_of(threads)
    _require_new(dst)
    with open_model_file(resolve(src)) as file:
        model = read_model(file)
        config = _config(model, kind, allow_requantize)
        job = _Job(model, kind, count, allow_requantize, progress)
        report = Report(file.path, os.fsdecode(dst), scheme, dry_run)
        if dry_run:
            report.rows.extend(job.row(name) for name in job.stored)
            return report
        require_room(dst, sum(head.nbytes for head in job.heads()))
        others = {CONFIG: config} | _tokenizer(file)
        try:
            with new_folder(dst) as folder:
                write_safetensors(os.path.join(folder, SINGLE), job.heads(), job.arrays(report))
                _write_others(folder, file, others)
                read_folder(folder)
        except OSError as error:
            raise FileError(f"can't be written: {error.strerror}", file=dst) from None
    return report


def _require_new(dst: StrPath) -> None:
    if not os.fspath(dst):
        raise UsageError("the destination has no name; name a folder that is new or empty")
    parent = os.path.dirname(os.path.realpath(dst))
    if not os.path.isdir(parent):
        raise FileError(f"there is no folder {parent}", file=dst, allowed="a new folder in one that exists")
    if os.path.lexists(dst) and not (os.path.isdir(dst) and not os.listdir(dst)):
        problem = "has files in it" if os.path.isdir(dst) else "is a file"
        raise FileError(problem, file=dst, allowed="a folder that is new or empty")


def _config(model: ModelSpec, scheme: Scheme, allow_requantize: bool) -> dict[str, Any]:
    """config.json of what is written. Raises ModelError for a model that has none, UsageError for a quantized one."""
    file, experts = model.file, model.hparams.n_expert
    config = dict(file.folder.config.values) if isinstance(file, CheckpointFile) else config_json(model)
    if config.get(KEY) is not None and not allow_requantize:
        raise UsageError(f"{file.path} is quantized already, and quantizing it again loses more{REQUANTIZE}")
    if experts:
        raise UsageError(f"{file.path} has {experts} experts, which schemes are not made for")
    return config | {KEY: quantization_config(scheme, ["lm_head"])}


def _tokenizer(file: GGUFFile) -> dict[str, dict[str, Any]]:
    """Files that a checkpoint needs and a GGUF file has as metadata, by name; none for a checkpoint."""
    if isinstance(file, CheckpointFile):
        return {}
    sampling = generation_config(file)
    return tokenizer_files(file) | ({"generation_config.json": sampling} if sampling else {})


def _write_others(folder: str, file: GGUFFile, made: dict[str, dict[str, Any]]) -> None:
    """The files that were made, and those that a checkpoint has beside its weights."""
    if isinstance(file, CheckpointFile):
        checkpoint = file.folder.checkpoint
        for name in CARRIED:
            if os.path.isfile(checkpoint.path(name)):
                shutil.copyfile(checkpoint.path(name), os.path.join(folder, name))
    for name, values in made.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
            json.dump(values, out, indent=2, ensure_ascii=False)
            out.write("\n")


def _said(file: GGUFFile, name: str) -> bool:
    """Whether the checkpoint says what a tensor says elsewhere: divisors in config.json, scales in their weights."""
    divisors = isinstance(file, CheckpointFile) and name.startswith(("rope_freqs.", "rope_factors_"))
    return divisors or name.endswith((SCALE, INPUT_SCALE))


@dataclass(frozen=True)
class _Stored:
    """What becomes of a tensor: its name, and its format in the result."""

    name: str
    format: str


class _Job:
    """The tensors of a model on their way into a checkpoint, in the order of the model."""

    def __init__(
        self, model: ModelSpec, scheme: Scheme, threads: int, allow_requantize: bool, progress: Progress | None
    ) -> None:
        self.model, self.scheme, self.threads, self.progress = model, scheme, threads, progress
        self.file = file = model.file
        self.stored = {name: self._stored(name, allow_requantize) for name in file.tensors if not _said(file, name)}
        self.total, self.done = sum(file.tensors[name].size for name in self.stored), 0

    def _stored(self, name: str, allow_requantize: bool) -> _Stored:
        info = self.file.tensors[name]
        plain = info.type_name in FLOATS
        if not plain and not allow_requantize:
            problem = f"{self.file.path}: tensor {shown(name)} is {info.type_name}, and quantizing it again loses more"
            raise UsageError(f"{problem}{REQUANTIZE}")
        target = checkpoint_name(name, self.model.architecture)
        if target is None:
            raise UsageError(
                f"{self.file.path}: tensor {shown(name)} has no place in a checkpoint, which would lose it"
            )
        if not is_linear(name):
            return _Stored(target, info.type_name if plain else "F16")
        try:
            channel_format(self.scheme.format, info.shape[-1])
        except QuantFormatError as error:
            raise QuantFormatError(f"tensor {shown(name)}: {error}") from None
        return _Stored(target, self.scheme.format)

    def heads(self) -> list[TensorHead]:
        """The tensors of the file to write."""
        heads: list[TensorHead] = []
        for name, stored in self.stored.items():
            shape = self.file.tensors[name].shape
            if stored.format in FLOATS:
                heads.append(TensorHead(stored.name, stored.format, shape))
            else:
                heads += module_heads(stored.name, self.scheme, shape)
        return heads

    def arrays(self, report: Report) -> Iterator[AnyArray]:
        """The values of `heads`, each tensor made when its turn comes; rows are added to the report."""
        for name, stored in self.stored.items():
            self._advance(name, 0)
            tensor = as_checkpoint(self.file.tensor(name, copy=True), self.model)
            scale = scale_of(self.file, name)
            if stored.format in FLOATS:
                error = None
                yield self._float(tensor, stored.format, scale).data
            else:
                codes, scales, error = self._quantized(tensor, scale)
                yield from module_arrays(self.scheme, codes, scales)
            report.rows.append(self.row(name, error))
            self._advance(name, self.file.tensors[name].size)

    def row(self, name: str, error: float | None = None) -> TensorRow:
        """What becomes of a tensor."""
        info, stored = self.file.tensors[name], self.stored[name]
        plain = stored.format in FLOATS
        heads = [TensorHead("", stored.format, info.shape)] if plain else module_heads("", self.scheme, info.shape)
        nbytes = sum(head.nbytes for head in heads)
        return TensorRow(name, info.shape, info.type_name, stored.format, info.nbytes, nbytes, error)

    def _float(self, tensor: QTensor, name: str, scale: F32 | None) -> QTensor:
        if tensor.format.name == name and scale is None:
            return tensor
        values = dequantize(tensor)
        return quantize_reference(values if scale is None else values * scale, by_name(name), tensor.name)

    def _quantized(self, tensor: QTensor, scale: F32 | None) -> tuple[U8, F32, float]:
        """Codes uint8 [N, K] and scales as the file has them, and the root of sum (x - x')^2 / sum x^2."""
        n, k = tensor.shape
        fmt = channel_format(self.scheme.format, k)
        codes, scales = np.empty((n, k), np.uint8), np.empty((n, k // fmt.group), np.float32)

        def encode(part: slice) -> tuple[float, float]:
            values = dequantize(QTensor(tensor.format, (part.stop - part.start, k), tensor.data[part]))
            values = values if scale is None else values * scale
            planes = unpack(quantize_reference(values, fmt))
            assert planes.d is not None
            codes[part], scales[part] = planes.q, group_scales(values) if fmt.folds else planes.d
            got = decode(row_planes(fmt, codes[part], scales[part]), fmt)
            return _square_sum(got - values), _square_sum(values)

        try:
            with ThreadPoolExecutor(self.threads) as pool:
                sums = list(pool.map(encode, chunks(n, k, SLAB)))
        except (NonFiniteError, QuantFormatError) as error:
            raise type(error)(f"tensor {shown(tensor.name)}: {error}") from None
        wrong, right = (math.fsum(column) for column in zip(*sums, strict=True))
        return codes, scales, math.sqrt(wrong / right) if right else 0.0

    def _advance(self, name: str, values: int) -> None:
        self.done += values
        if self.progress is not None:
            self.progress(name, self.done, self.total)


def _square_sum(x: F32) -> float:
    return float(np.square(x, dtype=np.float64).sum())
