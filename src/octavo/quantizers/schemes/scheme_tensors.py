"""The tensors of a model on their way into a checkpoint of a scheme, in the order of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.errors import QuantFormatError, UsageError, about_tensor, shown
from octavo.formats import QTensor, by_name, dequantize, quantize_reference
from octavo.formats.spec import F32, AnyArray
from octavo.huggingface import CheckpointFile
from octavo.huggingface.scheme_weight import Coded, factor_of, joined, largest, nearest, row_parts, values_of
from octavo.huggingface.schemes import CheckpointScheme, checkpoint_scheme
from octavo.huggingface.tensors.tensor_names import (
    as_checkpoint,
    checkpoint_name,
    checkpoint_shape,
    of_expert,
    rows_apart,
)
from octavo.huggingface.writers import Writer
from octavo.io.gguf import GGUFFile
from octavo.io.safetensors import TensorHead
from octavo.io.safetensors.safetensors_file import FLOATS
from octavo.models import ModelSpec, read_model
from octavo.models.shared.weights import INPUT_SCALE, SCALE, scale_name, scale_of, weight_of
from octavo.quantizers.job.job_report import Report, TensorRow
from octavo.quantizers.job.recode import checked_copy
from octavo.quantizers.job.scheme_method import SchemeResult

Progress = Callable[[str, int, int], None]

REQUANTIZE = "; --allow-requantize (allow_requantize=True) does it"


@dataclass(frozen=True)
class TargetTensor:
    """What becomes of a tensor: its name, with * for an expert's number, its format in the result, and experts."""

    name: str
    format: str
    experts: int = 0

    @property
    def names(self) -> list[str]:
        """The names of its weights [N, K]: one, or one for each expert."""
        return [of_expert(self.name, i) for i in range(self.experts)] or [self.name]


@dataclass(frozen=True, eq=False)
class CheckpointTarget:
    """What is to be made of a model.

    source   the model as it was
    scheme, writer    of its linear layers, and the layout of the file
    threads  that round
    allow_requantize  quantized tensors may be quantized again
    progress is told a tensor's name, and values that were written, of how many
    """

    source: ModelSpec
    scheme: CheckpointScheme
    writer: Writer
    threads: int
    allow_requantize: bool
    progress: Progress | None


class CheckpointJob:
    """What is written of a model.

    prepared  what a method made of it: linear layers that it has nothing for are rounded to nearest

    Raises UsageError for tensors that are quantized already or have no place in a checkpoint, QuantFormatError for
    rows that the scheme can't hold.
    """

    def __init__(self, target: CheckpointTarget, prepared: SchemeResult) -> None:
        source = target.source.file
        self.target, self.prepared, self.scheme, self.writer = target, prepared, target.scheme, target.writer
        self.source, self.file = source, prepared.file
        self.model = target.source if prepared.file is source else read_model(prepared.file)
        self.schemes = _schemes(prepared, target.scheme)
        self.stored = {name: self._stored(name) for name in self.file.tensors if not _is_said_elsewhere(source, name)}
        self.given = {name: found.scale for found in prepared.inputs if found.used for name in found.names}
        self.total, self.done = sum(self.file.tensors[name].size for name in self.stored), 0

    def _stored(self, name: str) -> TargetTensor:
        info = self.file.tensors[name]
        was = self.source.tensors.get(name, self.source.tensors["token_embd.weight"]).type_name
        plain = was in FLOATS
        if not plain and not self.target.allow_requantize:
            problem = f"{self.file.path}: tensor {shown(name)} is {was}, and quantizing it again would add error"
            raise UsageError(f"{problem}{REQUANTIZE}")
        target = checkpoint_name(name, self.model.architecture)
        if target is None:
            where = f"a checkpoint of {self.model.hparams.arch}" if len(info.shape) == 3 else "a checkpoint"
            problem = f"has no place in {where} with a scheme, which would lose it"
            raise UsageError(f"{self.file.path}: tensor {shown(name)} {problem}")
        if not self.scheme.takes(name):
            changed = info.type_name if len(info.shape) == 1 else was  # matrices that were changed keep their type
            experts = info.shape[0] if name in self.scheme.left and len(info.shape) == 3 else 0
            return TargetTensor(target, changed if plain else "F16", experts)
        try:
            fmt = self.scheme_of(name).format(info.shape[-1])
            self.writer.require(info.shape[-2:])
            if len(info.shape) == 3 and info.shape[-1] % 32:
                raise QuantFormatError(f"experts with rows of {info.shape[-1]} values (allowed: multiples of 32)")
        except QuantFormatError as error:
            raise QuantFormatError(f"tensor {shown(name)}: {error}") from None
        return TargetTensor(target, fmt.name, info.shape[0] if len(info.shape) == 3 else 0)

    def scheme_of(self, name: str) -> CheckpointScheme:
        """A linear layer's."""
        return self.schemes.get(name, self.scheme)

    @property
    def ignored(self) -> list[str]:
        """Linear layers that stay as they are, by their names in the checkpoint: the output matrix, routers, and those
        that the scheme leaves."""
        routers = (stored.name for name, stored in self.stored.items() if "_gate_inp" in name)
        left = (each for name, stored in self.stored.items() if name in self.scheme.left for each in stored.names)
        names = (name.removesuffix(".weight") for name in (*routers, *left) if name.endswith(".weight"))
        return ["lm_head", *names]

    def heads(self, scales: Mapping[str, F32]) -> list[TensorHead]:
        """The tensors of the file to write, `scales` of caches among them."""
        heads: list[TensorHead] = []
        for name, stored in self.stored.items():
            shape = self.file.tensors[name].shape
            if stored.format in FLOATS:
                size = shape[-2:] if stored.experts else checkpoint_shape(name, shape)
                heads += [TensorHead(each, stored.format, size) for each in stored.names]
            for each in () if stored.format in FLOATS else stored.names:
                heads += self.writer.heads(each, self.scheme_of(name), shape[-2:])
            if name in self.given:
                heads.append(TensorHead(stored.name.removesuffix(".weight") + INPUT_SCALE, "F32", (1,)))
        return heads + [TensorHead(name, "F32", values.shape) for name, values in scales.items()]

    def config(self) -> dict[str, Any]:
        """The value of `quantization_config`: of static activations with groups for layers without any, or others."""
        config, linear = self.writer.config(self.scheme, self.ignored), list(filter(self.scheme.takes, self.stored))
        if not self.scheme.static:
            return config
        groups, others = config["config_groups"], dict.fromkeys(self.schemes.values())
        tokens = (replace(self.scheme, static=False), [name for name in linear if name not in self.given])
        for scheme, names in [tokens, *((each, [n for n in linear if self.schemes.get(n) == each]) for each in others)]:
            if names:
                group = self.writer.config(scheme, self.ignored)["config_groups"]["group_0"]
                targets = [each.removesuffix(".weight") for name in names for each in self.stored[name].names]
                groups[f"group_{len(groups)}"] = group | {"targets": targets}
        if len({group["format"] for group in groups.values()}) > 1:
            config["format"] = "mixed-precision"
        return config

    def arrays(self, report: Report, scales: Mapping[str, F32]) -> Iterator[AnyArray]:
        """The values of `heads`, each tensor made when its turn comes; rows are added to the report."""
        for name, stored in self.stored.items():
            self._advance(name, 0)
            made = self.prepared.made.get(name)
            if made is not None:
                for coded in made.coded:
                    yield from self.writer.arrays(self.scheme_of(name), self._in_order(name, coded))
                report.rows.append(self.row(name, made.error, made.before, made.how))
                yield from self._input_scale(name)
            else:
                tensor = as_checkpoint(self.file.tensor(name, copy=True), self.model)
                scale = scale_of(self.file, name)
                if stored.format in FLOATS:
                    report.rows.append(self.row(name))
                    data = self._float(tensor, stored.format, scale).data
                    yield from data if stored.experts else (data,)
                else:
                    yield from self._rounded(tensor, scale, report)
                    yield from self._input_scale(name)
            self._advance(name, self.file.tensors[name].size)
        yield from scales.values()

    def _input_scale(self, name: str) -> Iterator[F32]:
        """The static scale of a weight's activations, if it has one."""
        if name in self.given:
            yield np.array([self.given[name]], np.float32)

    def _rounded(self, tensor: QTensor, scale: F32 | None, report: Report) -> Iterator[AnyArray]:
        """The arrays of a weight that is rounded to nearest, expert by expert."""
        off = size = 0.0
        for part, of in _experts(tensor, scale):
            coded, wrong, right = self._nearest(part, of)
            off, size = off + wrong, size + right
            yield from self.writer.arrays(self.scheme_of(tensor.name), coded)
        report.rows.append(self.row(tensor.name, math.sqrt(off / size) if size else 0.0))

    def row(
        self, name: str, error: float | None = None, before: float | None = None, how: str | None = None
    ) -> TensorRow:
        """What becomes of a tensor."""
        info, stored = self.file.tensors[name], self.stored[name]
        was = self.source.tensors.get(name, info)
        plain = stored.format in FLOATS
        shape = info.shape[-2:]
        heads = (
            [TensorHead("", stored.format, info.shape)] if plain else
            self.writer.heads("", self.scheme_of(name), shape)
        )
        nbytes = sum(head.nbytes for head in heads) * (1 if plain else max(1, stored.experts))
        return TensorRow(
            name, info.shape, was.type_name, stored.format, was.nbytes, nbytes, error, before=before, how=how
        )

    def _in_order(self, name: str, coded: Coded) -> Coded:
        """Rows as a checkpoint has them."""
        parts = (None if x is None else rows_apart(name, self.model, x) for x in (coded.q, coded.zeros))
        q, zeros = parts
        assert q is not None
        scales = coded.scales if self.scheme.square else rows_apart(name, self.model, coded.scales)
        return Coded(q, scales, zeros, coded.factor)

    def _float(self, tensor: QTensor, name: str, scale: F32 | None) -> QTensor:
        """A tensor outside of linear layers, in a format of floats. Raises NonFiniteError naming it."""
        checked_copy(tensor)
        if tensor.format.name == name and scale is None:
            return tensor
        values = dequantize(tensor)
        return quantize_reference(values if scale is None else values * scale, by_name(name), tensor.name)

    def _nearest(self, tensor: QTensor, scale: F32 | None) -> tuple[Coded, float, float]:
        """Codes and scales of a weight [N, K] as the file has them, sum (x - x')^2 and sum x^2."""
        values = dequantize(tensor)
        values = values if scale is None else values * scale
        scheme = self.scheme_of(tensor.name)
        factor = factor_of(scheme, largest(values))

        def encode(part: slice) -> tuple[Coded, float, float]:
            coded = nearest(scheme, values[part], factor)
            off = values_of(scheme, coded) - values[part]
            return coded, _square_sum(off), _square_sum(values[part])

        with about_tensor(tensor.name), ThreadPoolExecutor(self.target.threads) as pool:
            parts = list(pool.map(encode, row_parts(*values.shape)))
        wrong, right = (math.fsum(column) for column in list(zip(*parts, strict=True))[1:])
        return joined([part for part, _, _ in parts]), wrong, right

    def _advance(self, name: str, values: int) -> None:
        self.done += values
        if self.target.progress is not None:
            self.target.progress(name, self.done, self.total)


def _schemes(prepared: SchemeResult, scheme: CheckpointScheme) -> dict[str, CheckpointScheme]:
    """The schemes of linear layers whose scheme is not that of the checkpoint, by name."""
    others = {found.scheme for found in prepared.inputs} - {scheme.name}
    kinds = {name: checkpoint_scheme(name).with_static() for name in others}
    return {name: kinds[found.scheme] for found in prepared.inputs if found.scheme in kinds for name in found.names}


def _experts(tensor: QTensor, scale: F32 | None) -> Iterator[tuple[QTensor, F32 | None]]:
    """A weight [N, K] and its scale; of a weight [E, N, K] those of each expert."""
    if len(tensor.shape) == 2:
        yield tensor, scale
        return
    data = tensor.data
    for i in range(tensor.shape[0]):
        one = QTensor(tensor.format, tensor.shape[1:], data[i], f"{tensor.name}, expert {i}")
        yield one, None if scale is None else scale[i : i + 1]


def _is_said_elsewhere(file: GGUFFile, name: str) -> bool:
    """Whether the checkpoint says what a tensor says elsewhere: divisors in config.json, scales in their weights."""
    divisors = isinstance(file, CheckpointFile) and name.startswith(("rope_freqs.", "rope_factors_"))
    return divisors or name.endswith(INPUT_SCALE) or (name.endswith(SCALE) and scale_name(weight_of(name)) == name)


def _square_sum(x: F32) -> float:
    return float(np.square(x, dtype=np.float64).sum())
