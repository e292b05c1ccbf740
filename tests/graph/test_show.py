"""A schedule as text and as rows."""

from __future__ import annotations

import json

from octavo.graph.node import Graph
from octavo.graph.ops import apply
from octavo.graph.schedule import schedule
from octavo.graph.show import rows, text
from tests.graph.small import LIMITS, K, Limited, given, w


def shown() -> tuple[list[str], list[dict[str, object]]]:
    x = apply("mul_mat", w(K, K, name="a.weight"), given(), label="a")
    split = apply("reshape", x, shape=("tokens", 2, K // 2), label="heads")
    graph = Graph.of(apply("soft_cap", apply("soft_max", split), cap=2.0))
    backends = [Limited("fast", "soft_cap"), Limited("slow")]
    s = schedule(graph, backends, LIMITS)
    return list(text(s, backends)), list(rows(s, backends))


def test_text() -> None:
    lines, _ = shown()
    assert lines == [
        "split 0 on fast, 3 nodes",
        "  %0    = mul_mat(a.weight<F32>, x) : f32[tokens x 32] @0 +1,024  # a",
        "  %1    = reshape(%0) : f32[tokens x 2 x 16] in %0  # heads",
        "  %2    = soft_max(%1) : f32[tokens x 2 x 16] @1,024 +1,024",
        "split 1 on slow, 2 nodes",
        "  %3    = copy(%2) : f32[tokens x 2 x 16] @0 +1,024",
        "  %4    = soft_cap(%3) : f32[tokens x 2 x 16] @1,024 +1,024",
        "5 nodes, 2 splits, 4 buffers: 4,096 bytes of values in 4,096 bytes of memory",
        "fallback: soft_cap runs on slow, not on fast: no soft_cap here",
    ]


def test_one_split_is_one() -> None:
    graph = Graph.of(apply("soft_max", apply("mul_mat", w(K, K, name="a.weight"), given())))
    backends = [Limited("slow")]
    assert list(text(schedule(graph, backends, LIMITS), backends))[-1].startswith("2 nodes, 1 split, ")


def test_rows() -> None:
    _, got = shown()
    assert got[0] == {
        "number": 0, "split": 0, "backend": "fast", "op": "mul_mat", "name": "a", "inputs": ["a.weight<F32>", "x"],
        "shape": ["tokens", K], "dtype": "f32", "offset": 0, "nbytes": 1024,
    }
    assert got[1]["lies_in"] == "%0"
    assert "offset" not in got[1]
    assert [r["split"] for r in got] == [0, 0, 0, 1, 1]
    assert json.loads(json.dumps(got)) == got
