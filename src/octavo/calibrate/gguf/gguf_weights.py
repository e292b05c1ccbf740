"""Weights of a stage in formats of GGUF, with errors that make up for each other over what the stage is given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from octavo.calibrate.arrays import each_plane, on_device, on_host
from octavo.calibrate.hessian import CrossHessian, factorize, weighed
from octavo.calibrate.methods.gptq import DAMP, gptq
from octavo.calibrate.methods.gptq.gptq_quantize import values_of_planes
from octavo.calibrate.methods.gptq.sweep import grid_of
from octavo.calibrate.runner import OpenStage, ProductInput
from octavo.errors import about_tensor
from octavo.formats import QTensor, dequantize, unpack
from octavo.formats.spec import F32, U8
from octavo.quantizers.encoding.encoder import encode
from octavo.quantizers.job.gguf_method import GgufWeight
from octavo.quantizers.job.job_plan import QuantizeJob
from octavo.quantizers.job.undersampled import UndersampledExpert
from octavo.quantizers.statistics.outliers import channels

TIED = "token_embd.weight"
"""The embedding: its rows are looked up, and no Hessian tells what errors cost there, also where it is the output."""


def stage_weights(
    job: QuantizeJob, stage: OpenStage, *, corrects: bool, threads: int | None
) -> Iterator[tuple[str, GgufWeight]]:
    """The stage's weights in their formats, put in their places in the run.

    corrects  errors are those against what the original model gives
    """
    for given in stage.inputs:
        wanted = [name for name in given.names if takes_gptq(job, name)]
        parts: dict[str, list[_GgufPart]] = {name: [] for name in wanted}
        met = channels(given.absmax()) if wanted else None
        for expert in (range(given.experts) or (None,)) if wanted else ():
            for name, part in _of_input(job, stage, given, expert, wanted, corrects, threads):
                parts[name].append(part)
        for name, found in parts.items():
            shape = stage.tensor(name).shape
            packed = np.stack([part.packed for part in found]).reshape(*shape[:-1], -1)
            fmt = job.types[name]
            stage.replace(name, _placed(QTensor(fmt, shape, packed, name), stage.device))
            sums = [sum(column) for column in zip(*(part.sums for part in found), strict=True)]
            signal = sums[2] or 1.0
            starved = tuple(part.starved for part in found if part.starved is not None)
            yield name, GgufWeight(packed, math.sqrt(sums[1] / signal), math.sqrt(sums[0] / signal), met, starved)


def _of_input(
    job: QuantizeJob, stage: OpenStage, given: ProductInput, expert: int | None, names: list[str], corrects: bool,
    threads: int | None,
) -> Iterator[tuple[str, _GgufPart]]:
    """Of an input, or an expert's, each weight that reads it."""
    sums = given.cross(expert) if corrects else given.hessian(expert)
    tokens, matrix = sums.tokens, (sums.hessian if isinstance(sums, CrossHessian) else sums).matrix()
    cross = sums.cross() if isinstance(sums, CrossHessian) else None
    factor = factorize(matrix, "act", DAMP) if expert is None or tokens >= given.size else None
    starved = None
    if factor is None and expert is not None:
        starved = UndersampledExpert(given.names[0], expert, tokens, "the encoder alone")
    for name in names:
        weight, fmt, shape = stage.part(name, expert), job.types[name], stage.tensor(name).shape
        weights, power = importance_of(job, name, shape, expert), _output_power(weight, matrix)
        if factor is None:
            values, diagonal = on_host(weight), on_host(matrix.diagonal())
            weights = diagonal if weights is None and tokens else weights
            with about_tensor(name, expert):
                packed = encode(values, fmt, importance=weights, threads=threads)
            lost = _output_power(dequantize(QTensor(fmt, values.shape, packed)) - values, on_host(matrix))
            yield name, _GgufPart(packed, (lost, lost, power), starved)
            continue
        with about_tensor(name, expert):
            found = gptq(weight, matrix, fmt, importance=weights, cross=cross, factor=factor, threads=threads)
        yield name, _GgufPart(found.packed, (float(found.before.sum()), float(found.after.sum()), power))


@dataclass(frozen=True, eq=False)
class _GgufPart:
    """Packed rows [N, bytes], and sums of squares: errors before and after, and what products give."""

    packed: U8
    sums: tuple[float, float, float]
    starved: UndersampledExpert | None = None


def _output_power(weight: Any, hessian: Any) -> float:
    """The mean square of what a product of weights [N, K] gives, added up over N."""
    return float(weighed(weight, hessian).sum())


def _placed(stored: QTensor, device: str | None) -> Any:
    """The values of a weight where weights are made."""
    if device is None or stored.format.pack is None:
        return dequantize(stored)
    flat = QTensor(
        stored.format, (prod(stored.shape[:-1]), stored.shape[-1]), stored.data.reshape(-1, stored.data.shape[-1])
    )
    planes = each_plane(lambda x: on_device(x, device), unpack(flat))
    return values_of_planes(planes, stored.format).reshape(stored.shape)


def takes_gptq(job: QuantizeJob, name: str) -> bool:
    """Whether a weight is one that errors are made up for in, if a product reads it."""
    return name != TIED and _has_levels(job, name)


def is_embedding(job: QuantizeJob, name: str) -> bool:
    """Whether a weight is one whose rows are looked up, and made so that their errors make up for each other."""
    return name == TIED and _has_levels(job, name)


def _has_levels(job: QuantizeJob, name: str) -> bool:
    if name not in job.types or grid_of(job.types[name]) is None:
        return False
    return all(tensor.scale is None for tensor in job.source.tensors if tensor.name == name)


def importance_of(job: QuantizeJob, name: str, shape: tuple[int, ...], expert: int | None) -> F32 | None:
    found = None if job.imatrix is None else job.imatrix.importance(name, shape)
    return found if found is None or expert is None else found[expert]
