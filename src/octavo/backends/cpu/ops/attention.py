"""Heads: rotated, written to the KV cache, and attention over what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octavo.backends.cpu.attention import amx_kernel as amx_attention
from octavo.backends.cpu.attention import kernel as attention
from octavo.backends.cpu.attention import mla_int8_kernel as mla_int8
from octavo.backends.cpu.attention import mla_kernel as mla
from octavo.backends.cpu.attention import rope_kernel as rope
from octavo.backends.cpu.attention.cache_kernel import UNIT
from octavo.backends.cpu.attention.cache_layout import kind_of
from octavo.backends.cpu.launch.calls import rows_call, stride
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.matmul.launch import BLOCKS_MIN_TOKENS
from octavo.backends.cpu.ops.registry import binds
from octavo.backends.cpu.pointwise import kernel as elementwise
from octavo.formats.spec import AnyArray
from octavo.graph.alibi import alibi_slopes
from octavo.graph.node import Node
from octavo.graph.schedule import root
from octavo.jit.host_cpu import has_tiles
from octavo.jit.program import KernelCall, address

ROPE_RUN = 32  # tokens whose keys fill lines of the cache; one at a time where tokens are few
SPLIT_PAIRS = 16  # with so few tasks, latent attention divides sequences into parts
PART, MAX_PARTS = 8, 32
LATENT_PART, MAX_LATENT_PARTS = 2, 64
"""Pages of a part of a sequence, and the most parts; more pages are in a part where a sequence may have more."""


@binds("rope")
def _rope(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, positions, freqs = inputs
    table, before = _rope_table(positions, freqs, float(node.attrs["scale"]), shared)
    kernel = rope.rope_kernel(node.attrs["interleaved"], x.shape[2], len(freqs))
    return [*before, rows_call(kernel, out, x, heads=x.shape[1], table=table)]


def _rope_table(
    positions: AnyArray, freqs: AnyArray, scale: float, shared: PlanMemory
) -> tuple[AnyArray, list[KernelCall]]:
    """Cosines and sines for the tokens of a step, and the call that makes them if this plan has none yet."""
    name = "rope", address(positions), address(freqs), scale
    table = shared.memory(name, (len(positions), 2, len(freqs)), np.float32)
    if shared.holds(table):
        return table, []
    call = KernelCall(
        rope.rope_table_kernel(), len(positions),
        table=table, positions=positions, freqs=freqs, pairs=len(freqs), scale=scale,
    )
    return table, [call]


@binds("rope_set_rows")
def _rope_set_rows(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    q, k, v, keys, values, positions, places, freqs, *norms = inputs
    table, before = _rope_table(positions, freqs, float(node.attrs["scale"]), shared)
    tokens, heads, dim = q.shape
    run = ROPE_RUN if tokens > 2 * ROPE_RUN else 1
    scales = [_written_scales(cache) for cache in node.inputs[3:5]]
    kernel = rope.rope_set_rows_kernel(_kind(node.inputs[3]), node.attrs["interleaved"], bool(norms), dim, len(freqs))
    q_weight, k_weight = norms or (0, 0)
    call = KernelCall(
        kernel, -(-tokens // run) * (heads + 2 * k.shape[1]),
        y=out, y_stride=stride(out), q=q, q_stride=stride(q), heads=heads,
        k=k, k_stride=stride(k), v=v, v_stride=stride(v), kv_heads=k.shape[1],
        keys=keys, values=values, rows=places, k_scales=scales[0], v_scales=scales[1],
        table=table,
        q_weight=q_weight, k_weight=k_weight, eps=float(node.attrs.get("eps", 0.0)), tokens=tokens, run=run,
    )
    return [*before, call]


@binds("set_rows")
def _set_rows(node: Node, inputs: Sequence[Any], out: Any, shared: PlanMemory) -> list[KernelCall]:
    cache, values, places = inputs
    make = rope.set_keys_kernel if node.inputs[0].attrs["kind"] == "k" else rope.set_values_kernel
    return [KernelCall(
        make(_kind(node), values.shape[2]), len(values),
        cache=cache, x=values, x_stride=stride(values), heads=values.shape[1], rows=places,
        scales=_written_scales(node),
    )]


def _kind(cache: Node) -> Any:
    """How the rows of a cache are stored, or of what was made by writing to it."""
    return kind_of(cache.dtype, root(cache).attrs.get("static"))


def _written_scales(cache: Node) -> Any:
    """Static scales of a cache as it is written, 0 for none."""
    static = root(cache).attrs.get("static")
    return 0 if static is None else static


def _read_scales(cache: Node, shared: PlanMemory) -> Any:
    """Static scales of a cache, float32 [Hkv], of numbers as kernels load them; 0 for none."""
    static = root(cache).attrs.get("static")
    if static is None:
        return 0
    scales = shared.memory(("scales", id(root(cache))), static.shape, np.float32)
    scales[...] = static * np.float32(UNIT.get(_kind(cache), 1.0))
    return scales


def _slopes(heads: int, most: float, shared: PlanMemory) -> Any:
    """What each head's scores lose for each position between, float32 [heads]; 0 for nothing."""
    if not most:
        return 0
    slopes = shared.memory(("slopes", heads, most), (heads,), np.float32)
    slopes[...] = alibi_slopes(heads, most)
    return slopes


@binds("attention")
def _attention(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    """Sequences of one token, which are the first ones, by one kernel; prompts by another one, at the same time."""
    q, k, v, positions, starts, pages, *sinks = inputs
    tokens, (heads, dim), kv_heads = len(q), q.shape[1:], k.shape[1]
    window = int(node.attrs.get("window", 0))
    decodes = tokens if tokens == len(pages) else len(pages) + 1 - len(starts)
    given = {
        "out": out, "q": q, "q_stride": stride(q), "heads": heads, "tokens": tokens,
        "keys": k, "values": v, "kv_heads": kv_heads, "scale": float(node.attrs["scale"]),
        "positions": positions, "starts": starts, "sequences": len(pages) - decodes, "pages_width": pages.shape[1],
        "window": abs(window), "chunked": int(window < 0), "cap": float(node.attrs.get("cap", 0.0)),
        "sinks": sinks[0] if sinks else 0,
        "reach": int(node.attrs.get("reach", 0)),
        "k_scales": _read_scales(node.inputs[1], shared), "v_scales": _read_scales(node.inputs[2], shared),
        "slopes": _slopes(heads, float(node.attrs.get("alibi", 0.0)), shared),
    }
    kinds, reaching, sloped = (given["window"] > 0, given["cap"] > 0), given["reach"] > 0, "alibi" in node.attrs
    kind, group, calls = _kind(node.inputs[1]), heads // kv_heads, list[KernelCall]()
    if node.inputs[1] is node.inputs[2]:
        return _latent(kind, group, dim, (*kinds, reaching), {**given, "pages": pages}, shared)
    part = max(PART, -(-pages.shape[1] // MAX_PARTS))
    if decodes < tokens:
        tile, sharing = attention.TILE, heads
        kernel = attention.prefill_kernel(kind, dim, *kinds, reaching, sloped)
        many = tokens - decodes >= BLOCKS_MIN_TOKENS and not shared.exact
        if many and kind == "f16" and dim % 32 == 0 and has_tiles():
            tile, sharing = amx_attention.tile_tokens(group), kv_heads
            kernel = amx_attention.amx_prefill_kernel(group, dim, *kinds, reaching, sloped)
        tasks = -(-(tokens - decodes) // tile) * sharing
        calls.append(KernelCall(kernel, tasks, **given, pages=pages[decodes:], splits=1, part=part, partial=0))
        calls[0].overlaps = decodes > 0
    if decodes:
        kernel = attention.decode_kernel(kind, group, dim, *kinds, sloped and not reaching)
        calls += _decoding(
            kernel, kind, decodes * kv_heads, group, dim, {**given, "pages": pages, "part": part}, shared
        )
    return calls


def _decoding(
    kernel: Any, kind: Any, pairs: int, group: int, dim: int, given: Mapping[str, Any], shared: PlanMemory
) -> list[KernelCall]:
    """Attention of as many pairs of a token and a head of keys, with a task for each part of a sequence."""
    splits = -(-given["pages_width"] // given["part"])
    size = pairs * splits * group * (dim + 4) if splits > 1 else 0
    partial = shared.memory("parts of attention", (size,), np.float32)
    calls = [KernelCall(kernel, pairs * splits, **given, splits=splits, partial=partial)]
    if splits > 1:
        calls.append(KernelCall(
            attention.combine_kernel(kind, group, dim), pairs, out=given["out"], partial=partial, splits=splits,
            sinks=given["sinks"], kv_heads=given["kv_heads"], v_scales=given["v_scales"],
        ))
    return calls


def _latent(
    kind: Any, group: int, dim: int, limits: tuple[bool, bool, bool], given: Mapping[str, Any], shared: PlanMemory
) -> list[KernelCall]:
    """Attention whose keys are values too; `limits` are constants of the kernel."""
    out, tokens, kv_heads, width = given["out"], given["tokens"], given["kv_heads"], given["pages_width"]
    value_dim, parts = out.shape[1] // (kv_heads * group), -(-group // mla_int8.LANES)
    pairs, part = tokens * kv_heads * parts, max(LATENT_PART, -(-width // MAX_LATENT_PARTS))
    splits = -(-width // part) if pairs <= SPLIT_PAIRS else 1
    floats = mla.part_floats(dim, value_dim) if splits > 1 else 0
    partial = shared.memory("parts of attention", (pairs * splits * floats,), np.float32)
    kernel = mla.latent_kernel(kind, group, dim, value_dim, *limits)
    calls = [KernelCall(kernel, pairs * splits, **given, splits=splits, part=part, partial=partial)]
    if splits > 1:
        calls.append(KernelCall(
            mla.combine_kernel(kind, group, dim, value_dim),
            pairs * (value_dim // mla.part_columns(kind, dim, value_dim)), out=out, partial=partial,
            splits=splits, sinks=given["sinks"], kv_heads=kv_heads,
        ))
    return calls


@binds("slice_heads")
def _slice_heads(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    start = node.attrs["start"]
    return [_copy_heads(out, inputs[0][:, :, start : start + out.shape[2]])]


@binds("join_heads")
def _join_heads(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    size = inputs[0].shape[2]
    return [_copy_heads(out[:, :, :size], inputs[0]), _copy_heads(out[:, :, size:], inputs[1])]


def _copy_heads(out: AnyArray, x: AnyArray) -> KernelCall:
    """out [T, H, D] = x, either of which may be some of the values of heads."""
    _, heads, k = out.shape
    strides = {"y_head_stride": out.strides[1], "x_head_stride": x.strides[1]}
    return rows_call(elementwise.copy_heads_kernel(), out, x, heads=heads, k=k, **strides)
