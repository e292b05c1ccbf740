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
from octavo.backends.gpu.recurrent import gated_delta_chunks_kernel as gated_delta
from octavo.backends.gpu.recurrent import kernel as recurrent
from octavo.backends.gpu.recurrent import mamba2_chunks_kernel as mamba2
from octavo.backends.gpu.recurrent import rwkv7_kernel as rwkv7
from octavo.backends.gpu.recurrent import scan_tiles
from octavo.backends.gpu.recurrent.scan_arguments import (
    ChannelShape,
    ChunkScores,
    ConvShape,
    ScanShape,
    Sequences,
    SplitFloats,
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
    """Where each row of a matrix has a decay of its own, prompts go token by token too."""
    q, k, v, alpha, beta, ssm_a, dt_bias, state, *where = inputs
    (_, heads, keys, size), lies = state.shape, sequences(*where)
    shape = ScanShape(heads, q.shape[1], keys, size, min(COLUMNS, next_power_of_2(size)), node.attrs["tiled"],
                      by_row=alpha.shape[1] != heads)
    *of_keys, values, raw_beta, raw_g = (Matrix(x, x.stride(0)) for x in (q, k, v, beta, alpha))
    gates = (raw_g, raw_beta, ssm_a, dt_bias)
    whole = c.deterministic or shape.by_row
    tile = None if whole else scan_tiles.delta_tile(len(q) - lies.decodes, keys, c.target.arch)
    return [
        *_by_token(c, recurrent.gated_delta_rule_kernel, (*of_keys, values, *gates, state), lies, out, shape, tile),
        *_by_chunk(c, (gated_delta.solve_delta_kernel, (*of_keys, *gates)),
                   (gated_delta.gated_delta_chunks_kernel, (values, state)), lies, out, shape, tile, ut=True),
    ]


@binds("selective_scan")
def _selective_scan(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, *of_keys, dt, ssm_a, dt_bias, ssm_d, state, positions, starts, slots = inputs
    (_, heads, keys, size), lies = state.shape, sequences(positions, starts, slots)
    columns = min(scan_tiles.columns(keys, c.target.arch), next_power_of_2(size))
    shape = ScanShape(heads, of_keys[0].shape[1], keys, size, columns)
    values, *of_keys, raw = (Matrix(y, y.stride(0)) for y in (x, *of_keys, dt))
    steps = (*of_keys, raw, ssm_a, dt_bias)
    tile = None if c.deterministic else scan_tiles.scan_tile(len(x) - lies.decodes, keys, c.target.arch)
    return [
        *_by_token(c, recurrent.selective_scan_kernel, (values, *steps, ssm_d, state), lies, out, shape, tile),
        *_by_chunk(c, (mamba2.score_scan_kernel, steps),
                   (mamba2.selective_scan_chunks_kernel, (values, ssm_d, state)), lies, out, shape, tile, ut=False),
    ]


def _by_token(
    c: Context, kernel: Any, given: tuple[Any, ...], lies: Sequences, out: Any, shape: ScanShape,
    tile: scan_tiles.ChunkTile | None,
) -> list[Call]:
    """The launch for sequences that go token by token: those of one token, and without a tile all."""
    count = len(lies.slots) if tile is None else lies.decodes
    grid = count, shape.heads, -(-shape.size // shape.block_v)
    call = c.launch(kernel, grid, *given, lies, matrix(out), shape=shape, warps=4, exact=c.deterministic)
    return [call] if count else []


def _by_chunk(
    c: Context, scores: tuple[Any, tuple[Any, ...]], scan: tuple[Any, tuple[Any, ...]], lies: Sequences, out: Any,
    shape: ScanShape, tile: scan_tiles.ChunkTile | None, *, ut: bool,
) -> list[Call]:
    """The launches for prompts, each a kernel and its first arguments: all chunks at once, then one after the other."""
    if tile is None:
        return []
    chunked = replace(shape, chunk=tile.chunk, block_v=tile.block_v, part=min(tile.part, shape.block_k),
                      interpreted=c.target.arch == "interpreter")
    prompts, chunks = len(lies.slots) - lies.decodes, -(-(len(out) - lies.decodes) // tile.chunk)
    memory = _chunk_scores(c, len(out), chunked, ut=ut)
    return [
        c.launch(scores[0], (prompts, chunks, shape.heads), *scores[1], lies, memory, shape=chunked,
                 warps=tile.scoring_warps, stages=1),
        c.launch(scan[0], (prompts, shape.heads, -(-shape.size // tile.block_v)), *scan[1], lies, memory, matrix(out),
                 shape=chunked, warps=tile.warps, stages=tile.stages),
    ]


def _chunk_scores(c: Context, tokens: int, shape: ScanShape, *, ut: bool) -> ChunkScores:
    """Memory for what a step's tokens are to each other."""
    of_keys, rows = tokens * shape.key_heads * shape.keys, tokens * shape.heads
    return ChunkScores(
        _split_floats(c, "keys", of_keys), _split_floats(c, "queries", of_keys),
        _split_floats(c, "ut", rows * shape.chunk) if ut else None, _split_floats(c, "scores", rows * shape.chunk),
        *(c.shared(f"decay {name}", rows, torch.float32) for name in ("exp_g", "exp_g_rest")),
    )


def _split_floats(c: Context, name: str, size: int) -> SplitFloats:
    return SplitFloats(*(c.shared(f"{half} half of {name}", size, torch.bfloat16) for half in SplitFloats._fields))


@binds("channel_scan")
def _channel_scan(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    *rows, ssm_a, ssm_d, state, positions, starts, slots = inputs
    _, keys, channels = state.shape
    lies, grid = sequences(positions, starts, slots), (len(slots), -(-channels // SCANNED))
    return [c.launch(recurrent.channel_scan_kernel, grid, *(Matrix(y, y.stride(0)) for y in rows), ssm_a, ssm_d, state,
                     lies, matrix(out), shape=ChannelShape(keys, channels, SCANNED), warps=1,
                     exact=c.deterministic)]


@binds("wkv7")
def _wkv7(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    *rows, vectors, state, positions, starts, slots = inputs[:10]
    _, heads, size, _ = state.shape
    eps = node.attrs["eps"]
    given = (Matrix(x, x.stride(0)) for x in rows)
    mixed: list[Any] = [Matrix(x, x.stride(0)) for x in inputs[10:]] or [None, None]
    return [c.launch(rwkv7.wkv7_kernel, (len(slots), heads), *given, *mixed, vectors, state,
                     sequences(positions, starts, slots), matrix(out), eps or 0.0,
                     shape=WkvShape(heads, size, eps is not None),
                     warps=4, exact=c.deterministic)]
