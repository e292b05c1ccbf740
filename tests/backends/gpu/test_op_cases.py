"""The registry of op cases on the GPU backend, its kernels interpreted, held to the reference."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.bench.cases import OpCase, run
from octavo.formats import by_name
from tests.backends.comparison import compare
from tests.backends.layout_classes import FIRST
from tests.backends.op_cases import CASES, FLOAT8

KERNELS = {("Q4_K", 5), ("Q4_K", 9), ("Q6_K", 9)}
"""Formats and numbers of tokens that run a kernel each beside matvec and mmq_mma: those of more tokens."""


def _kind(case: OpCase) -> tuple[Any, ...] | None:
    """What a case stands for among those run always; None for one that is too slow for that."""
    if case.tokens > 33 or sum(case.past) > 130 or case.shape.get("n", 0) > 512 or case.shape.get("k", 0) > 4096:
        return None
    if case.shape.get("heads", 0) > 16:
        return None
    if case.op == "mul_mat":
        if case.shape["n"] != 16 and case.shape["k"] != 264 and case.formats[0] not in FLOAT8:
            return None
        if case.formats[0] in FLOAT8:
            return case.formats, case.tokens < 4, case.tokens > 32
        runs = case.formats[0] in FIRST or by_name(case.formats[0]).is_float
        if not (runs and case.tokens in (1, 8)) and (case.formats[0], case.tokens) not in KERNELS:
            return None
        return case.formats, case.tokens, case.shape["k"] == 264
    if case.tokens == 1 and case.formats[:1] == ("Q8_0",) and case.op not in ("mul_mat", "quantized_attention"):
        return None  # a product that models have in `test_model.py`, too
    if case.op == "mul_mat_id":
        if case.shape["n"] != 50 or case.formats[0] not in ("Q4_K", "F16", "FP8_128"):
            return None
        return case.op, case.formats, case.tokens < 9, case.shape["shared"]
    if "window" in case.shape and case.shape.get("cache") == "q8_0":
        return None
    if case.shape.get("cache") in ("int8", "fp8") and (case.op, case.tokens, case.past) != ("attention", 1, (64,)):
        return None
    if case.shape.get("cache") == "int4" and (case.op, case.past, case.shape["dim"]) != ("attention", (64,), 96):
        return None
    if (case.shape.get("cache"), case.shape.get("static")) in (("int8", 1), ("fp8", None)):
        return None
    if case.op == "attention" and case.tokens > 9 and (case.shape.get("cache") != "f16" or "shared" in case.shape):
        return None
    if case.op in ("rope_set_rows", "quantized_attention") and case.past:
        return None
    details = ("n2", "cache", "norms", "interleaved", "dim", "row", "spread", "sums", "heads", "reach", "static")
    return (case.op, case.formats, len(case.past), *(case.shape.get(d) for d in details))


def _parameters() -> list[Any]:
    seen: set[Any] = set()
    parameters = []
    for case in CASES:
        kind = _kind(case)
        quick = kind is not None and kind not in seen
        seen.add(kind)
        parameters.append(pytest.param(case, id=case.name, marks=[] if quick else [pytest.mark.slow]))
    return parameters


@pytest.mark.parametrize("case", _parameters())
def test_op_case(case: OpCase) -> None:
    built = case.build()
    found = compare(case, run(built, [GpuBackend()]), run(built, [ReferenceBackend()]))
    assert found.ok, found


def test_many_tokens() -> None:
    """Enough tokens for weights to be made float16 first."""
    case = OpCase("mul_mat", 70, {"n": 50, "k": 512}, ("Q6_K",))
    test_op_case(case)
