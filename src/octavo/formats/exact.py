"""Rows of checkpoints as GGUF's types that hold them value for value.

A type of 32 values with a float16 scale holds larger groups too, the scale once for each 32. A code less its zero point
is a code of a type with as many levels on both sides of 0: 4 bits with zero points fit Q5_0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from octavo.formats.codec import chunks, pack, unpack
from octavo.formats.qtensor import QTensor
from octavo.formats.spec import F32, AnyArray, BlockFormat, Planes
from octavo.formats.table import by_name

SYMMETRIC = ("Q4_0", "Q5_0", "Q8_0")
AFFINE = ("Q4_1", "Q5_1")
"""Types by size, without and with minima."""
BLOCK = 32
CHUNK_VALUES = 1 << 20


@dataclass
class _Needs:
    """What a type has to hold: the least and the largest code, and scales of float16."""

    least: int = 0
    largest: int = 0
    halves: bool = True

    def add(self, codes: AnyArray, planes: Planes) -> None:
        self.least, self.largest = min(self.least, int(codes.min())), max(self.largest, int(codes.max()))
        self.halves = self.halves and all(map(_is_half, (s for s in (planes.d, planes.dmin) if s is not None)))


def exact_type(tensor: QTensor) -> BlockFormat | None:
    """The smallest type of GGUF that holds a tensor exactly; None where there is none. All of the tensor is read."""
    fmt = tensor.format
    if fmt.gguf is not None:
        return fmt
    if fmt.number is not None or fmt.table is not None or fmt.folds or fmt.super != fmt.group or fmt.group % BLOCK:
        return None  # of groups of 16, too: no type has a scale for so few of codes that are integers
    needs = _Needs()
    for _, planes in _parts(tensor):
        needs.add(_codes(planes, fmt), planes)
        if not needs.halves:
            return None
    for name in AFFINE if fmt.has_min else SYMMETRIC:
        found = by_name(name)
        if -found.offset <= needs.least and needs.largest < (1 << found.bits) - found.offset:
            return found
    return None


def as_type(tensor: QTensor, target: BlockFormat) -> QTensor:
    """A tensor as the type that `exact_type` has found for it."""
    if tensor.format is target:
        return tensor
    out = np.empty((tensor.size // tensor.shape[-1], target.row_bytes(tensor.shape[-1])), np.uint8)
    times = tensor.format.group // BLOCK

    def each(plane: F32 | None) -> F32 | None:
        return None if plane is None else np.repeat(plane, times, axis=-1)

    for part, planes in _parts(tensor):
        q = (_codes(planes, tensor.format) + target.offset).astype(np.uint8)
        out[part] = pack(Planes(q, d=each(planes.d), dmin=each(planes.dmin)), target)
    return QTensor(target, tensor.shape, out.reshape(*tensor.shape[:-1], -1), tensor.name)


def _parts(tensor: QTensor) -> Iterator[tuple[slice, Planes]]:
    stored, k = tensor.stored(), tensor.shape[-1]
    for part in chunks(tensor.size // k, k, CHUNK_VALUES):
        rows = stored.rows(part)
        yield part, unpack(QTensor(tensor.format, (len(rows), k), rows))


def _codes(planes: Planes, fmt: BlockFormat) -> AnyArray:
    """Codes less their offset or zero point, int16 [N, K]."""
    codes = planes.q.astype(np.int16)
    if fmt.has_zero:
        assert planes.m is not None
        return codes - np.repeat(planes.m, fmt.group, axis=-1).astype(np.int16)
    return codes - np.int16(fmt.offset)


def _is_half(scales: F32) -> bool:
    with np.errstate(over="ignore"):
        return bool((scales.astype(np.float16).astype(np.float32) == scales).all())
