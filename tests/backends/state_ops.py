"""Ops with states, run over sequences that are divided into steps in any way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.formats.spec import F32
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.executor import Executor
from octavo.graph.node import DType, Graph, Node
from octavo.graph.protocol import Backend
from octavo.graph.schedule import schedule

TOKENS, SLOTS = 40, 3
CHANNELS, TAPS = 64, 4
HEADS, KEY_HEADS, KEYS, SIZE = 4, 2, 16, 32

Part = tuple[int, int]
"""The sequence of which a step takes tokens, and how many."""


def given(name: str, *shape: int, dtype: DType = "f32") -> Node:
    return Node("input", (), ("tokens", *shape), dtype, name=name)


def conv(g: GraphBuilder) -> Node:
    rng = np.random.default_rng(1)
    taps = rng.uniform(-1, 1, (TAPS, CHANNELS)).astype(np.float32)
    bias = constant(rng.uniform(-1, 1, CHANNELS).astype(np.float32), "bias")
    return g.causal_conv(given("x", CHANNELS), taps, 0, silu=True, bias=bias)


def delta(g: GraphBuilder) -> Node:
    q, k, v = given("q", KEY_HEADS, KEYS), given("k", KEY_HEADS, KEYS), given("v", HEADS, SIZE)
    ssm_a = constant(np.linspace(-4, -0.1, HEADS, dtype=np.float32), "ssm_a")
    dt_bias = constant(np.linspace(-1, 1, HEADS, dtype=np.float32), "dt_bias")
    return g.gated_delta_rule(q, k, v, given("alpha", HEADS), given("beta", HEADS), ssm_a, dt_bias, 0, tiled=False)


def delta_by_row(g: GraphBuilder) -> Node:
    """With a decay for each row of a head's matrix."""
    q, k, v = given("q", KEY_HEADS, KEYS), given("k", KEY_HEADS, KEYS), given("v", HEADS, SIZE)
    ssm_a = constant(np.linspace(-4, -0.1, HEADS, dtype=np.float32), "ssm_a")
    dt_bias = constant(np.linspace(-1, 1, HEADS * KEYS, dtype=np.float32), "dt_bias")
    alpha, beta = given("alpha", HEADS * KEYS), given("beta", HEADS)
    return g.gated_delta_rule(q, k, v, alpha, beta, ssm_a, dt_bias, 0, tiled=False)


def scan(g: GraphBuilder) -> Node:
    x, b, c = given("x", HEADS, SIZE), given("b", KEY_HEADS, KEYS), given("c", KEY_HEADS, KEYS)
    ssm_a, dt_bias, ssm_d = (
        constant(np.linspace(*ends, HEADS, dtype=np.float32), name) for name, ends in SCANNED.items())
    return g.selective_scan(x, b, c, given("dt", HEADS), ssm_a, dt_bias, ssm_d, 0)


def of_channels(g: GraphBuilder) -> Node:
    x, b, c, dt = (given(name, n) for name, n in (("x", CHANNELS), ("b", KEYS), ("c", KEYS), ("dt", CHANNELS)))
    ssm_d = constant(np.linspace(*SCANNED["ssm_d"], CHANNELS, dtype=np.float32), "ssm_d")
    return g.channel_scan(x, b, c, dt, SSM_A, ssm_d, 0)


def shifted(g: GraphBuilder) -> Node:
    """Two filters of each channel, of two tokens."""
    return g.causal_conv(given("x", CHANNELS), FILTERS, 0)


def mixing(g: GraphBuilder) -> Node:
    r, w, k, v, a, first, gate = (given(name, HEADS * SIZE) for name in MIXED)
    return g.wkv7(r, w, k, v, a, VECTORS, 0, HEADS, 64e-5, (first, gate))


def mixing_of_6(g: GraphBuilder) -> Node:
    r, w, k, v = (given(name, HEADS * SIZE) for name in MIXED[:4])
    return g.wkv6(r, w, k, v, VECTORS[:4], 0, HEADS, 64e-5)


FILTERS = np.random.default_rng(3).uniform(-1, 1, (2, 2 * CHANNELS)).astype(np.float32)
VECTORS = np.random.default_rng(4).uniform(-1, 1, (8, HEADS * SIZE)).astype(np.float32)
MIXED = (*"rwkva", "first", "gate")
SCANNED = {"ssm_a": (-4, -0.1), "dt_bias": (-1, 1), "ssm_d": (0.5, 2)}
"""The first and the last head's numbers."""
SSM_A = np.linspace(-4, -0.1, KEYS * CHANNELS, dtype=np.float32).reshape(KEYS, CHANNELS)
"""Of channels that each have some of their own."""
GRAPHS = {
    "causal_conv": conv, "gated_delta_rule": delta, "gated_delta_rule_by_row": delta_by_row, "selective_scan": scan,
    "channel_scan": of_channels, "token_shift": shifted, "wkv7": mixing, "wkv6": mixing_of_6,
}
WITH_KERNELS = tuple(op for op in GRAPHS if op != "wkv6")
"""Those that not only the reference backend has."""


class Steps:
    """An op whose inputs are drawn for every token of SLOTS sequences. Slots hold NaN at first."""

    def __init__(self, op: str, backend: Backend) -> None:
        graph = Graph.of(GRAPHS[op](GraphBuilder()))
        limits = {"tokens": TOKENS, "sequences": SLOTS, "boundaries": SLOTS + 1, "states": SLOTS}
        self.executor = Executor(schedule(graph, [backend], limits, strict=True), [backend], limits)
        rng, named = np.random.default_rng(2), ("positions", "starts", "slots")
        drawn = [n for n in graph.leaves("input") if n.name not in named]
        self.values = {n.name: rng.uniform(-0.5, 0.5, (SLOTS, TOKENS, *n.shape[1:])).astype(np.float32) for n in drawn}
        for states in self.executor._states.values():
            states[:] = np.nan
        self.done = [0] * SLOTS

    def step(self, *parts: Part) -> list[F32]:
        """What comes of the next tokens of some sequences; those of one token come first, as in a batch."""
        counts = [n for _, n in parts]
        ones = next((i for i, n in enumerate(counts) if n != 1), len(counts))
        bounds = np.cumsum([0, *counts])
        inputs = {
            name: np.concatenate([values[s, self.done[s] : self.done[s] + n] for s, n in parts])
            for name, values in self.values.items()
        }
        inputs["positions"] = np.concatenate([np.arange(self.done[s], self.done[s] + n) for s, n in parts])
        inputs["starts"] = bounds[ones:] if ones < len(counts) else bounds
        inputs["slots"] = np.array([s for s, _ in parts])
        sizes = {"tokens": int(bounds[-1]), "sequences": len(parts), "boundaries": len(inputs["starts"])}
        (found,) = self.executor.run(inputs, sizes)
        for s, n in parts:
            self.done[s] += n
        return np.split(found, bounds[1:-1])


def whole(op: str, backend: Backend) -> list[F32]:
    """What comes of each sequence in a step of its own."""
    steps = Steps(op, backend)
    return [steps.step((s, TOKENS))[0] for s in range(SLOTS)]


def divided(op: str, backend: Backend) -> list[F32]:
    """The same in steps of several sequences, with one token, a few, many, or none."""
    steps, found = Steps(op, backend), [list[F32]() for _ in range(SLOTS)]
    plans: Sequence[tuple[Part, ...]] = (
        ((0, 2), (1, 7)), ((2, 1), (0, 5)), ((1, 1), (2, 1), (0, 1)), ((1, 0), (2, 3)), ((1, 1), (0, 3), (2, 2)),
        *[((0, 1), (1, 1))] * 3, ((2, 33), (1, 4)), ((0, TOKENS - 14),), ((1, TOKENS - 16),),
    )
    for parts in plans:
        for (sequence, _), rows in zip(parts, steps.step(*parts), strict=True):
            found[sequence].append(rows)
    assert steps.done == [TOKENS] * SLOTS
    return [np.concatenate(rows) for rows in found]
