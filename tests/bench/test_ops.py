"""Costs of ops, and their timing."""

from __future__ import annotations

import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.bench.cases import OpCase
from octavo.bench.cost import Cost, OpLoad, cost, experts_read, total
from octavo.bench.op_bench import time_cases
from octavo.bench.op_case import executor
from tests.backends import op_graphs  # noqa: F401  (register their graphs)


def cost_of(case: OpCase) -> Cost:
    built = case.build()
    load = OpLoad({**built.limits, **built.steps[-1][1]}, *case.sequences)
    return total((n for n in built.graph.nodes if not n.is_leaf), load)


def test_products_read_their_weights_once_and_compute_for_each_token() -> None:
    assert cost_of(OpCase("mul_mat", 3, {"n": 50, "k": 512}, ("Q8_0",))) == Cost(
        50 * 512 // 32 * 34, 0, 2 * 3 * 50 * 512
    )
    several = cost_of(OpCase("mul_mat_concat", 1, {"n": 50, "n2": 64, "k": 512}, ("F16",)))
    values = (50 + 64 + 50) * 512 + 50 * 64
    assert several == Cost(values * 2, 0, values * 2)


def test_a_fused_op_costs_what_its_parts_cost() -> None:
    case = OpCase("mul_mat_concat", 2, {"n": 48, "n2": 256, "k": 512}, ("F16",))
    built = case.build()
    load = OpLoad({**built.limits, **built.steps[-1][1]}, *case.sequences)
    fused = executor(built, [ReferenceBackend(fusions=["mul_mat_concat"])]).schedule.graph.nodes
    assert any(n.op == "mul_mat_concat" for n in fused)
    assert total((n for n in fused if not n.is_leaf), load) == cost_of(case)


def test_rows_of_a_table() -> None:
    assert cost_of(OpCase("get_rows", 3, {"n": 50, "k": 512}, ("Q4_K",))) == Cost(3 * 288)


def test_experts() -> None:
    shape = {"experts": 8, "used": 2, "n": 64, "k": 32, "shared": 1}
    one = cost_of(OpCase("mul_mat_id", 1, shape, ("F16",)))
    assert one == Cost(2 * 64 * 32 * 2, 0, 2 * 2 * 64 * 32), "one token reads the experts that it uses"
    assert experts_read(8, 2, 1) == pytest.approx(2)
    assert experts_read(8, 2, 2) == pytest.approx(3.5)
    assert experts_read(8, 2, 10**6) == pytest.approx(8)


def test_attention_counts_what_each_query_sees() -> None:
    shape = {"heads": 4, "kv_heads": 2, "dim": 8}
    assert cost_of(OpCase("attention", 3, shape)) == Cost(0, 2 * 2 * 8 * 2 * 3, 4 * 4 * 8 * (1 + 2 + 3))
    assert cost_of(OpCase("attention", 2, shape, past=(10, 20))) == Cost(0, 2 * 2 * 8 * 2 * 32, 4 * 4 * 8 * 32)


def test_a_quantized_cache_is_smaller() -> None:
    shape = {"heads": 4, "kv_heads": 2, "dim": 32, "cache": "q8_0"}
    assert cost_of(OpCase("attention", 1, shape, past=(10,))).cache == 2 * 2 * 34 * 11


def test_keys_that_are_values_too_are_read_once() -> None:
    shape = {"heads": 4, "kv_heads": 1, "dim": 32, "shared": 16, "cache": "f16"}
    cost = cost_of(OpCase("attention", 1, shape, past=(10,)))
    assert (cost.cache, cost.operations) == (11 * 32 * 2, 2 * 4 * (32 + 16) * 11)


def test_other_ops_cost_nothing() -> None:
    node = next(n for n in OpCase("swiglu", 1, {"k": 8}).build().graph.nodes if n.op == "swiglu")
    assert cost(node, OpLoad({"tokens": 1}, [0], [1])) == Cost()


def test_timing_of_cases() -> None:
    cases = [OpCase("mul_mat", t, {"n": 64, "k": 256}, ("Q8_0",)) for t in (2, 20)]
    few, many = time_cases(cases, [ReferenceBackend()], limit=lambda: 50.0, seconds=0.01)
    for row, tokens in ((few, 2), (many, 20)):
        assert row["tokens"] == tokens
        assert row["rounds"] >= 1
        assert row["gbps"] == pytest.approx(64 * 256 // 32 * 34 / row["seconds"] / 1e9)
        assert row["gops"] == pytest.approx(2 * tokens * 64 * 256 / row["seconds"] / 1e9)
        assert row["share_of_read_limit"] == pytest.approx(row["gbps"] / 50)
