"""Rows through encoders' kernels, on several threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.formats import BlockFormat
from octavo.formats.spec import F32, U8, AnyArray
from octavo.jit.prepare import end_progress, prepare

SHARE = 1 << 14
"""Values of a task, about: some 0.1 ms of work."""

LANES = 16


def encode_rows(rows: F32, fmt: BlockFormat, importance: F32 | None, threads: int) -> U8:
    """Finite rows [rows, K] as packed blocks; `importance` is above 0 everywhere."""
    from octavo.quantizers.encoding.codebook_encoding import encode_blocks, is_searched_in_points
    from octavo.quantizers.encoding.recipes import extremes_rule

    if fmt.is_float:
        return _numbers(rows, fmt, threads)
    if is_searched_in_points(fmt):
        return encode_blocks(rows, fmt, importance, threads)
    rule = extremes_rule(fmt)
    if rule == "largest" or (rule is not None and importance is None):
        return _by_extremes(rows, fmt, threads)
    return _by_search(rows, fmt, importance, threads)


def _run(kernel: Any, tasks: int, threads: int, **arguments: int | AnyArray) -> None:
    from octavo.jit.program import KernelCall, run_call

    run_call(KernelCall(kernel, tasks, **arguments), threads)
    end_progress()


def largest(rows: F32, threads: int) -> float:
    """The largest magnitude of any values; NaN or Inf if one of them is."""
    prepare()
    from octavo.quantizers.encoding.kernels.numbers import largest_kernel

    flat = rows.reshape(-1)
    vectors, share = flat.size // LANES, SHARE // LANES
    tasks = -(-vectors // share)
    found = np.zeros(tasks + 1, np.float32)
    _run(largest_kernel(), tasks, threads, x=flat, out=found, vectors=vectors, share=share)
    found[tasks] = np.abs(flat[vectors * LANES :]).max(initial=0)
    return float(found.max())


def _numbers(rows: F32, fmt: BlockFormat, threads: int) -> U8:
    """Numbers rounded to nearest, ties to even."""
    kind = fmt.fields[0].kind
    if kind == "f32":
        return rows.view(np.uint8).copy()
    from octavo.quantizers.encoding.kernels.numbers import narrow_kernel

    flat = rows.reshape(-1)
    vectors, share = -(-flat.size // LANES), SHARE // LANES
    if flat.size % LANES:
        flat = np.concatenate([flat, np.zeros(-flat.size % LANES, np.float32)])
    out = np.empty(len(flat), np.uint16)
    _run(narrow_kernel(kind), -(-vectors // share), threads, x=flat, out=out, vectors=vectors, share=share)
    return out[: rows.size].view(np.uint8).reshape(len(rows), -1)


def _by_extremes(rows: F32, fmt: BlockFormat, threads: int) -> U8:
    """Scales from each block's extremes, bit for bit as the format's reference."""
    from octavo.quantizers.encoding.kernels.extremes import extremes_kernel
    from octavo.quantizers.encoding.packing import block_layout
    from octavo.quantizers.encoding.recipes import extremes_rule

    out = np.empty((len(rows), fmt.row_bytes(rows.shape[1])), np.uint8)
    blocks, share = rows.size // fmt.block, SHARE // fmt.block
    rule = extremes_rule(fmt)
    assert rule is not None
    kernel = extremes_kernel(rule, fmt.bits, block_layout(fmt))
    _run(kernel, -(-blocks // share), threads, x=rows, out=out, blocks=blocks, share=share)
    return out


def _by_search(rows: F32, fmt: BlockFormat, importance: F32 | None, threads: int) -> U8:
    """Scales searched for, 16 groups at a time."""
    from octavo.quantizers.encoding.recipes import search_kernel

    values: AnyArray = rows.reshape(-1)
    supers, per_tile = values.size // fmt.super, LANES * fmt.group // fmt.super
    if supers < per_tile:
        values = np.concatenate([values, np.zeros((per_tile - supers) * fmt.super, np.float32)])
        supers = per_tile
    out = np.empty(supers * fmt.block_bytes, np.uint8)
    tiles = -(-supers // per_tile)
    share = max(1, SHARE // (LANES * fmt.group))
    kernel = search_kernel(fmt, weighted=importance is not None)
    _run(
        kernel, -(-tiles // share), threads,
        x=values, importance=0 if importance is None else importance, columns=rows.shape[1], out=out, supers=supers,
        tiles=share,
    )
    return out[: rows.size // fmt.block * fmt.block_bytes].reshape(len(rows), -1)
