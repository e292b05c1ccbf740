"""The registry of op cases, and that its comparison sees what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.gpu.backend import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.bench.cases import SPEED_CASES, WEIGHTS, OpCase, run, select
from octavo.bench.op_graphs import GRAPHS
from octavo.errors import GraphError, UsageError
from octavo.formats import FORMATS
from octavo.graph.collective_ops import COLLECTIVES
from octavo.graph.fuse import RULES
from octavo.graph.node import Node
from octavo.graph.ops import OPS
from octavo.graph.pointwise import POINTWISE
from tests.backends.comparison import compare, tolerance
from tests.backends.op_cases import CASES

QUANTIZES = CpuBackend.quantizes | GpuBackend.quantizes
NO_CASE = {
    "copy", "reshape", "columns", "after", "set_rows", "quantize", "top_candidates", "draw", "log_sum_exp", "adjust",
    "mask", "wkv6", "largest_magnitude", "merge_candidates", "local_places",
    *COLLECTIVES,
}
"""Ops that are views, that move data only, that other ops' cases need, that choices of tokens need, that only the
reference backend has, or that need several ranks."""


def case(name: str) -> OpCase:
    return next(c for c in CASES if c.name == name)


def test_every_op_and_fusion_has_a_case() -> None:
    quantized = {f"quantized_{op}" for op in QUANTIZES}
    ops = {c.op for c in CASES}
    assert ops == set(GRAPHS) | set(POINTWISE) == set(OPS) - NO_CASE | quantized
    assert set(RULES) <= ops


def test_names_are_unique() -> None:
    for cases in (CASES, SPEED_CASES):
        assert len({c.name for c in cases}) == len(cases)


def test_products_come_in_every_format_of_weights_and_every_odd_size() -> None:
    assert {f.name for f in FORMATS if f.encode} - set(WEIGHTS) == {"F64", "Q8_1", "Q8_K"}
    for fmt in WEIGHTS:
        tokens = {c.tokens for c in CASES if c.op == "mul_mat" and c.formats == (fmt,)}
        assert tokens >= {1, 2, 3, 5, 8, 9, 31, 33, 127, 512}
        assert any(c.shape["n"] % 16 for c in CASES if c.op == "mul_mat" and c.formats == (fmt,))


def test_a_case_is_the_same_each_time() -> None:
    for name in ("mul_mat-Q4_K-n16-k256-t3", "attention-heads4-kv_heads2-dim128-cachef16-past5_128_300-t3"):
        first, second = (run(case(name).build(), [ReferenceBackend()]) for _ in range(2))
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a, b)
    other = run(case("mul_mat-Q4_K-n16-k256-t3").build(np.random.default_rng(1)), [ReferenceBackend()])
    assert not np.array_equal(other[0], run(case("mul_mat-Q4_K-n16-k256-t3").build(), [ReferenceBackend()])[0])


@pytest.mark.parametrize("op", sorted(GRAPHS))
def test_quantized_and_fused_by_definition_every_op_is_within_its_tolerance(op: str) -> None:
    wanted = {c.tokens: c for c in CASES if c.op == op and c.tokens < 10 and not c.past}.values()
    fused = ReferenceBackend(fusions=RULES, quantizes=QUANTIZES, quantize_activations=True)
    for c in wanted:
        built = c.build()
        difference = compare(c, run(built, [fused]), run(built, [ReferenceBackend()]))
        assert difference.ok, (c.name, difference)


def test_attention_continues_sequences_whose_pages_are_scattered() -> None:
    c = case("attention-heads4-kv_heads2-dim128-cachef16-past5_128_300-t3")
    before, step = c.build().steps
    assert before[1]["tokens"] == 433
    assert step[1] == {"tokens": 3, "outputs": 3, "sequences": 3, "boundaries": 4}
    assert step[0]["positions"].tolist() == [5, 128, 300]
    pages = step[0]["pages"]
    used = [*pages[0, :1], *pages[1, :3], *pages[2, :5]]
    assert sorted(used) == list(range(9)), "each page belongs to one sequence"
    assert np.abs(np.diff(pages[2, :5])).max() > 1, "a sequence's pages are not in a row"


def test_a_wrong_row_among_thousands_is_seen() -> None:
    c = OpCase("mul_mat", 4, {"n": 4096, "k": 256}, ("Q8_0",))
    expected = run(c.build(), [ReferenceBackend()])
    wrong = [expected[0].copy()]
    assert compare(c, wrong, expected).ok
    wrong[0][:, 17] = wrong[0][:, 18]
    assert compare(c, wrong, expected).nmse < 2 * tolerance(c)
    assert not compare(c, wrong, expected).ok


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_never_right(value: float) -> None:
    c = case("mul_mat-F32-n16-k256-t2")
    expected = run(c.build(), [ReferenceBackend()])
    wrong = [expected[0].copy()]
    wrong[0][0, 0] = value
    assert not compare(c, wrong, expected).ok
    assert not compare(c, [expected[0][:, :8]], expected).ok


def test_ids_must_be_exact() -> None:
    c = case("top_k-k8-used2-t9")
    expected = run(c.build(), [ReferenceBackend()])
    assert compare(c, expected, expected).ok
    swapped = expected[0].copy()
    swapped[3] = swapped[3, ::-1]
    assert not compare(c, [swapped], expected).ok


class Without(ReferenceBackend):
    """Lacks mul_mat."""

    def supports(self, node: Node) -> tuple[bool, str]:
        return (False, "not made yet") if node.op == "mul_mat" else super().supports(node)


def test_a_backend_does_not_pass_by_falling_back() -> None:
    with pytest.raises(GraphError, match="mul_mat"):
        run(case("mul_mat-F32-n16-k256-t2").build(), [Without(), ReferenceBackend()])


def test_select() -> None:
    chosen = select(SPEED_CASES, ops=["mul_mat"], formats=["Q4_K"], tokens=[1, 8])
    assert {(c.op, c.formats, c.tokens) for c in chosen} == {("mul_mat", ("Q4_K",), 1), ("mul_mat", ("Q4_K",), 8)}
    assert select(SPEED_CASES) == list(SPEED_CASES)
    with pytest.raises(UsageError, match=r"no case with op conv \(allowed: attention, mul_mat"):
        select(SPEED_CASES, ops=["conv"])
    with pytest.raises(UsageError, match="no case with tokens 7"):
        select(SPEED_CASES, tokens=[7])
