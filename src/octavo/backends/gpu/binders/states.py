"""Ops that keep a state of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton import next_power_of_2

from octavo.backends.gpu.arguments import Matrix, matrix
from octavo.backends.gpu.binders.registry import binds
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.kernels import states
from octavo.backends.gpu.state_arguments import DeltaShape, sequences
from octavo.graph.node import Node
from octavo.graph.protocol import Call

CHANNELS, COLUMNS = 128, 32
"""Of a program."""


@binds("causal_conv")
def _causal_conv(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, taps, state, *where = inputs
    grid = len(where[2]), -(-x.shape[1] // CHANNELS)
    return [c.launch(states.causal_conv_kernel, grid, matrix(x), taps, state, sequences(*where), matrix(out),
                     x.shape[1], SILU=node.attrs["silu"], K=state.shape[1] + 1, B=CHANNELS, warps=1)]  # fmt: skip


@binds("gated_delta_rule")
def _gated_delta_rule(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    q, k, v, alpha, beta, rates, bias, state, *where = inputs
    _, heads, keys, size = state.shape
    shape = DeltaShape(heads, q.shape[1], keys, size, node.attrs["tiled"], min(COLUMNS, next_power_of_2(size)))
    rows = [Matrix(x, x.stride(0)) for x in (q, k, v, alpha, beta)]
    return [c.launch(states.gated_delta_rule_kernel, (len(where[2]), heads, -(-size // shape.block_v)), *rows, rates,
                     bias, state, sequences(*where), matrix(out), shape=shape, warps=4)]  # fmt: skip
