"""The registry of op cases on the CPU backend, held to the reference; and that a wrong kernel would be found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.cpu.backend import CpuBinder
from octavo.backends.reference import ReferenceBackend
from octavo.bench.cases import OpCase, run
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.graph.protocol import Call
from tests.backends.comparison import compare
from tests.backends.layout_classes import FIRST
from tests.backends.op_cases import CASES

TILES = {"Q4_K", "Q8_0", "F16"}
"""Formats that run by default with numbers of tokens whose kernels differ in the size of a tile only."""
ONCE = {"Q6_K": 8, "Q5_1": 8, "IQ4_NL": 8}
"""Formats that also run with a number of tokens whose kernel differs."""


def is_slow(case: OpCase) -> bool:
    """Whether a case is large, or has kernels of its own that differ from another case's in a number only."""
    shape = case.shape
    if shape.get("n") == 2880 or case.past == (4095,):
        return True
    if case.op == "get_rows":
        return case.formats[0] not in (FIRST if case.tokens == 9 else TILES)
    if case.op in ("mul_mat", "mul_mat_id"):
        if case.formats[0] in TILES:
            return case.op == "mul_mat" and case.tokens in (3, 4, 6, 7)
        once = {ONCE.get(case.formats[0]), 9 if case.formats[0] in FIRST and shape["k"] in (256, 264) else None}
        return case.op == "mul_mat_id" or case.tokens not in once
    if case.op == "mul_mat_concat":
        return case.tokens == 2
    if case.op == "rope":
        return shape["interleaved"] != ("turned" in shape)
    if case.op == "attention":  # plain, it runs by default in test_cpu_attention.py
        return ("cap" in shape) == ("sinks" in shape) or shape["cache"] != "f16"
    if case.op == "quantized_attention":
        return case.tokens == 1 or (shape["heads"], shape["dim"]) != (4, 64)
    if case.op == "rope_set_rows":
        return (
            shape["norms"] == shape["interleaved"] == 0
            or (shape.get("cache") == "q8_0" and shape["norms"] != shape["interleaved"])
            or shape.get("cache") in ("int8", "fp8", "int4")
            or shape["dim"] == 512
        )
    return False


def marked(case: OpCase) -> Any:
    return pytest.param(case, id=case.name, marks=[pytest.mark.slow] if is_slow(case) else [])


@pytest.mark.parametrize("case", [marked(c) for c in CASES])
def test_op_case(case: OpCase) -> None:
    built = case.build()
    found = compare(case, run(built, [CpuBackend(threads=2)]), run(built, [ReferenceBackend()]))
    assert found.ok, found


def test_names_of_cases_are_their_own() -> None:
    assert len({c.name for c in CASES}) == len(CASES)


class Broken(CpuBackend):
    """The CPU backend with a fault in what one op writes."""

    def __init__(self, op: str, fault: Callable[[AnyArray], None]) -> None:
        super().__init__(threads=2)
        self.op, self.fault = op, fault

    def begin_plan(self, graph: Any) -> Any:
        return BrokenBinder(self)


class BrokenBinder(CpuBinder):
    """The calls of a broken backend, one by one."""

    def __init__(self, backend: Broken) -> None:
        super().__init__(backend)
        self.broken, self.calls = backend, list[Call]()

    def bind(self, node: Node, inputs: Sequence[Any], out: Any) -> Any:
        call = super().bind(node, inputs, out)

        def broken() -> None:
            call()
            self.broken.fault(out)

        self.calls.append(broken if node.op == self.broken.op else call)
        return self.calls[-1]

    def finish(self) -> Any:
        return self.calls


def scaled(out: AnyArray) -> None:
    out *= 1.03


def one_value(out: AnyArray) -> None:
    out[-1, -1] += 2 * np.abs(out).max()


def one_row(out: AnyArray) -> None:
    out[-1] = out[0]


def not_written(out: AnyArray) -> None:
    out[:, -1] = np.nan


def shifted(out: AnyArray) -> None:
    out[:] = np.roll(out, 1, axis=-1)


PRODUCT = OpCase("mul_mat", 9, {"n": 50, "k": 1024}, ("Q4_K",))
WRONG = [(PRODUCT, fault) for fault in (scaled, one_value, one_row, not_written, shifted)]
WRONG += [(OpCase("attention", 33, {"heads": 4, "kv_heads": 2, "dim": 64}), f) for f in (scaled, one_value, one_row)]
WRONG += [(OpCase("swiglu", 9, {"k": 40}), f) for f in (scaled, one_value, shifted)]
WRONG += [(OpCase("top_k", 9, {"k": 60, "used": 4}), f) for f in (one_row, shifted)]


@pytest.mark.parametrize(("case", "fault"), WRONG, ids=lambda x: x.__name__ if callable(x) else x.op)
def test_a_wrong_kernel_is_found(case: OpCase, fault: Callable[[AnyArray], None]) -> None:
    built = case.build()
    expected = run(built, [ReferenceBackend()])
    assert compare(case, run(built, [Broken("none", fault)]), expected).ok
    assert not compare(case, run(built, [Broken(case.op, fault)]), expected).ok
