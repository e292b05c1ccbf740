# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of fp8 numbers: values made float32, and rows of weights that few tokens are multiplied with as they lie.

Algorithm: GEMV with conversion in registers (e4m3 to float16 by a shift, then F16C); with many tokens, BLAS on float32.
Tile:
    matvec   a row of codes | 32 | 32 | ... as they lie, n tokens x 16 lanes of sums, added up at the row's end
    widen    a row of codes -> a row of float32
Bound: instructions of the conversion: 4096 x 4096 and one token take 0.82 ms on two Zen 4 cores, int8 0.59
    (bench/results/cpu-gemm-2026-11-21.json).
Tried: docs/log.md: "e4m3 becomes float32 through float16".
Twin: `octavo.ops.definition.fp8_gemm`
"""

from __future__ import annotations

from typing import Any, Literal

from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add_blocks,
    f32_pointer,
    fma_blocks,
    load_block,
    load_e4m3x16,
    load_e5m2x16,
    load_f32x16,
    mul,
    splat,
    stack,
    store_block,
    store_f32x16,
    sum_lanes,
    u8_pointer,
    zeros,
)

Kind = Literal["e4m3", "e5m2"]
ONE: dict[Kind, float] = {"e4m3": 256.0, "e5m2": 1.0}
"""What a number read by the kind's load has to be multiplied with."""

ROWS = 16
"""Rows of weights that a task multiplies."""

STEP = 32
"""Values that are multiplied at a time; rows of x are filled up to these with zeros."""

_LOADS = {"e4m3": load_e4m3x16, "e5m2": load_e5m2x16}


def _copy_rest(rest, codes, at, k, size):
    """Codes of a row of k from `at` on, and zeros beyond its end."""
    for i in range(size):
        u8_pointer(rest)[i] = u8_pointer(codes)[at + i] if at + i < k else 0


WIDEN = record("y y_stride", "codes codes_stride k", "factor:f4")


@kernels(WIDEN)
def widen_kernel(kind: Kind) -> Any:
    """Task i writes row i of y: k codes as float32 times a factor, and zeros up to y's stride, a multiple of 64."""
    load, copy_rest = _LOADS[kind], inner(_copy_rest)

    def widen(a, task):
        y, stride, k = a.y + task * a.y_stride, a.y_stride, a.k
        codes, factor = a.codes + task * a.codes_stride, splat(a.factor)
        for i in range(k // 16):
            store_f32x16(y + i * 64, mul(load(codes + i * 16), factor))  # [16]
        whole = k // 16 * 16
        rest = stack(16)
        for start in range(whole, stride // 4, 16):
            copy_rest(rest, codes, start, k, 16)
            store_f32x16(y + start * 4, mul(load(rest), factor))

    return widen


MATVEC = record("y y_stride", "x x_stride", "codes codes_stride rows k")
"""float32 y; float32 x, filled up to whole steps; rows of k codes. Strides are bytes from row to row."""


@kernels(MATVEC)
def matvec_kernel(kind: Kind, n: int) -> Any:
    """Task i makes `ROWS` columns of y, the products of rows of codes and n rows of x."""
    load, size, step, room = _LOADS[kind], ROWS, STEP, 64 * n

    def add_step(acc, x, stride, codes):
        even = fma_blocks(acc, load_block(x, stride, n), load(codes))  # n x [16]
        return fma_blocks(even, load_block(x + 64, stride, n), load(codes + 16))

    add_step, copy_rest = inner(add_step, kind, n, inline="always"), inner(_copy_rest)

    def matvec(a, task):
        y, x, stride, k = a.y, a.x, a.x_stride, a.k
        whole = k // step
        sums, rest = stack(room), stack(32)
        for row in range(task * size, min(task * size + size, a.rows)):
            codes = a.codes + row * a.codes_stride
            acc, other = zeros(n), zeros(n)  # n x [16] each, to be added up
            for pair in range(whole // 2):
                acc = add_step(acc, x + pair * 256, stride, codes + pair * 64)
                other = add_step(other, x + pair * 256 + 128, stride, codes + pair * 64 + 32)
            if whole % 2:
                acc = add_step(acc, x + (whole - 1) * 128, stride, codes + (whole - 1) * 32)
            if k % step:
                copy_rest(rest, codes, whole * step, k, step)
                other = add_step(other, x + whole * 128, stride, rest)
            store_block(sums, 64, add_blocks(acc, other))
            for t in range(n):
                f32_pointer(y + t * a.y_stride)[row] = sum_lanes(load_f32x16(sums + t * 64))

    return matvec
