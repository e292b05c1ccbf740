"""Graphs of op cases as in `op_graphs`, for ops that keep a state of each sequence."""

from __future__ import annotations

import numpy as np

from octavo.bench.op_graphs import Sketch, graph
from octavo.graph.builder import constant
from octavo.graph.node import Node


@graph
def causal_conv(s: Sketch) -> Node:
    made = s["channels"] * s.shape.get("filters", 1)
    taps = s.rng.uniform(-1, 1, (s["width"], made)).astype(np.float32)
    bias = s.vector("bias", made) if "biased" in s.shape else None
    return s.builder.causal_conv(s.given("x", s["channels"]), taps, 0, silu=bool(s["silu"]), bias=bias)


@graph
def gated_delta_rule(s: Sketch) -> Node:
    """With keys of length 1 or so, as models have them, for others a state grows without end."""
    g, heads, size = s.builder, s["heads"], s["size"]
    even = constant(np.full(s["keys"], s["keys"] ** -0.5, np.float32), "even")
    q, k = (g.rms_norm(s.given(name, s["key_heads"], s["keys"]), even, 1e-6) for name in "qk")
    decays = heads * s["keys"] if "by_row" in s.shape else heads
    alpha, beta = s.given("alpha", decays), s.given("beta", heads)
    ssm_a = constant(s.rng.uniform(-8, -0.01, heads).astype(np.float32), "ssm_a")
    bias, tiled = s.vector("bias", decays), bool(s["tiled"])
    return g.gated_delta_rule(q, k, s.given("v", heads, size), alpha, beta, ssm_a, bias, 0, tiled=tiled)


@graph
def selective_scan(s: Sketch) -> Node:
    """With decays as models have them."""
    heads, of_keys = s["heads"], (s["groups"], s["keys"])
    ssm_a = constant(s.rng.uniform(-8, -0.01, heads).astype(np.float32), "ssm_a")
    x, b, c, dt = s.given("x", heads, s["size"]), s.given("b", *of_keys), s.given("c", *of_keys), s.given("dt", heads)
    return s.builder.selective_scan(x, b, c, dt, ssm_a, s.vector("dt_bias", heads), s.vector("ssm_d", heads), 0)


@graph
def channel_scan(s: Sketch) -> Node:
    """With decays as models have them."""
    channels, keys = s["channels"], s["keys"]
    ssm_a = s.rng.uniform(-8, -0.01, (keys, channels)).astype(np.float32)
    x, b, c, dt = (s.given(name, n) for name, n in (("x", channels), ("b", keys), ("c", keys), ("dt", channels)))
    return s.builder.channel_scan(x, b, c, dt, ssm_a, s.vector("ssm_d", channels), 0)


@graph
def wkv7(s: Sketch) -> Node:
    """With the norm that RWKV-7 has, or none."""
    heads, mixed = s["heads"], "mixed" in s.shape
    width = heads * s["size"]
    vectors = s.rng.uniform(-1, 1, (8 if mixed else 7, width)).astype(np.float32)
    r, w, k, v, a = (s.given(name, width) for name in "rwkva")
    first = (s.given("first", width), s.given("gate", width)) if mixed else None
    return s.builder.wkv7(r, w, k, v, a, vectors, 0, heads, None if "plain" in s.shape else 64e-5, first)
