"""Weights in a checkpoint's scheme whose errors make up for each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.formats import QTensor, unpack
from octavo.formats.group import row_named
from octavo.formats.spec import F32, BlockFormat
from octavo.huggingface.coded import Coded, factor_of
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.compensation.compensate import compensate
from octavo.quantizers.compensation.planes import grid_of

PLAIN_GROUPS = "GROUP4_128_F32"
"""Of rows with two levels of scales: what a file has, from which both levels follow."""


def compensated_row(scheme: CheckpointScheme, k: int) -> BlockFormat | None:
    """The format in which errors of rows of `k` values are made up for; None where nothing can do that."""
    fmt = scheme.format(k)
    fmt = row_named(PLAIN_GROUPS) if fmt.folds else fmt
    return None if k % 4 or grid_of(fmt) is None else fmt


def compensated(
    scheme: CheckpointScheme, values: F32, hessian: npt.ArrayLike, *, cross: npt.ArrayLike | None = None,
    threads: int | None = None,
) -> Coded:  # fmt: skip
    """Values [N, K] in a scheme that `compensated_row` has a format for. Arguments and errors as of `compensate`."""
    n, k = values.shape
    fmt = compensated_row(scheme, k)
    assert fmt is not None
    factor = factor_of(scheme, float(np.abs(values).max(initial=0)))
    found = compensate(values * np.float32(factor), hessian, fmt, cross=cross, threads=threads)
    planes = unpack(QTensor(fmt, (n, k), found.packed))
    assert planes.d is not None
    return Coded(planes.q, planes.d, planes.m, factor)
