"""Sums of products of fp8 numbers in NumPy arrays, float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.cores import cores
from octavo.backends.cpu.matmul.w8a8.gemm import GEMM_MIN_TOKENS
from octavo.formats.spec import F32, AnyArray
from octavo.jit.prepare import end_progress, prepare
from octavo.jit.program import KernelCall, Program

if TYPE_CHECKING:
    from octavo.backends.cpu.matmul.w8a8.fp8_kernel import Kind

BLOCK = 128
"""Values of K, and rows of a weight, that share a scale."""

CHUNK = 1 << 22
"""Values of a weight that are made float32 at a time, for BLAS."""


def sums(a: AnyArray, b: AnyArray, scales: tuple[F32, F32] | None = None) -> F32:
    """The sums over K [m, n] of fp8 a [m, k] and b [n, k], types of ml_dtypes; m, n and k are not 0.

    scales  of blocks: [m, ceil(k / 128)] and [ceil(n / 128), ceil(k / 128)]
    """
    prepare()
    from octavo.backends.cpu.matmul.w8a8.fp8_kernel import ONE, STEP

    kind_a, kind = _kind(a), _kind(b)
    (m, k), n = a.shape, len(b)
    width, codes = -(-k // STEP) * STEP, np.ascontiguousarray(b).view(np.uint8)
    x = _widened(kind_a, a, width, ONE[kind_a] * (ONE[kind] if m < GEMM_MIN_TOKENS else 1))
    if scales is not None:
        x *= np.repeat(scales[0], BLOCK, axis=1)[:, :width]
    spread = None if scales is None else np.repeat(scales[1], BLOCK, axis=1)[:, :width]
    out = np.empty((m, n), np.float32)
    (_matvec if m < GEMM_MIN_TOKENS else _gemm)(kind, x, codes, spread, out)
    end_progress()
    return out


def _kind(x: AnyArray) -> Kind:
    return "e4m3" if x.dtype.name == "float8_e4m3fn" else "e5m2"


def _matvec(kind: Kind, x: F32, codes: AnyArray, scale: F32 | None, out: F32) -> None:
    """out [m, n] of x [m, k] and codes [n, k], whose blocks of rows have a `scale` for each value."""
    from octavo.backends.cpu.matmul.w8a8.fp8_kernel import ROWS, matvec_kernel
    from octavo.backends.cpu.matmul.w8a8.int8_kernel import parts_of

    blocks = [(x, codes, out)]
    if scale is not None:
        starts = range(0, len(codes), BLOCK)
        blocks = [(x * scale[i], codes[j : j + BLOCK], out[:, j : j + BLOCK]) for i, j in enumerate(starts)]
    calls = []
    for left, rows, y in blocks:
        for first, tokens in parts_of(len(x)):
            call = KernelCall(
                matvec_kernel(kind, tokens), -(-len(rows) // ROWS), y=y[first:], y_stride=y.strides[0],
                x=left[first:], x_stride=left.strides[0],
                codes=rows, codes_stride=rows.strides[0], rows=len(rows), k=rows.shape[1],
            )
            call.overlaps = True
            calls.append(call)
    Program(calls, cores())()


def _gemm(kind: Kind, x: F32, codes: AnyArray, scale: F32 | None, out: F32) -> None:
    """`_matvec` for more tokens, by BLAS."""
    from octavo.backends.cpu.matmul.w8a8.fp8_kernel import ONE

    width = x.shape[1]
    step = max(1, CHUNK // width // BLOCK) * BLOCK
    room = np.empty((min(step, len(codes)), width), np.float32)
    for start in range(0, len(codes), step):
        w = _widened(kind, codes[start : start + step], width, ONE[kind], room)
        if scale is not None:
            w *= np.repeat(scale[start // BLOCK :][: step // BLOCK], BLOCK, axis=0)[: len(w)]
        np.matmul(x, w.T, out=out[:, start : start + len(w)])


def _widened(kind: Kind, x: AnyArray, width: int, factor: float, room: F32 | None = None) -> F32:
    """fp8 x [rows, k] times a factor, and zeros up to `width`; in `room`, if given."""
    from octavo.backends.cpu.matmul.w8a8.fp8_kernel import widen_kernel

    codes = np.ascontiguousarray(x).view(np.uint8)
    out = np.empty((len(codes), width), np.float32) if room is None else room[: len(codes)]
    call = KernelCall(
        widen_kernel(kind), len(codes), y=out, y_stride=out.strides[0],
        codes=codes, codes_stride=codes.strides[0], k=codes.shape[1], factor=factor,
    )
    call.run()  # in this thread: others would compete with BLAS for cores
    return out
