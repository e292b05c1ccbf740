"""How the graph of an op case is written: one small function an op, on plain ops only. Tests register more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name, channel_format, quantize_reference
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.formats.group import row_named
from octavo.formats.rows import SCHEMES
from octavo.formats.spec import F32, AnyArray
from octavo.graph.builder import CacheType, GraphBuilder, constant, weight
from octavo.graph.factors import LowRank
from octavo.graph.node import PAGE_SIZE, DType, Node
from octavo.graph.pointwise import Pointwise

Draw = Callable[[int], AnyArray]
"""Tokens in a step -> the values of an input, [tokens, ...]."""
OF_ROWS = frozenset(scheme.format for scheme in SCHEMES.values())
"""Formats that have a scale for a whole row, whose length says which they are."""


class Sketch:
    """What a case's graph is drawn with: random weights, and inputs whose values are drawn for each step.

    `draws` is how the values of each input are made, by its name; `adapters` are those of tables, slot by slot.
    """

    def __init__(self, rng: np.random.Generator, formats: tuple[str, ...], shape: Mapping[str, Any]) -> None:
        self.rng, self.formats, self.shape = rng, formats, shape
        self.draws: dict[str, Draw] = {}
        self.adapters: list[dict[str, LowRank]] = []
        cache = cast(CacheType, shape.get("cache", "f16"))
        self.builder = GraphBuilder(cache, PAGE_SIZE, static=_static(cache, shape) if "static" in shape else None)

    def __getitem__(self, name: str) -> int:
        return int(self.shape[name])

    def given(self, name: str, *shape: int) -> Node:
        """An input [tokens, *shape] of numbers from -1 to 1."""
        self.draws[name] = lambda tokens: self.rng.uniform(-1, 1, (tokens, *shape)).astype(np.float32)
        return Node("input", (), ("tokens", *shape), "f32", name=name)

    def chosen(self, name: str, *shape: int, below: int) -> Node:
        """An input of integers, [tokens] or [tokens, k]; the k of a row are different ones."""

        def draw(tokens: int) -> AnyArray:
            if not shape:
                return self.rng.integers(0, below, tokens, dtype=np.int32)
            rows = [self.rng.permutation(below)[: shape[0]] for _ in range(tokens)]
            return np.array(rows, np.int32)

        self.draws[name] = draw
        dtype: DType = "i32"
        return Node("input", (), ("tokens", *shape), dtype, name=name)

    def positions(self, below: int) -> Node:
        """The builder's `positions`, drawn at random."""
        self.draws["positions"] = lambda tokens: self.rng.integers(0, below, tokens, dtype=np.int32)
        return self.builder.positions

    def counts(self, name: str, *shape: int) -> Node:
        """An input of integers [tokens, *shape] up to 1,000."""
        self.draws[name] = lambda tokens: self.rng.integers(0, 1000, (tokens, *shape), dtype=np.int32)
        return Node("input", (), ("tokens", *shape), "i32", name=name)

    def matrix(self, name: str, *shape: int, number: int = 0) -> Node:
        """A weight [N, K] or [E, N, K] in the case's format of that number (the last one, if it has fewer)."""
        named = self.formats[min(number, len(self.formats) - 1)]
        fmt = channel_format(named, shape[-1]) if named in OF_ROWS else row_named(named)
        return weight(random_matrix(f"{name}.weight", fmt, shape, self.rng))

    def vector(self, name: str, size: int) -> Node:
        """A float32 weight of numbers around 1."""
        values = 1 + 0.2 * self.rng.standard_normal(size)
        return weight(quantize_reference(values, by_name("F32"), f"{name}.weight"))

    def freqs(self) -> Node:
        """Rope frequencies: of `turned` values of each head, or of the whole head."""
        turned = int(self.shape.get("turned", self.shape["dim"]))
        return constant((10000.0 ** (-np.arange(0, turned, 2) / turned)).astype(np.float32), "freqs")


def _static(cache: str, shape: Mapping[str, Any]) -> dict[tuple[int, str], F32]:
    """Static scales for keys and values from -1 to 1, of which the last head's largest eighth is cut off."""
    largest = np.linspace(1, 0.875, shape["kv_heads"], dtype=np.float32)
    scale = largest / np.float32(CACHE_FORMATS[cache].top)
    return {(0, "k"): scale, (0, "v"): scale}


GRAPHS: dict[str, Callable[[Sketch], Node]] = {}
"""Of pointwise ops `pointwise` draws all."""


def pointwise(s: Sketch, op: Pointwise) -> Node:
    """On values [tokens, k], or with `used` [tokens, used, k].

    With `row` further inputs are one row for all; with `spread` 1, 2 and 3 they have a number for each row, a row for
    each token, and a number for each token.
    """
    rows = [s["used"]] if "used" in s.shape else []
    sizes, spread, inputs = [*rows, s["k"]], s.shape.get("spread", 0), list[Node]()
    for name in op.inputs:
        if inputs and s.shape.get("row"):
            inputs.append(s.vector(name, s["k"]))
        else:
            inputs.append((s.counts if name in op.integers else s.given)(name, *sizes))
        sizes = [1 if spread & 1 << i else size for i, size in enumerate(reversed(sizes))][::-1]
    return op(*inputs, **op.numbers)


def graph(write: Callable[[Sketch], Node]) -> Callable[[Sketch], Node]:
    GRAPHS[write.__name__] = write
    return write


@graph
def mul_mat(s: Sketch) -> Node:
    return s.builder.mul_mat(s.matrix("w", s["n"], s["k"]), s.given("x", s["k"]))


@graph
def mul_mat_id(s: Sketch) -> Node:
    """`shared`: the experts of a token see one row of x; else a row each."""
    ids = s.chosen("ids", s["used"], below=s["experts"])
    x = s.given("x", s["k"]) if s["shared"] else s.given("x", s["used"], s["k"])
    return s.builder.mul_mat_id(s.matrix("w", s["experts"], s["n"], s["k"]), x, ids)


@graph
def attention(s: Sketch) -> Node:
    """Writes k and v to the cache, then reads it. A shape may have a `window`, a `cap` for scores, `sinks`, a `reach`,
    and slopes of `alibi`.
    With `shared`, that many first values of keys are values too. A window below 0 is a chunk.
    With `static`, scales of the cache are.

    With several steps it reads what earlier ones wrote.
    """
    q = s.given("q", s["heads"], s["dim"])
    k, v = (s.given(name, s["kv_heads"], s["dim"]) for name in "kv")
    shared = int(s.shape.get("shared", 0))
    limits = s.shape.get("window", 0), s.shape.get("cap", 0)
    sinks, reach = s.vector("sinks", s["heads"]) if s.shape.get("sinks") else None, s.shape.get("reach", 0)
    alibi = float(s.shape.get("alibi", 0))
    return s.builder.attention(q, k, None if shared else v, 0, s["dim"] ** -0.5, *limits, sinks, reach, shared, alibi)
