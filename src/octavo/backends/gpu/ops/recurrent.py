"""Ops that keep a state of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from triton import next_power_of_2

from octavo.backends.gpu.launch.arguments import Matrix, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.ops.registry import binds
from octavo.backends.gpu.recurrent import (
    gated_delta_chunks_kernel,
    gated_delta_tiles,
    mamba2_tiles,
)
from octavo.backends.gpu.recurrent import kernel as recurrent
from octavo.backends.gpu.recurrent import mamba2_chunks_kernel as mamba2_chunks
from octavo.backends.gpu.recurrent import rwkv7_kernel as rwkv7
from octavo.backends.gpu.recurrent.arguments import (
    ChannelShape,
    ConvShape,
    DeltaChunks,
    DeltaShape,
    Halves,
    ScanChunks,
    ScanShape,
    WkvRows,
    WkvShape,
    sequences,
)
from octavo.graph.node import Node
from octavo.graph.protocol import Call

CHANNELS, TOKENS, COLUMNS, SCANNED = 128, 16, 32, 32
"""Of a program; the last are channels of `channel_scan`."""


@binds("causal_conv")
def _causal_conv(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, taps, state, *where = inputs
    bias, where = where[3:], where[:3]
    lies, width = sequences(*where), state.shape[1] + 1
    most = 1 if lies.decodes == len(where[2]) else len(x) - lies.decodes  # tokens of a sequence
    block = 1 if most == 1 else max(TOKENS, next_power_of_2(width))
    shape = ConvShape(width, out.shape[1] // x.shape[1], CHANNELS, block, node.attrs["silu"])
    grid = len(where[2]), -(-x.shape[1] // CHANNELS), -(-most // block)
    return [c.launch(recurrent.causal_conv_kernel, grid, matrix(x), taps, bias[0] if bias else None, state,
                     lies, matrix(out), x.shape[1], shape=shape, warps=1 if block == 1 else 4,
                     exact=c.deterministic)]


@binds("gated_delta_rule")
def _gated_delta_rule(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    """Sequences of one token go by themselves, and prompts chunk by chunk, where there are kernels for that.

    Where each row of a matrix has a decay of its own, there are none: prompts go token by token.
    """
    q, k, v, alpha, beta, rates, bias, state, *where = inputs
    (_, heads, keys, size), lies, n = state.shape, sequences(*where), len(where[2])
    shape = DeltaShape(heads, q.shape[1], keys, size, node.attrs["tiled"], min(COLUMNS, next_power_of_2(size)),
                       by_row=alpha.shape[1] != heads)
    *of_keys, values, strength, fade = (Matrix(x, x.stride(0)) for x in (q, k, v, beta, alpha))
    gates = (fade, strength, rates, bias)
    whole = c.deterministic or shape.by_row
    tile = None if whole else gated_delta_tiles.delta_tile(len(q) - lies.decodes, keys, c.target.arch)
    calls: list[Call] = []
    if alone := n if tile is None else lies.decodes:
        grid = alone, heads, -(-size // shape.block_v)
        calls.append(c.launch(recurrent.gated_delta_rule_kernel, grid, *of_keys, values, *gates, state, lies,
                              matrix(out), shape=shape, warps=4, exact=c.deterministic))
    if tile is None:
        return calls
    chunked = replace(shape, chunk=tile.chunk, block_v=tile.block_v, part=min(tile.part, shape.block_k),
                      interpreted=c.target.arch == "interpreter")
    prompts, most = n - lies.decodes, -(-(len(q) - lies.decodes) // tile.chunk)
    chunks = _chunks(c, q, heads, tile.chunk)
    solve, go = gated_delta_chunks_kernel.solve_delta_kernel, gated_delta_chunks_kernel.gated_delta_chunks_kernel
    return [
        *calls,
        c.launch(solve, (prompts, most, heads), *of_keys, *gates, lies, chunks, shape=chunked,
                 warps=tile.solving_warps, stages=1),
        c.launch(go, (prompts, heads, -(-size // tile.block_v)), values, state, lies, chunks, matrix(out),
                 shape=chunked, warps=tile.warps, stages=tile.stages),
    ]


@binds("selective_scan")
def _selective_scan(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    """Sequences of one token go by themselves, and prompts chunk by chunk, where there are kernels for that."""
    x, *of_keys, dt, rates, bias, skip, state, positions, starts, slots = inputs
    (_, heads, keys, size), lies, n = state.shape, sequences(positions, starts, slots), len(slots)
    columns = min(mamba2_tiles.columns(keys, c.target.arch), next_power_of_2(size))
    shape = ScanShape(heads, of_keys[0].shape[1], keys, size, columns)
    values, *of_keys, raw = (Matrix(y, y.stride(0)) for y in (x, *of_keys, dt))
    steps = (*of_keys, raw, rates, bias)
    tile = None if c.deterministic else mamba2_tiles.scan_tile(len(x) - lies.decodes, keys, c.target.arch)
    calls: list[Call] = []
    if alone := n if tile is None else lies.decodes:
        grid = alone, heads, -(-size // shape.block_v)
        calls.append(c.launch(recurrent.selective_scan_kernel, grid, values, *steps, skip, state, lies, matrix(out),
                              shape=shape, warps=4, exact=c.deterministic))
    if tile is None:
        return calls
    chunked = replace(shape, chunk=tile.chunk, block_v=tile.block_v, part=min(tile.part, shape.block_k),
                      interpreted=c.target.arch == "interpreter")
    prompts, most = n - lies.decodes, -(-(len(x) - lies.decodes) // tile.chunk)
    chunks = _scan_chunks(c, len(x), chunked)
    return [
        *calls,
        c.launch(mamba2_chunks.score_scan_kernel, (prompts, most, heads), *steps, lies, chunks, shape=chunked,
                 warps=tile.scoring_warps, stages=1),
        c.launch(mamba2_chunks.selective_scan_chunks_kernel, (prompts, heads, -(-size // tile.block_v)), values, skip,
                 state, lies, chunks, matrix(out), shape=chunked, warps=tile.warps, stages=tile.stages),
    ]


@binds("channel_scan")
def _channel_scan(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    *rows, rates, skip, state, positions, starts, slots = inputs
    _, keys, channels = state.shape
    lies, grid = sequences(positions, starts, slots), (len(slots), -(-channels // SCANNED))
    return [c.launch(recurrent.channel_scan_kernel, grid, *(Matrix(y, y.stride(0)) for y in rows), rates, skip, state,
                     lies, matrix(out), shape=ChannelShape(keys, channels, SCANNED), warps=1,
                     exact=c.deterministic)]


@binds("wkv7")
def _wkv7(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    *rows, vectors, state, positions, starts, slots = inputs[:10]
    _, heads, size, _ = state.shape
    eps = node.attrs["eps"]
    given = WkvRows(*(Matrix(x, x.stride(0)) for x in rows))
    mixed: list[Any] = [Matrix(x, x.stride(0)) for x in inputs[10:]] or [None, None]
    return [c.launch(rwkv7.wkv7_kernel, (len(slots), heads), given, *mixed, vectors, state,
                     sequences(positions, starts, slots), matrix(out), eps or 0.0,
                     shape=WkvShape(heads, size, eps is not None),
                     warps=4, exact=c.deterministic)]


def _scan_chunks(c: Context, tokens: int, shape: ScanShape) -> ScanChunks:
    """Memory for what a step's tokens are to each other."""
    of_keys, rows = tokens * shape.groups * shape.keys, tokens * shape.heads
    return ScanChunks(_halves(c, "keys", of_keys), _halves(c, "queries", of_keys),
                      _halves(c, "scores", rows * shape.chunk), *_decays(c, rows))


def _chunks(c: Context, q: torch.Tensor, heads: int, chunk: int) -> DeltaChunks:
    """Memory for what a step's tokens are to each other."""
    rows = len(q) * heads
    return DeltaChunks(_halves(c, "keys", q.numel()), _halves(c, "queries", q.numel()),
                       _halves(c, "solved", rows * chunk), _halves(c, "scores", rows * chunk),
                       *_decays(c, rows))


def _halves(c: Context, name: str, size: int) -> Halves:
    return Halves(*(c.shared(f"{half} half of {name}", size, torch.bfloat16) for half in Halves._fields))


def _decays(c: Context, rows: int) -> list[torch.Tensor]:
    return [c.shared(f"decay {name}", rows, torch.float32) for name in ("since", "until")]
