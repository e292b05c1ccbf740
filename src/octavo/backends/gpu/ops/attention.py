"""Heads: rotated, written to the KV cache, and attention over what is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from triton import next_power_of_2

from octavo.backends.gpu.attention.launch import attend, quantizes
from octavo.backends.gpu.attention.rope_launch import Norms, RotaryAngles, apply_rope, rope_and_set_rows, set_rows
from octavo.backends.gpu.launch.arguments import Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation
from octavo.backends.gpu.ops.quantize import quantized
from octavo.backends.gpu.ops.registry import binds
from octavo.backends.gpu.pointwise import kernel as pointwise
from octavo.graph.node import Node
from octavo.graph.protocol import Call


@binds("rope")
def _rope(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, positions, freqs = inputs
    rotation = RotaryAngles(positions, freqs, float(node.attrs["scale"]))
    return [apply_rope(c, x, rotation, node.attrs["interleaved"], out)]


@binds("rope_set_rows")
def _rope_set_rows(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    q, k, v, keys, values, positions, places, freqs, *norms = inputs
    rotation = RotaryAngles(positions, freqs, float(node.attrs["scale"]))
    weights = Norms(norms[0], norms[1], float(node.attrs["eps"])) if norms else None
    interleaved = node.attrs["interleaved"]
    return [rope_and_set_rows(c, (q, k, v), (keys, values), places, rotation, interleaved, weights, out)]


@binds("set_rows")
def _set_rows(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    cache, values, places = inputs
    return [set_rows(c, values, places, cache)]


@binds("attention")
def _attention(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    q, pages = inputs[0], inputs[5]
    result = out
    if isinstance(out, Activation) and not quantizes(c, q, pages, out):
        result = c.shared("attended", q.numel(), torch.float32).view(len(q), -1)
    calls: list[Call] = [*attend(c, inputs, node.attrs, result)]
    return calls if result is out else calls + quantized(c, Source(matrix(result)), out)


@binds("slice_heads")
def _slice_heads(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    start = node.attrs["start"]
    return [_copy_heads(c, inputs[0][:, :, start : start + out.shape[2]], out)]


@binds("join_heads")
def _join_heads(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    size = inputs[0].shape[2]
    return [_copy_heads(c, inputs[0], out[:, :, :size]), _copy_heads(c, inputs[1], out[:, :, size:])]


def _copy_heads(c: Context, x: torch.Tensor, out: torch.Tensor) -> Call:
    """out [T, H, D] = x, either of which may be some of the values of heads."""
    tokens, heads, k = out.shape
    return c.launch(pointwise.copy_heads_kernel, (tokens, heads), x, out, x.stride(0), x.stride(1), out.stride(0),
                    out.stride(1), k, B=next_power_of_2(k), warps=1)
