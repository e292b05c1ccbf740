"""Memory that the calls of a plan share, and when a node has to fill it."""

from __future__ import annotations

import numpy as np

from octavo.backends.cpu.launch.plan_memory import PlanMemory
from tests.graph.small import given


def test_memory_is_the_same_for_one_name_and_shape() -> None:
    shared = PlanMemory()
    first = shared.memory("sums", (4, 2), np.int32)
    assert (first.shape, first.dtype) == ((4, 2), np.int32)
    assert shared.memory("sums", (4, 2), np.int32) is first
    assert shared.memory("sums", (4, 3), np.int32) is not first
    assert shared.memory(("sums", 1), (4, 2), np.int32) is not first
    assert PlanMemory().memory("sums", (4, 2), np.int32) is not first


def test_memory_is_filled_by_the_first_node_that_reads_it_and_when_it_holds_something_else() -> None:
    shared, x, other = PlanMemory(), given(), given()
    rows, order = (shared.memory(name, (4,), np.int32) for name in ("rows", "order"))
    found = [shared.holds(rows, source) for source in (x, x, other, x, x)]
    assert found == [False, True, False, False, True]
    assert [shared.holds(rows, x, True), shared.holds(order, x), shared.holds(order, x)] == [False, False, True]
