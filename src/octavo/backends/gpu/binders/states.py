"""Ops that keep a state of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from triton import next_power_of_2

from octavo.backends.gpu import delta_tiles
from octavo.backends.gpu.arguments import Matrix, matrix
from octavo.backends.gpu.binders.registry import binds
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.kernels import delta_chunks, states
from octavo.backends.gpu.state_arguments import DeltaChunks, DeltaShape, Halves, sequences
from octavo.graph.node import Node
from octavo.graph.protocol import Call

CHANNELS, TOKENS, COLUMNS = 128, 16, 32
"""Of a program."""


@binds("causal_conv")
def _causal_conv(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, taps, state, *where = inputs
    lies, width = sequences(*where), state.shape[1] + 1
    most = 1 if lies.decodes == len(where[2]) else len(x) - lies.decodes  # tokens of a sequence
    block = 1 if most == 1 else max(TOKENS, next_power_of_2(width))
    grid = len(where[2]), -(-x.shape[1] // CHANNELS), -(-most // block)
    return [c.launch(states.causal_conv_kernel, grid, matrix(x), taps, state, lies, matrix(out), x.shape[1],
                     SILU=node.attrs["silu"], K=width, B=CHANNELS, BT=block, warps=1 if block == 1 else 4,
                     exact=c.deterministic)]  # fmt: skip


@binds("gated_delta_rule")
def _gated_delta_rule(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    """Sequences of one token go by themselves, and prompts chunk by chunk, where there are kernels for that."""
    q, k, v, alpha, beta, rates, bias, state, *where = inputs
    (_, heads, keys, size), lies, n = state.shape, sequences(*where), len(where[2])
    shape = DeltaShape(heads, q.shape[1], keys, size, node.attrs["tiled"], min(COLUMNS, next_power_of_2(size)))
    *of_keys, values, strength, fade = (Matrix(x, x.stride(0)) for x in (q, k, v, beta, alpha))
    gates = (fade, strength, rates, bias)
    tile = None if c.deterministic else delta_tiles.delta_tile(len(q) - lies.decodes, keys, c.target.arch)
    calls: list[Call] = []
    if alone := n if tile is None else lies.decodes:
        grid = alone, heads, -(-size // shape.block_v)
        calls.append(c.launch(states.gated_delta_rule_kernel, grid, *of_keys, values, *gates, state, lies, matrix(out),
                              shape=shape, warps=4, exact=c.deterministic))  # fmt: skip
    if tile is None:
        return calls
    chunked = replace(shape, chunk=tile.chunk, block_v=tile.block_v, part=min(tile.part, shape.block_k),
                      interpreted=c.target.arch == "interpreter")  # fmt: skip
    prompts, most = n - lies.decodes, -(-(len(q) - lies.decodes) // tile.chunk)
    chunks = _chunks(c, q, heads, tile.chunk)
    solve, go = delta_chunks.solve_delta_kernel, delta_chunks.gated_delta_chunks_kernel
    return [
        *calls,
        c.launch(solve, (prompts, most, heads), *of_keys, *gates, lies, chunks, shape=chunked,
                 warps=tile.solving_warps, stages=1),
        c.launch(go, (prompts, heads, -(-size // tile.block_v)), values, state, lies, chunks, matrix(out),
                 shape=chunked, warps=tile.warps, stages=tile.stages),
    ]  # fmt: skip


def _chunks(c: Context, q: torch.Tensor, heads: int, chunk: int) -> DeltaChunks:
    """Memory for what a step's tokens are to each other."""

    def halves(name: str, size: int) -> Halves:
        return Halves(*(c.shared(f"{half} half of {name}", size, torch.bfloat16) for half in Halves._fields))

    rows = len(q) * heads
    decays = (c.shared(f"decay {name}", rows, torch.float32) for name in ("since", "until"))
    return DeltaChunks(halves("keys", q.numel()), halves("queries", q.numel()), halves("solved", rows * chunk),
                       halves("scores", rows * chunk), *decays)  # fmt: skip
