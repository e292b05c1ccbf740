"""Rows that are looked up, with errors that make up for each other in the first products that read them.

A row e of an embedding goes through a norm with weights g into the products W of the first layer, each of which then
errs W (g * e') where the row errs e'. What a row loses is the sum of these squares, each product's counted alike, and
as much again for the error as it is, which the residual stream carries to all other layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from octavo.calibrate.hessian import Hessian, Matrix, factorize, weighed
from octavo.calibrate.methods.gptq import DAMP, gptq
from octavo.errors import about_tensor, tensor_label
from octavo.formats import BlockFormat, QTensor, dequantize
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32
from octavo.graph.node import Node
from octavo.graph.stages import PRODUCTS, Stage
from octavo.quantizers.job.gguf_method import GgufWeight

if TYPE_CHECKING:
    from collections.abc import Iterator

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
