"""Weights of a stage in formats of GGUF, with errors that make up for each other over what the stage is given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.calibrate.arrays import each_plane, on_device, on_host
from octavo.calibrate.hessian import CrossHessian, Hessian, Matrix, factorize, weighed
from octavo.calibrate.methods.gptq import DAMP, gptq
from octavo.calibrate.methods.gptq.gptq_quantize import values_of_planes
from octavo.calibrate.methods.gptq.sweep import grid_of
from octavo.calibrate.runner import OpenStage, ProductInput
from octavo.errors import about_tensor, tensor_label
from octavo.formats import BlockFormat, QTensor, dequantize, unpack
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32, U8
from octavo.graph.node import Node
from octavo.graph.stages import PRODUCTS, Stage
from octavo.quantizers.encoding.encoder import encode
from octavo.quantizers.job.job_plan import QuantizeJob
from octavo.quantizers.job.method_result import GgufWeight, UndersampledExpert
from octavo.quantizers.statistics.outliers import channels

if TYPE_CHECKING:
    pass

VALUES = 1 << 22
"""Values of a table that are made at a time."""
NORMS = ("rms_norm", "layer_norm")
ALONG = ("add", "mul", "copy")
"""Ops that leave channels where they are."""


def embedding_rows(
    table: QTensor, fmt: BlockFormat, stages: Sequence[Stage], importance: F32 | None, threads: int | None
) -> GgufWeight | None:
    """A table [N, K] in a format, its rows one by one; None where no product of the first layer reads them."""
    metric = _metric(table.name, table.shape[-1], stages)
    if metric is None:
        return None
    factor, packed, sums = factorize(metric, "act", DAMP), [], np.zeros(3)
    for rows in _parts(table):
        with about_tensor(table.name):
            found = gptq(rows, metric, fmt, importance=importance, factor=factor, threads=threads)
        packed.append(found.packed)
        power = float(weighed(rows, metric).sum())
        sums += float(found.before.sum()), float(found.after.sum()), power
    before, after = (math.sqrt(lost / (sums[2] or 1.0)) for lost in sums[:2])
    return GgufWeight(np.concatenate(packed), after, before)


def _parts(table: QTensor) -> Iterator[F32]:
    step = max(1, VALUES // table.shape[-1])
    for start in range(0, table.shape[0], step):
        data = table.data[start : start + step]
        yield dequantize(QTensor(table.format, (len(data), table.shape[-1]), data))


def _metric(name: str, k: int, stages: Sequence[Stage]) -> Matrix | None:
    """[K, K], of a mean diagonal of 2: what errors of rows come to in the products that read them, and as they are."""
    total = np.zeros((k, k))
    for product in stages[1].products if len(stages) > 1 else ():
        passed = _passed(product.inputs[1], name)
        if passed is not None and len(passed) == product.inputs[0].tensor.shape[-1] == k:
            weight = _finite(product.inputs[0]).reshape(-1, k) * passed
            rows = Hessian(k, product.inputs[0].name, double=True)
            rows.add(weight)
            total += rows.matrix() / (rows.diagonal().sum() or 1.0)
    mean = total.trace() / k
    return total / mean + np.eye(k) if mean else None


def _finite(weight: Node) -> F32:
    """A weight's values. Raises NonFiniteError naming it."""
    values = dequantize(weight.tensor)
    require_finite(values, tensor_label(weight.name))
    return values


def _passed(node: Node, name: str) -> F32 | None:
    """What channels of rows of the table are multiplied with on their way to a node; None where none get there."""
    if node.op == "get_rows":
        table = node.inputs[0]
        return np.ones(table.tensor.shape[-1], np.float32) if table.op == "weight" and table.name == name else None
    if node.op in PRODUCTS or node.op not in (*NORMS, *ALONG):
        return None
    found = next((f for f in (_passed(i, name) for i in node.inputs) if f is not None), None)
    if found is None or node.op not in (*NORMS, "mul"):
        return found
    factors = [_finite(i).reshape(-1) for i in node.inputs[1:2] if i.op == "weight"]
    return found * factors[0] if factors and len(factors[0]) in (1, len(found)) else found


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
