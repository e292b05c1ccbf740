"""Weights in a checkpoint's scheme whose errors make up for each other."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from octavo.calibrate.hessian.factor import Factor
from octavo.calibrate.methods.gptq.gptq_quantize import gptq
from octavo.calibrate.methods.gptq.gptq_tiles import grid_of
from octavo.calibrate.torch_arrays import is_tensor, on_host
from octavo.formats import Planes
from octavo.formats.group import row_named
from octavo.formats.scalars import e4m3_to_f32
from octavo.formats.spec import F32, U8, BlockFormat
from octavo.huggingface.scheme_weight import Coded, factor_of, largest
from octavo.huggingface.schemes import CheckpointScheme

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.calibrate.hessian.torch_hessian import TorchFactor

PLAIN_GROUPS = "GROUP4_128_F32"
"""How a file stores rows with two levels of scales: both levels follow from its groups."""


E4M3_STEP = 2.0**-9
"""The least e4m3 number: all others are multiples of it."""
HALF = 127
"""Positive e4m3 numbers, 0 among them; bytes from 128 on are their negatives, and 127 is none."""
ROOM = 2
"""How much larger than a tensor's values those may be that make up for errors of the layers before."""


@cache
def e4m3_row(fmt: BlockFormat) -> BlockFormat:
    """A format of e4m3 numbers as one with a table: those from 0 on, then their negatives."""
    positive = tuple(int(x / E4M3_STEP) for x in e4m3_to_f32(np.arange(HALF, dtype=np.uint8)))
    plain = fmt.encode
    assert plain is not None

    def encode(row: BlockFormat, x: F32) -> Planes:
        planes = plain(fmt, x)
        return Planes(_entries(planes.q), d=planes.d)

    table = (*positive, *(-x for x in positive))
    return replace(fmt, name=f"{fmt.name}_LEVELS", number=None, table=table, step=E4M3_STEP, encode=encode)


def _entries(numbers: U8) -> U8:
    """e4m3 bytes as entries of the table."""
    return numbers - (numbers > HALF).astype(np.uint8)


def _numbers(entries: U8) -> U8:
    """The inverse of `_entries`."""
    return entries + (entries >= HALF).astype(np.uint8)


def gptq_row(scheme: CheckpointScheme, k: int) -> BlockFormat | None:
    """The format in which errors of rows of `k` values are made up for; None where nothing can do that."""
    fmt = scheme.format(k)
    if fmt.number is not None and not scheme.square:
        fmt = e4m3_row(fmt)
    fmt = row_named(PLAIN_GROUPS) if fmt.folds else fmt
    return None if k % 4 or grid_of(fmt) is None else fmt


def gptq_coded(
    scheme: CheckpointScheme, values: F32 | Tensor, hessian: npt.ArrayLike | Tensor, *, importance: F32 | None = None,
    cross: npt.ArrayLike | Tensor | None = None, factor: Factor | TorchFactor | None = None,
    threads: int | None = None,
) -> Coded:
    """Values [N, K] in a scheme that `gptq_row` has a format for. Arguments and errors as of `gptq`."""
    fmt = gptq_row(scheme, values.shape[1])
    assert fmt is not None
    most = float(values.abs().max()) if is_tensor(values) and len(values) else largest(on_host(values))
    multiplied = factor_of(scheme, (1 if cross is None else ROOM) * most)
    aims = values if multiplied == 1 else values * multiplied
    found = gptq(aims, hessian, fmt, importance=importance, cross=cross, factor=factor, threads=threads)
    planes = found.planes
    assert planes.d is not None
    q = planes.q if scheme.row != "FP8" else _numbers(planes.q)
    return Coded(q, planes.d, planes.m, multiplied)
