"""What each type would do to a weight: the error of its products over a text, as an encoder and as GPTQ leave it.

A type is judged by tr(E H E^T) over tr(W H W^T), with H the mean of x x^T over the inputs x that the text gives the
product: what reaches the rest of the model. An importance matrix knows only H's diagonal, which says little of types
whose errors GPTQ makes up for. Tokens that errors are counted on are others than those that codes are made by, which
would flatter GPTQ: it fits to them. A sample of a weight's rows is enough, as each row is made by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.calibrate.arrays import on_host
from octavo.calibrate.gguf.gguf_method import TIED
from octavo.calibrate.hessian import Hessian, factorize, weighed
from octavo.calibrate.methods.gptq import DAMP, gptq
from octavo.calibrate.methods.gptq.grid import grid_of
from octavo.calibrate.runner import Layerwise, OpenStage, ProductInput, Samples
from octavo.errors import about_tensor
from octavo.formats import BlockFormat, QTensor, dequantize
from octavo.formats.spec import F32
from octavo.graph.protocol import Backend
from octavo.models import ModelSpec
from octavo.quantizers.encoding.encoder import encode
from octavo.quantizers.imatrix import Imatrix

VALUES = 1 << 16
"""Values of a weight's rows that types are tried on."""
HELD_OUT = 4
"""One token in HELD_OUT is kept apart, for errors to be counted on."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TypeLoss:
    """Relative squared errors of a product's outputs with its weight in a type.

    encoded  by the encoder alone
    made     by GPTQ where the type has levels for it; else the same
    """

    encoded: float
    made: float


def type_errors(
    spec: ModelSpec, backends: Sequence[Backend], samples: Samples, offered: Mapping[str, Sequence[BlockFormat]], *,
    imatrix: Imatrix | None = None, compensated: bool = True, threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[str, dict[str, TypeLoss]]]:
    """By weight, and by each offered type but floats; weight after weight, as the model is run.

    compensated  GPTQ is tried too

    Weights that no product of the layers reads, and experts, are not among them. Raises as `Layerwise` does.
    """
    run = Layerwise(spec, backends, samples, progress=progress)
    left = set(offered)
    for stage in run.run():
        for given in stage.inputs:
            wanted = [name for name in given.names if name in left]
            if wanted and not given.experts:
                yield from _of_input(stage, given, wanted, offered, imatrix, compensated, threads)
        left.difference_update(name for given in stage.inputs for name in given.names)
        if not left:
            break


def _of_input(
    stage: OpenStage, given: ProductInput, names: Sequence[str], offered: Mapping[str, Sequence[BlockFormat]],
    imatrix: Imatrix | None, compensated: bool, threads: int | None,
) -> Iterator[tuple[str, dict[str, TypeLoss]]]:
    tokens = given.tokens()
    first = tokens - tokens // HELD_OUT
    hessian = on_host(given.part(slice(first)).hessian().matrix())
    judging = _counted(given.part(slice(first, tokens))) if first < tokens else hessian
    factor = factorize(hessian, "act", DAMP) if compensated else None
    for name in names:
        rows = _sampled(stage.weight(name))
        given_importance = None if imatrix is None else imatrix.importance(name, stage.tensor(name).shape)
        importance = np.asarray(
            hessian.diagonal() if given_importance is None else given_importance, np.float32
        ).reshape(-1)
        power = float(weighed(rows, judging).sum()) or 1.0
        errors = dict[str, TypeLoss]()
        for fmt in offered[name]:
            if fmt.is_float:
                continue
            with about_tensor(name):
                packed = [encode(rows, fmt, importance=importance, threads=threads)]
                if factor is not None and grid_of(fmt) is not None and name != TIED:
                    packed.append(
                        gptq(rows, hessian, fmt, importance=importance, factor=factor, threads=threads).packed
                    )
            lost = (dequantize(QTensor(fmt, rows.shape, each)) - rows for each in packed)
            found = [float(weighed(each, judging).sum()) / power for each in lost]
            errors[fmt.name] = TypeLoss(found[0], found[-1])
        yield name, errors


def _counted(given: ProductInput) -> Any:
    """The mean of x x^T over all vectors as they are, where a Hessian for codes leaves out what it does not trust."""
    sums = Hessian(given.size, given.label(), device=given.device)
    for x in given.batches():
        sums.add(x)
    return on_host(sums.matrix())


def _sampled(weight: F32) -> F32:
    """Some rows of a weight [N, K], evenly spaced."""
    n, k = weight.shape
    at = np.unique(np.linspace(0, n - 1, max(1, min(n, VALUES // k))).astype(np.int64))
    return np.ascontiguousarray(weight[at])
