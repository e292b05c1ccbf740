"""Ops infer shapes, and refuse inputs that do not fit with a GraphError naming the op and the shapes."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import GraphError
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import DType, Graph, Node, Shape, bind
from octavo.graph.ops import OPS, apply


def value(*shape: int | str, dtype: DType = "f32", name: str = "") -> Node:
    return Node("input", (), shape, dtype, name=name)


def w(*shape: int) -> Node:
    return constant(np.zeros(shape, np.float32), "w")


T = "tokens"
ATTENTION = {"scale": 1.0, "page_size": 4}
ROPE = {"scale": 1.0, "interleaved": False}
CLAMPED = {"slope": 1.7, "limit": 7.0}
SPANS = {"length": 8, "factor": 0.1, "offset": 1}
TABLE = Node("adapters", (), (2, 8, 4, 3, 9), "f32")
POSITIONS, STARTS, PAGES = (
    value(T, dtype="i32"),
    value("boundaries", dtype="i32"),
    value("sequences", "pages", dtype="i32"),
)

SHARED = value("rows", 1, 8)
SLOTS = (POSITIONS, STARTS, value("sequences", dtype="i32"))


def delta(
    heads: int = 4, keys: tuple[int, ...] = (2, 8), gate: int = 4, state: tuple[int, ...] = (4, 8, 6), decays: int = 0
) -> tuple[Node, ...]:
    q, v, alpha, beta = value(T, *keys), value(T, heads, 6), value(T, decays or gate), value(T, gate)
    return (q, q, v, alpha, beta, w(heads), w(decays or heads), value("states", *state), *SLOTS)


def scan(
    heads: int = 4, keys: tuple[int, ...] = (2, 8), gate: int = 4, state: tuple[int, ...] = (4, 8, 6)
) -> tuple[Node, ...]:
    b, dt = value(T, *keys), value(T, gate)
    return (value(T, heads, 6), b, b, dt, w(heads), w(heads), w(heads), value("states", *state), *SLOTS)


def channels(
    dt: int = 4, keys: int = 8, ssm_a: int = 32, state: tuple[int, ...] = (8, 4)
) -> tuple[Node, ...]:
    b = value(T, keys)
    return (value(T, 4), b, b, value(T, dt), w(ssm_a), w(4), value("states", *state), *SLOTS)


def mixing(
    width: int = 12, vectors: int = 96, state: tuple[int, ...] = (2, 6, 6), more: tuple[int, ...] = (12, 12)
) -> tuple[Node, ...]:
    x = value(T, 12)
    given = (x, x, x, value(T, width), x, w(vectors), value("states", *state))
    return (*given, *SLOTS, *(value(T, n) for n in more))


GOOD: list[tuple[str, tuple[Node, ...], dict[str, object], Shape]] = [
    ("get_rows", (w(9, 4), value(T, dtype="i32")), {}, (T, 4)),
    ("rms_norm", (value(T, 4), w(4)), {"eps": 1e-5}, (T, 4)),
    ("rms_norm", (value(T, 3, 4), w(4)), {"eps": 1e-5}, (T, 3, 4)),
    ("mul_mat", (w(9, 4), value(T, 4)), {}, (T, 9)),
    ("mul_mat_id", (w(5, 9, 4), value(T, 4), value(T, 2)), {}, (T, 2, 9)),
    ("mul_mat_id", (w(5, 9, 4), value(T, 2, 4), value(T, 2)), {}, (T, 2, 9)),
    ("lora", (value(T, 4), POSITIONS, value(3), TABLE, value(T, 9)), {"part": 1}, (T, 9)),
    ("lora", (value(T, 4), POSITIONS, value(3), TABLE, value(T, 12)), {"part": None}, (T, 12)),
    ("rope", (value(T, 2, 8), POSITIONS, w(3)), ROPE, (T, 2, 8)),
    ("set_rows", (value("rows", 2, 8), value(T, 2, 8), POSITIONS), {}, ("rows", 2, 8)),
    ("attention", (value(T, 4, 8), value("rows", 2, 8), value("rows", 2, 8), POSITIONS, STARTS, PAGES), ATTENTION,
     (T, 32)),
    ("attention", (value(T, 4, 8), value("rows", 2, 8), value("rows", 2, 8), POSITIONS, STARTS, PAGES, w(4)), ATTENTION,
     (T, 32)),
    ("attention", (value(T, 4, 8), SHARED, SHARED, POSITIONS, STARTS, PAGES), {**ATTENTION, "value_dim": 6}, (T, 24)),
    ("slice_heads", (value(T, 2, 8),), {"start": 3, "size": 5}, (T, 2, 5)),
    ("join_heads", (value(T, 2, 8), value(T, 2, 3)), {}, (T, 2, 11)),
    ("keep_groups", (value(T, 8),), {"groups": 4, "used": 2, "best": 2}, (T, 8)),
    ("numbers", (POSITIONS,), {"count": 3}, (T, 3)),
    ("floor_divide", (value(T, 3, dtype="i32"),), {"by": 2}, (T, 3)),
    ("clamped_swiglu", (value(T, 2, 4), value(T, 2, 4)), CLAMPED, (T, 2, 4)),
    ("add_rows", (value(T, 2, 4), w(12), value(T, 2)), {}, (T, 2, 4)),
    ("causal_conv", (value(T, 4), w(12), value("states", 2, 4), *SLOTS), {"silu": True}, (T, 4)),
    ("causal_conv", (value(T, 4), w(12), value("states", 2, 4), *SLOTS, w(4)), {}, (T, 4)),
    ("gated_delta_rule", delta(), {"tiled": False}, (T, 24)),
    ("gated_delta_rule", delta(decays=32), {"tiled": False}, (T, 24)),
    ("selective_scan", scan(), {}, (T, 24)),
    ("channel_scan", channels(), {}, (T, 4)),
    ("causal_conv", (value(T, 4), w(24), value("states", 2, 4), *SLOTS, w(8)), {}, (T, 8)),
    ("wkv7", mixing(), {"eps": 1e-5}, (T, 12)),
    ("wkv6", (*(value(T, 12),) * 4, w(48), value("states", 2, 6, 6), *SLOTS), {"eps": 1e-5}, (T, 12)),
    ("wkv7", mixing(vectors=84, more=()), {"eps": 1e-5}, (T, 12)),
    ("swiglu", (value(T, 4), value(T, 4)), {}, (T, 4)),
    ("geglu", (value(T, 4), value(T, 4)), {}, (T, 4)),
    ("add", (value(T, 4), w(4)), {}, (T, 4)),
    ("mul", (value(T, 4), value(T, 4)), {}, (T, 4)),
    ("soft_cap", (value(T, 4),), {"cap": 2.0}, (T, 4)),
    ("soft_max", (value(T, 4),), {}, (T, 4)),
    ("gelu", (value(T, 4),), {}, (T, 4)),
    ("gelu_erf", (value(T, 4),), {}, (T, 4)),
    ("layer_norm", (value(T, 4), w(4), w(4)), {"eps": 1e-5}, (T, 4)),
    ("sigmoid", (value(T, 4),), {}, (T, 4)),
    ("scale_by_position", (value(T, 2, 4), value(T, 1, 1, dtype="i32")), SPANS, (T, 2, 4)),
    ("relu_squared", (value(T, 4),), {}, (T, 4)),
    ("clamp", (value(T, 2, 4),), {"low": -1.0, "high": 2.0}, (T, 2, 4)),
    ("xielu", (value(T, 4),), {"positive": 0.8, "negative": 0.7, "beta": 0.5, "least": -1e-6}, (T, 4)),
    ("keep_largest", (value(T, 4),), {"spread": 1.0}, (T, 4)),
    ("correct_streams", (value(T, 2, 4), value(T, 2, 1), value(T, 1, 4), value(T, 1, 4)), {}, (T, 2, 4)),
    ("add_to_streams", (value(T, 2, 4), value(T, 2, 1), value(T, 1, 4)), {}, (T, 2, 4)),
    ("as_large_as", (value(T, 2, 4), value(T, 4)), {"least": 1e-5}, (T, 2, 4)),
    ("top_k", (value(T, 4),), {"k": 4}, (T, 4)),
    ("top_candidates", (value(T, 4),), {"k": 3}, (T, 7)),
    ("draw", (value(T, 7), value(T, 12)), {}, (T, 3)),
    ("all_reduce", (value(T, 4),), {}, (T, 4)),
    ("all_max", (value(T, 1),), {}, (T, 1)),
    ("largest_magnitude", (value(T, 8),), {}, (T, 1)),
    ("merge_candidates", (value(T, 14, dtype="i32"),), {"k": 3, "firsts": (0, 32)}, (T, 7)),
    ("local_places", (value("adjusted", 2, dtype="i32"),), {"first": 32, "count": 8}, ("adjusted", 2)),
    ("quantize", (value(T, 64), value(T, 1)), {"format": "int8_token"}, (T, 64)),
    ("all_gather", (value(T, 3, 4),), {"axis": 1, "rank": 1, "parts": (((0, 2),), ((2, 5),))}, (T, 5, 4)),
    ("local_ids", (value(T, 2, dtype="i32"),), {"first": 3, "count": 2}, (T, 2)),
    ("keep_local", (value(T, 4), value(T, 1, dtype="i32")), {"first": 3, "count": 2}, (T, 4)),
    ("log_sum_exp", (value(T, 4),), {}, (T, 1)),
    ("adjust", (value(T, 4), value("adjusted", 2), value("adjusted", 2)), {}, (T, 4)),
    ("mask", (value(T, 40), value("masked"), value("masked", 2)), {}, (T, 40)),
    ("gather", (value(T, 4), value(T, 2)), {}, (T, 2)),
    ("sparse_shares", (value(T, 4), value(T, 2)), {"tolerance": 0.02}, (T, 2)),
    ("take_columns", (value(T, 4), w(4)), {}, (T, 4)),
    ("take_columns_id", (value(T, 4), w(12), value(T, 2)), {}, (T, 2, 4)),
    ("normalize", (value(T, 4),), {}, (T, 4)),
    ("weighted_sum", (value(T, 2, 9), value(T, 2)), {}, (T, 9)),
    ("weighted_sum", (value(T, 2, 9), value(T, 3, 2)), {}, (T, 3, 9)),
    ("quantize", (value(T, 64),), {"format": "q8_1"}, (T, 64)),
    ("copy", (value(T, 4),), {}, (T, 4)),
    ("reshape", (value(T, 12),), {"shape": (T, 3, 4)}, (T, 3, 4)),
    ("columns", (value(T, 12),), {"start": 2, "size": 10}, (T, 10)),
    ("after", (value(T, 12), value(3)), {}, (T, 12)),
    ("mul_mat_concat", (value(T, 4), w(9, 4), w(2, 4)), {}, (T, 11)),
    ("mul_mat_add", (w(9, 4), value(T, 4), w(9), value(T, 9)), {}, (T, 9)),
    ("mul_mat_concat_add", (value(T, 4), w(9, 4), w(2, 4), w(9), w(2)), {}, (T, 11)),
    ("columns", (value(T, 2, 12),), {"start": 2, "size": 10}, (T, 2, 10)),
    ("mul_mat_id_concat", (w(5, 9, 4), value(T, 4), value(T, 2), w(5, 3, 4)), {}, (T, 2, 12)),
    ("mul_mat_id_gated", (w(5, 9, 4), value(T, 2, 4), value(T, 2, 4), value(T, 2)), {"gating": "swiglu"},
     (T, 2, 9)),
    ("mul_mat_id_gated", (w(5, 9, 4), value(T, 2, 4), value(T, 2, 4), value(T, 2), w(20), w(20)),
     {"gating": "clamped_swiglu", "slope": 1.0, "limit": 2.0}, (T, 2, 9)),
    ("sum_experts", (value(T, 2, 9), value(T, 5), value(T, 2), w(45), value(T, 9)),
     {"normalized": True, "biased": True}, (T, 9)),
    ("sum_experts", (value(T, 2, 9), value(T, 5), value(T, 2), value(T, 9)), {"normalized": True}, (T, 9)),
    ("soft_max_top_k", (value(T, 5),), {"k": 2}, (T, 2)),
    ("rms_norm", (value(T, 64), w(64)), {"eps": 1e-5, "out": "q8_1"}, (T, 64)),
    ("swiglu", (value(T, 64), value(T, 64)), {"out": "q8_1"}, (T, 64)),
    ("rope_set_rows",
     (value(T, 4, 8), value(T, 2, 8), value(T, 2, 8), value("rows", 2, 8), value("rows", 2, 8), POSITIONS, POSITIONS,
      w(4), w(8), w(8)), {**ROPE, "eps": 1e-5}, (T, 4, 8)),
    ("attention",
     (value(T, 4, 8), value("rows", 2, 8), value("rows", 2, 8), POSITIONS, STARTS, PAGES),
     {**ATTENTION, "out": "q8_1"}, (T, 32)),
]

BAD: list[tuple[str, tuple[Node, ...], dict[str, object]]] = [
    ("get_rows", (w(4), value(T)), {}),
    ("get_rows", (w(9, 4), value(T, 2)), {}),
    ("rms_norm", (value(T, 4), w(5)), {"eps": 1e-5}),
    ("clamp", (value(T, 4),), {"low": 2.0, "high": 1.0}),
    ("mul_mat", (w(9, 4), value(T, 5)), {}),
    ("mul_mat", (w(2, 9, 4), value(T, 4)), {}),
    ("mul_mat", (w(9, 4), value(T, 2, 4)), {}),
    ("mul_mat_id", (w(9, 4), value(T, 4), value(T, 2)), {}),
    ("lora", (value(T, 4), POSITIONS, value(3), TABLE, value(T, 9)), {"part": 0}),
    ("lora", (value(T, 5), POSITIONS, value(3), TABLE, value(T, 12)), {"part": None}),
    ("lora", (value(T, 4), POSITIONS, value(2), TABLE, value(T, 12)), {"part": None}),
    ("lora", (value(T, 4), POSITIONS, value(3), value(2, 8, 4, 3, 9), value(T, 12)), {"part": None}),
    ("mul_mat_concat_add", (value(T, 4), w(9, 4), w(2, 4), w(2), w(9)), {}),
    ("mul_mat_id", (w(5, 9, 4), value(T, 3), value(T, 2)), {}),
    ("mul_mat_id", (w(5, 9, 4), value(T, 3, 4), value(T, 2)), {}),
    ("mul_mat_id_gated", (w(5, 9, 4), value(T, 3, 4), value(T, 3, 4), value(T, 2)), {"gating": "swiglu"}),
    ("mul_mat_id_gated", (w(5, 9, 4), value(T, 2, 4), value(T, 2, 4), value(T, 2), w(20)), {"gating": "swiglu"}),
    ("mul_mat_id_concat", (w(5, 9, 4), value(T, 4), value(T, 2), w(5, 3, 5)), {}),
    ("sum_experts", (value(T, 2, 9), value(T, 5), value(T, 3)), {"normalized": True}),
    ("sum_experts", (value(T, 2, 9), value(T, 5), value(T, 2), w(9)), {"normalized": True}),
    ("soft_max_top_k", (value(T, 5),), {"k": 6}),
    ("rope", (value(T, 8), POSITIONS, w(4)), ROPE),
    ("rope", (value(T, 2, 8), POSITIONS, w(5)), ROPE),
    ("set_rows", (value("rows", 2, 8), value(T, 3, 8), POSITIONS), {}),
    ("attention", (value(T, 32), value("rows", 2, 8), value("rows", 2, 8), POSITIONS, STARTS, PAGES), ATTENTION),
    ("attention", (value(T, 3, 8), value("rows", 2, 8), value("rows", 2, 8), POSITIONS, STARTS, PAGES), ATTENTION),
    ("attention", (value(T, 4, 8), value("rows", 2, 6), value("rows", 2, 6), POSITIONS, STARTS, PAGES), ATTENTION),
    ("attention", (value(T, 4, 8), value("rows", 2, 8), value("rows", 1, 8), POSITIONS, STARTS, PAGES), ATTENTION),
    ("attention", (value(T, 4, 8), value("rows", 2, 8), value("rows", 2, 8), POSITIONS, STARTS, PAGES, w(2)),
     ATTENTION),
    ("slice_heads", (value(T, 2, 8),), {"start": 4, "size": 5}),
    ("join_heads", (value(T, 2, 8), value(T, 3, 8)), {}),
    ("keep_groups", (value(T, 8),), {"groups": 3, "used": 2, "best": 2}),
    ("keep_groups", (value(T, 8),), {"groups": 4, "used": 5, "best": 2}),
    ("keep_groups", (value(T, 8),), {"groups": 8, "used": 5, "best": 2}),
    ("numbers", (POSITIONS,), {"count": 0}),
    ("floor_divide", (value(T, 3, dtype="i32"),), {"by": 0}),
    ("attention", (value(T, 4, 8), value("rows", 2, 8), value("rows", 2, 8), POSITIONS, STARTS, PAGES),
     {**ATTENTION, "window": -4, "reach": 1}),
    ("attention", (value(T, 4, 8), SHARED, SHARED, POSITIONS, STARTS, PAGES), {**ATTENTION, "value_dim": 9}),
    ("attention", (value(T, 4, 8), SHARED, value("rows", 1, 8), POSITIONS, STARTS, PAGES),
     {**ATTENTION, "value_dim": 6}),
    ("clamped_swiglu", (value(T, 4), value(T, 5)), CLAMPED),
    ("clamped_swiglu", (value(T, 4), value(T, 4)), {**CLAMPED, "limit": 0.0}),
    ("add_rows", (value(T, 2, 4), w(13), value(T, 2)), {}),
    ("add_rows", (value(T, 2, 4), w(12), value(T, 3)), {}),
    ("causal_conv", (value(T, 5), w(12), value("states", 2, 4), *SLOTS), {}),
    ("causal_conv", (value(T, 4), w(16), value("states", 2, 4), *SLOTS), {}),
    ("causal_conv", (value(T, 4), w(4), value("states", 0, 4), *SLOTS), {}),
    ("gated_delta_rule", delta(heads=3, gate=3, state=(3, 8, 6)), {"tiled": False}),
    ("gated_delta_rule", delta(keys=(8,)), {"tiled": False}),
    ("gated_delta_rule", delta(gate=2), {"tiled": False}),
    ("gated_delta_rule", delta(decays=8), {"tiled": False}),
    ("gated_delta_rule", delta(state=(4, 6, 8)), {"tiled": False}),
    ("causal_conv", (value(T, 4), w(12), value("states", 2, 4), *SLOTS, w(3)), {}),
    ("causal_conv", (value(T, 4), w(12), value("states", 2, 4), *SLOTS, w(4), w(4)), {}),
    ("selective_scan", scan(heads=3, gate=3, state=(3, 8, 6)), {}),
    ("selective_scan", scan(keys=(8,)), {}),
    ("selective_scan", scan(gate=2), {}),
    ("selective_scan", scan(state=(4, 6, 8)), {}),
    ("channel_scan", channels(dt=5), {}),
    ("wkv7", mixing(width=8), {"eps": 1e-5}),
    ("wkv6", (*(value(T, 12),) * 4, w(36), value("states", 2, 6, 6), *SLOTS), {"eps": 1e-5}),
    ("wkv6", (*(value(T, 12),) * 4, w(48), value("states", 6, 2, 6), *SLOTS), {"eps": 1e-5}),
    ("wkv7", mixing(vectors=84), {"eps": 1e-5}),
    ("wkv7", mixing(state=(2, 6, 5)), {"eps": 1e-5}),
    ("wkv7", mixing(state=(3, 6, 6)), {"eps": 1e-5}),
    ("wkv7", mixing(more=(12,)), {"eps": 1e-5}),
    ("wkv7", mixing(vectors=84, more=(12,)), {"eps": 1e-5}),
    ("wkv7", mixing(more=(12, 8)), {"eps": 1e-5}),
    ("channel_scan", channels(keys=7), {}),
    ("channel_scan", channels(ssm_a=31), {}),
    ("channel_scan", channels(state=(4, 8)), {}),
    ("channel_scan", channels(state=(8, 4, 1)), {}),
    ("swiglu", (value(T, 4), value(T, 5)), {}),
    ("geglu", (value(T, 4), value(T, 5)), {}),
    ("add", (value(T, 4), w(5)), {}),
    ("add", (value(T, 4), value(1, 4)), {}),
    ("mul", (value(T, 4), w(5)), {}),
    ("layer_norm", (value(T, 4), w(4), w(5)), {"eps": 1e-5}),
    ("layer_norm", (value(T, 4), w(4), w(4), w(4)), {"eps": 1e-5}),
    ("scale_by_position", (value(T, 4), POSITIONS), SPANS),
    ("correct_streams", (value(T, 2, 4), value(T, 2), value(T, 1, 4), value(T, 1, 4)), {}),
    ("correct_streams", (value(T, 2, 4), value(T, 2, 1), value(T, 1, 4)), {}),
    ("add_to_streams", (value(T, 2, 4), value(T, 2, 1), value(T, 1, 5)), {}),
    ("as_large_as", (value(T, 8), value(T, 8)), {"least": 1e-5}),
    ("scale_by_position", (value(T, 2, 4), value(T, 1, 1)), {**SPANS, "length": 0}),
    ("top_k", (value(T, 4),), {"k": 0}),
    ("top_k", (value(T, 4),), {"k": 5}),
    ("top_candidates", (value(T, 4),), {"k": 0}),
    ("top_candidates", (value(T, 4),), {"k": 5}),
    ("draw", (value(T, 7), value(T, 6)), {}),
    ("all_reduce", (value(T, 4, dtype="f16"),), {}),
    ("all_max", (value(T, 1, dtype="i32"),), {}),
    ("merge_candidates", (value(T, 13, dtype="i32"),), {"k": 3, "firsts": (0, 32)}),
    ("local_places", (value("adjusted", 3, dtype="i32"),), {"first": 32, "count": 8}),
    ("quantize", (value(T, 64), value(T, 2)), {"format": "int8_token"}),
    ("quantize", (value(T, 64), value(T, 1)), {"format": "q8_1"}),
    ("all_gather", (value(T, 4),), {"axis": 1, "rank": 0, "parts": (((0, 3),), ((3, 7),))}),
    ("all_gather", (value(T, 4),), {"axis": 2, "rank": 0, "parts": (((0, 4),), ((4, 8),))}),
    ("local_ids", (value(T, 2, dtype="i32"),), {"first": 3, "count": 0}),
    ("keep_local", (value(T, 4), value(T, 2, dtype="i32")), {"first": 3, "count": 2}),
    ("log_sum_exp", (value(T, 4, 4),), {}),
    ("adjust", (value(T, 4), value("adjusted", 2), value("masked", 2)), {}),
    ("mask", (value(T, 40), value("masked"), value("masked", 1)), {}),
    ("gather", (value(T, 4), value(3, 2)), {}),
    ("sparse_shares", (value(T, 4), value(3, 2)), {"tolerance": 0.02}),
    ("sparse_shares", (value(T, 4), value(T, 2)), {"tolerance": -0.02}),
    ("take_columns", (value(T, 4), w(3)), {}),
    ("take_columns_id", (value(T, 4), w(13), value(T, 2)), {}),
    ("weighted_sum", (value(T, 2), value(T, 2)), {}),
    ("weighted_sum", (value(T, 3, 9), value(T, 2)), {}),
    ("weighted_sum", (value(T, 3, 9), value(T, 3, 2)), {}),
    ("reshape", (value(T, 12),), {"shape": (T, 3, 5)}),
    ("reshape", (value(T, 12),), {"shape": (12, T)}),
    ("columns", (value(T, 12),), {"start": 3, "size": 10}),
    ("columns", (value(T, 12),), {"start": -1, "size": 3}),
    ("columns", (value(T, 3, 12),), {"start": 10, "size": 3}),
    ("mul_mat_concat", (value(T, 4), w(9, 4), w(2, 5)), {}),
    ("mul_mat_concat", (value(T, 4),), {}),
    ("mul_mat_add", (w(9, 4), value(T, 4), w(4)), {}),
    ("rms_norm", (value(T, 64), w(63)), {"eps": 1e-5, "out": "q8_1"}),
    ("swiglu", (value(T, 64), value(T, 32)), {"out": "q8_1"}),
    ("rope_set_rows",
     (value(T, 4, 8), value(T, 2, 8), value(T, 1, 8), value("rows", 2, 8), value("rows", 2, 8), POSITIONS, POSITIONS,
      w(4)), ROPE),
    ("rope_set_rows",
     (value(T, 4, 8), value(T, 2, 8), value(T, 2, 8), value("rows", 2, 8), value("rows", 2, 8), POSITIONS, POSITIONS,
      w(4), w(8)), ROPE),
    ("attention", (value(T, 4, 8), value("rows", 3, 8), value("rows", 3, 8), POSITIONS, STARTS, PAGES),
     {**ATTENTION, "out": "q8_1"}),
    ("soft_max", (value(T, 4),), {"out": "int4"}),
    ("top_k", (value(T, 64),), {"k": 2, "out": "q8_1"}),
    ("reshape", (value(T, 12),), {"shape": (T, 3, 4), "out": "q8_1"}),
]


@pytest.mark.parametrize(("name", "inputs", "attrs", "shape"), GOOD, ids=[g[0] for g in GOOD])
def test_shapes(name: str, inputs: tuple[Node, ...], attrs: dict[str, object], shape: Shape) -> None:
    attrs = dict(attrs)
    node = apply(name, *inputs, label="here", **attrs)
    assert node.shape == shape
    out = attrs.pop("out", None)
    assert (node.op, node.inputs, dict(node.attrs), node.name) == (name, inputs, attrs, "here")
    assert (node.quantizes, node.title) == (out is not None, name if out is None else f"{name}:{out}")


@pytest.mark.parametrize(("name", "inputs", "attrs"), BAD, ids=[b[0] for b in BAD])
def test_wrong_shapes(name: str, inputs: tuple[Node, ...], attrs: dict[str, object]) -> None:
    with pytest.raises(GraphError) as caught:
        apply(name, *inputs, **attrs)
    message = str(caught.value)
    inner = {"mul_mat_concat": "mul_mat", "rope_set_rows": "set_rows", "mul_mat_id_gated": "mul_mat_id",
             "mul_mat_id_concat": "mul_mat_id",
             "sum_experts": "weighted_sum", "soft_max_top_k": "top_k"}
    assert message.startswith((f"{name}: ", f"{inner.get(name)}: "))
    assert any(str(list(n.shape)) in message for n in inputs)


def test_every_op_is_tried() -> None:
    assert {g[0] for g in GOOD} == set(OPS)
    without_rules = {"soft_cap", "soft_max", "sigmoid", "gelu", "gelu_erf", "normalize", "copy", "after"}
    without_rules |= {"keep_largest", "largest_magnitude", "relu_squared", "xielu"}
    assert {b[0] for b in BAD if "out" not in b[2]} == set(OPS) - without_rules


def test_dtypes() -> None:
    assert apply("top_k", value(T, 4), k=2).dtype == "i32"
    assert apply("quantize", value(T, 64), format="q8_1").dtype == "q8_1"
    cache = value("rows", 2, 8, dtype="f16")
    assert apply("set_rows", cache, value(T, 2, 8), POSITIONS).dtype == "f16"
    assert apply("copy", value(T, dtype="i32")).dtype == "i32"


def test_bind_puts_numbers_for_names() -> None:
    assert bind(("tokens", 3, "rows"), {"tokens": 5, "rows": 7}) == (5, 3, 7)


def test_inputs_come_before_their_users_and_each_node_once() -> None:
    x = value(T, 4)
    a = apply("soft_max", x)
    b = apply("add", a, apply("mul", a, x))
    c = apply("add", b, apply("add", a, b))
    graph = Graph.of(c, a, b)
    position = {id(n): i for i, n in enumerate(graph.nodes)}
    assert len(position) == len(graph.nodes) == 6
    assert all(position[id(i)] < position[id(n)] for n in graph.nodes for i in n.inputs)
    assert graph.outputs == (c, a, b)
    assert graph.nodes[-1] is c
    assert len(graph.users()[id(a)]) == 3
    assert [n.op for n in graph.users()[id(x)]] == ["soft_max", "mul"]


def test_a_graph_may_be_deeper_than_the_stack() -> None:
    x = value(T, 4)
    for _ in range(5000):
        x = apply("soft_max", x)
    assert len(Graph.of(x).nodes) == 5001


def test_the_builder_writes_a_cache_before_it_is_read() -> None:
    g = GraphBuilder("f32", page_size=16)
    q, k, v = (g.split_heads(value(T, 16, name=n), 2) for n in "qkv")
    node = g.attention(q, k, v, layer=3, scale=0.5)
    graph = Graph.of(node)
    caches = list(graph.leaves("cache"))
    assert [(c.name, c.dtype, c.shape) for c in caches] == [
        ("blk.3.cache_k", "f32", ("rows", 2, 8)), ("blk.3.cache_v", "f32", ("rows", 2, 8)),
    ]
    assert [n.op for n in node.inputs[1:3]] == ["set_rows", "set_rows"]
    assert dict(node.attrs) == {"scale": 0.5, "page_size": 16, "window": 0, "cap": 0.0}
