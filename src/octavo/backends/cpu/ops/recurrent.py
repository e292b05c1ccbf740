"""Ops that keep a state of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.backends.cpu.launch.calls import stride
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.ops.registry import binds
from octavo.backends.cpu.recurrent import kernel as states
from octavo.backends.cpu.recurrent import rwkv7_kernel as wkv7
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.jit.program import KernelCall

WIDEST = 2
"""Vectors of a state's columns that a task has: with its rows they stay in the first level of the cache."""
MAX_KEYS = 128
"""Rows of a state beyond which a task of the selective scan has one vector of columns."""


@binds("causal_conv")
def _causal_conv(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, taps, state, *where = inputs
    channels, bias, where = x.shape[1], where[3:], where[:3]
    width = state.shape[1] + 1
    kernel = states.causal_conv_kernel(width, taps.size // (width * channels), node.attrs["silu"], bool(bias))
    return [KernelCall(
        kernel, len(where[2]) * -(-channels // states.CHANNELS), y=out, y_stride=stride(out), x=x, x_stride=stride(x),
        taps=taps, bias=bias[0] if bias else 0, state=state, channels=channels, **_where(where),
    )]


@binds("gated_delta_rule")
def _gated_delta_rule(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    q, k, v, alpha, beta, ssm_a, dt_bias, state, *where = inputs
    _, heads, keys, size = state.shape
    wide = WIDEST if size % (16 * WIDEST) == 0 else 1
    kernel = states.gated_delta_rule_kernel(keys, size, wide, node.attrs["tiled"], alpha.shape[1] != heads)
    return [KernelCall(
        kernel, len(where[2]) * heads * (size // (16 * wide)), y=out, y_stride=stride(out),
        q=q, q_stride=stride(q), k=k, k_stride=stride(k), v=v, v_stride=stride(v), alpha=alpha,
        alpha_stride=stride(alpha), beta=beta, beta_stride=stride(beta), ssm_a=ssm_a, dt_bias=dt_bias, state=state,
        heads=heads, key_heads=q.shape[1], **_where(where),
    )]


@binds("selective_scan")
def _selective_scan(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, b, c, dt, ssm_a, dt_bias, ssm_d, state, *where = inputs
    _, heads, keys, size = state.shape
    wide = WIDEST if size % (16 * WIDEST) == 0 and keys <= MAX_KEYS else 1
    kernel = states.selective_scan_kernel(keys, size, wide)
    return [KernelCall(
        kernel, len(where[2]) * heads * (size // (16 * wide)), y=out, y_stride=stride(out), x=x, x_stride=stride(x),
        b=b, b_stride=stride(b), c=c, c_stride=stride(c), dt=dt, dt_stride=stride(dt), ssm_a=ssm_a, dt_bias=dt_bias,
        ssm_d=ssm_d, state=state, heads=heads, groups=b.shape[1], **_where(where),
    )]


@binds("channel_scan")
def _channel_scan(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, b, c, dt, ssm_a, ssm_d, state, *where = inputs
    _, keys, channels = state.shape
    wide = WIDEST if channels % (16 * WIDEST) == 0 and keys <= MAX_KEYS else 1
    return [KernelCall(
        states.channel_scan_kernel(keys, wide), len(where[2]) * (channels // (16 * wide)), y=out, y_stride=stride(out),
        x=x, x_stride=stride(x), b=b, b_stride=stride(b), c=c, c_stride=stride(c), dt=dt, dt_stride=stride(dt),
        ssm_a=ssm_a, ssm_d=ssm_d, state=state, channels=channels, **_where(where),
    )]


@binds("wkv7")
def _wkv7(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    *rows, vectors, state, positions, starts, slots = inputs[:10]
    _, heads, size, _ = state.shape
    wide, names = WIDEST if size % (16 * WIDEST) == 0 else 1, (*"rwkva", "first", "gate")
    mixed, eps = len(inputs) > 10, node.attrs["eps"]
    given = dict(zip(names, [*rows, *(inputs[10:] if mixed else rows[3:])], strict=True))
    strides = {f"{name}_stride": stride(x) for name, x in given.items()}
    return [KernelCall(
        wkv7.wkv7_kernel(size, wide, mixed, eps is not None), len(slots) * heads, y=out, y_stride=stride(out), **given,
        **strides, vectors=vectors, state=state, heads=heads, eps=eps or 0.0, **_where((positions, starts, slots)),
    )]


def _where(where: Sequence[AnyArray]) -> dict[str, int | AnyArray]:
    positions, starts, slots = where
    decodes = len(slots) if len(positions) == len(slots) else len(slots) + 1 - len(starts)
    return {"positions": positions, "starts": starts, "slots": slots, "decodes": decodes}
