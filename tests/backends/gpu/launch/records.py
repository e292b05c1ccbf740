"""A kernel, and one in Gluon, whose arguments are records: what `gpu.launch.arguments` says they may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.backends.gpu.launch.arguments import Constant, Matrix


@dataclass(frozen=True)
class Scaling(Constant):
    by: int
    what: str
    table: tuple[int, ...] | None = None

    @property
    def twice(self) -> bool:
        return self.by > 4


class Scaled(NamedTuple):
    x: Matrix
    offset: Any
    scaling: Scaling


@triton.jit
def _value(scaled, row, at):
    value = tl.load(scaled.x.data + row * scaled.x.stride + at)
    if scaled.offset is not None:
        value += scaled.offset
    if scaled.scaling.twice:
        value *= 2
    if scaled.scaling.table is not None:
        value += scaled.scaling.table[1]
    return value * scaled.scaling.by if scaled.scaling.what == "all" else value


@triton.jit
def records_kernel(scaled, terms, y, size: tl.constexpr, B: tl.constexpr):
    """y [rows, B] = what `scaled` says of x, + terms."""
    row, at = tl.program_id(0), tl.arange(0, B)
    value = _value(scaled, row, at)
    for i in tl.static_range(len(terms)):
        value += tl.load(terms[i].data + row * terms[i].stride + at)
    tl.store(y.data + row * y.stride + at, value, mask=at < size.by)


@gluon.jit
def gluon_records_kernel(scaled, terms, y, size: gl.constexpr, B: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    row, at = gl.program_id(0), gl.arange(0, B, layout)
    value = gl.load(scaled.x.data + row * scaled.x.stride + at) * scaled.scaling.by
    if scaled.offset is not None:
        value += scaled.offset
    for i in gl.static_range(len(terms)):
        value += gl.load(terms[i].data + row * terms[i].stride + at)
    gl.store(y.data + row * y.stride + at, value, mask=at < size.by)
