"""On the CPU a token's numbers are the same, bit for bit, whatever other tokens are in the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.bench.cases import GROUPS, WEIGHTS, OpCase, executor
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name
from octavo.formats.spec import AnyArray
from octavo.graph.builder import weight
from octavo.graph.executor import Executor
from octavo.graph.lower import lower
from octavo.graph.node import PAGE_SIZE, DType, Graph, Node
from octavo.graph.ops import apply
from octavo.graph.protocol import Backend
from octavo.graph.schedule import schedule
from tests.sampling import slow

HEADS, KV_HEADS, DIM, WIDTH = 4, 2, 64, 10
LENGTH = 9 * PAGE_SIZE + 11


def leaf(name: str, shape: tuple[int | str, ...], dtype: DType = "f32") -> Node:
    return Node("input", (), shape, dtype, name=name)


class Attention:
    """Attention over one sequence in a cache, whose keys and values are set before; `latent`: keys are values too."""

    def __init__(
        self, kind: DType, latent: bool = False, backend: Backend | None = None, length: int = LENGTH, **attrs: float
    ) -> None:
        caches = [Node("cache", (), ("rows", KV_HEADS, DIM), kind, {"kind": k}, name=k) for k in "kv"]
        given = [leaf("x", ("tokens", KV_HEADS, DIM)), leaf("rows", ("tokens",), "i64")]
        keys, values = (apply("set_rows", cache, *given) for cache in caches)
        values = keys if latent else values
        where = [leaf("positions", ("tokens",), "i32"), leaf("starts", ("boundaries",), "i32")]
        where.append(leaf("pages", ("sequences", WIDTH), "i32"))
        q = leaf("q", ("tokens", HEADS, DIM))
        node = apply("attention", q, keys, values, *where, scale=0.2, page_size=PAGE_SIZE, **attrs)
        limits = {"tokens": 64, "rows": WIDTH * PAGE_SIZE, "sequences": 8, "boundaries": 9}
        backend = backend or CpuBackend(threads=2, exact=True)
        self._executor = Executor(schedule(Graph.of(node), [backend], limits), [backend], limits)
        rng = np.random.default_rng(0)
        self.q, self.x = (rng.standard_normal((length, heads, DIM)).astype(np.float32) for heads in (HEADS, KV_HEADS))
        for first in range(0, length, 64):
            self.at(list(range(first, min(first + 64, length))))

    def at(self, positions: list[int], *, apart: bool = False) -> AnyArray:
        """Of tokens that follow each other in a prompt, or of one token of each of several sequences, all the same."""
        n = len(positions)
        sizes = {"tokens": n, "sequences": n if apart else 1, "boundaries": n + 1 if apart else 2}
        inputs = {
            "x": self.x[positions], "rows": np.array(positions, np.int64), "q": self.q[positions],
            "positions": np.array(positions, np.int32),
            "starts": np.array(range(n + 1) if apart else [0, n], np.int32),
            "pages": np.tile(np.arange(WIDTH, dtype=np.int32), (sizes["sequences"], 1)),
        }
        (out,) = self._executor.run(inputs, sizes)
        return np.array(out)


@pytest.mark.parametrize("kind", ["f16", *map(slow, ("f32", "q8_0", "int8", "fp8", "int4"))])
@pytest.mark.parametrize("attrs", [{}, slow({"window": 200}), slow({"cap": 5.0})])
def test_attention_in_prompts_and_replies(kind: DType, attrs: dict[str, float]) -> None:
    attention = Attention(kind, **attrs)
    for first, count in ((3, 21), (250, 17), (LENGTH - 64, 64)):
        positions = list(range(first, first + count))
        alone = np.concatenate([attention.at([p]) for p in positions])
        np.testing.assert_array_equal(attention.at(positions), alone)
        np.testing.assert_array_equal(attention.at(positions[5:14]), alone[5:14])
        np.testing.assert_array_equal(attention.at(positions[:8], apart=True), alone[:8])


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["f16", "int8", *map(slow, ("fp8", "int4"))])
def test_latent_attention_in_prompts_and_replies(kind: DType) -> None:
    attention = Attention(kind, latent=True, value_dim=64 if kind == "int4" else 48)
    for first, count in ((3, 21), (250, 17), (LENGTH - 64, 64)):
        positions = list(range(first, first + count))
        alone = np.concatenate([attention.at([p]) for p in positions])
        np.testing.assert_array_equal(attention.at(positions), alone)
        np.testing.assert_array_equal(attention.at(positions[:8], apart=True), alone[:8])


ROWS = ("INT8", "INT4", "INT4_G128", "FP8")
"""Matrices with a scale for each row."""
TOGETHER = (2, 3, 4, 5, 8, 16, 33)


def run(case: OpCase, backend: Backend | None = None, together: Sequence[int] = TOGETHER) -> None:
    """A case of 33 tokens, each alone and the first ones of them together."""
    built = case.build()
    ((inputs, _),) = built.steps
    plans = executor(built, [backend or CpuBackend(threads=2, exact=True)])

    def rows(start: int, stop: int) -> AnyArray:
        given = {name: value[start:stop] for name, value in inputs.items()}
        (out,) = plans.run(given, {"tokens": stop - start})
        return np.array(out)

    alone = np.concatenate([rows(i, i + 1) for i in range(case.tokens)])
    for n in together:
        np.testing.assert_array_equal(rows(0, n), alone[:n], err_msg=f"{n} tokens")
    np.testing.assert_array_equal(rows(11, 33), alone[11:], err_msg="from token 11 on")


@pytest.mark.parametrize("name", [n if n in ("Q4_K", "Q8_0", "F16") else slow(n) for n in (*WEIGHTS, *GROUPS, *ROWS)])
def test_products_of_each_format(name: str) -> None:
    run(OpCase("mul_mat", 33, {"n": 48, "k": 512}, (name,)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "Q4_0", "F16"])
def test_products_of_larger_matrices(name: str) -> None:
    run(OpCase("mul_mat", 33, {"n": 1000, "k": 4096}, (name,)))


@pytest.mark.parametrize("name", ["Q4_K", *(slow(n) for n in (*WEIGHTS, *GROUPS) if n != "Q4_K")])
def test_products_of_experts(name: str) -> None:
    """Few pairs of a token and an expert are computed one by one, many sorted by expert."""
    run(OpCase("mul_mat_id", 33, {"n": 48, "k": 512, "experts": 8, "used": 2, "shared": 1}, (name,)))


@pytest.mark.parametrize("rows", [24, 1047])
@pytest.mark.parametrize("name", ["Q8_0", slow("IQ4_NL"), slow("Q4_0"), slow("Q5_1"), slow("MXFP4")])
def test_products_of_many_tokens_and_of_few(name: str, rows: int) -> None:
    """71 tokens are more than have their sums kept at a time, and 288 values more than are unpacked at a time.

    1,047 rows are enough for tasks of 64 rows, and the last task has 23.
    """
    rng = np.random.default_rng(0)
    node = apply("mul_mat", weight(random_matrix("w", by_name(name), (rows, 288), rng)), leaf("x", ("tokens", 288)))
    backend, limits = CpuBackend(threads=2, exact=True), {"tokens": 71}
    executor = Executor(schedule(lower(Graph.of(node), [backend]), [backend], limits), [backend], limits)
    x = rng.standard_normal((71, 288)).astype(np.float32)
    every = np.array(executor.run({"x": x}, {"tokens": 71})[0])
    for part in (slice(5, 6), slice(9, 14), slice(40, 71)):
        some = executor.run({"x": x[part]}, {"tokens": part.stop - part.start})[0]
        np.testing.assert_array_equal(some, every[part])
