"""The op cases of `octavo bench ops`: products and attention of real models. Tests have more, small and odd ones.

A case builds its graph on the plain ops, and any backend runs it:

    from octavo.backends.cpu import CpuBackend
    from octavo.bench.cases import SPEED_CASES, run

    for case in SPEED_CASES:
        built = case.build()                           # graph, steps of (inputs, sizes), limits
        found = run(built, [CpuBackend(threads=2)])    # one array a step; GraphError if it lacks a kernel for the case
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from octavo.bench.op_case import Built, OpCase, executor, run
from octavo.errors import UsageError
from octavo.formats import FORMATS
from octavo.formats.group import row_named

__all__ = ["SPEED_CASES", "WEIGHTS", "Built", "OpCase", "each", "executor", "run", "select"]

NOT_OF_WEIGHTS = ("F64", "Q8_1", "Q8_K")
WEIGHTS = tuple(f.name for f in FORMATS if f.encode and f.name not in NOT_OF_WEIGHTS)
"""Formats that matrices come in."""
GROUPS = ("GROUP4_128_F16", "GROUP4_128_Z_F16", "FP8_128")
"""Rows of checkpoints that most people have: 4 bits in groups of 128, symmetric and with zero points, and e4m3."""


def each(op: str, tokens: Sequence[int], formats: Sequence[str] = (), **shape: Any) -> Iterator[OpCase]:
    """A case for each number of tokens and each format that rows of k values can be stored in."""
    for t in tokens:
        if not formats:
            yield OpCase(op, t, shape)
        yield from (OpCase(op, t, shape, (f,)) for f in formats if shape["k"] % row_named(f).block == 0)


def _speed() -> Iterator[OpCase]:
    for n, k in ((4096, 14336), (6144, 2048), (2048, 6144)):
        yield from each("mul_mat", (1, 2, 3, 4, 5, 8, 512), (*WEIGHTS, *GROUPS), n=n, k=k)
    shape = {"experts": 128, "used": 8, "n": 768, "k": 2048, "shared": 1}
    yield from each("mul_mat_id", (1, 8, 512), ("Q4_K", "Q8_0", "MXFP4"), **shape)
    heads = {"heads": 16, "kv_heads": 8, "dim": 128}
    yield from (OpCase("attention", 1, heads, past=(n,)) for n in (128, 4096))
    yield OpCase("attention", 512, heads)


SPEED_CASES: tuple[OpCase, ...] = tuple(_speed())


def select(
    cases: Sequence[OpCase], *, ops: Sequence[str] = (), formats: Sequence[str] = (), tokens: Sequence[int] = ()
) -> list[OpCase]:
    """The cases of these ops, formats and numbers of tokens (none given: all).

    Raises UsageError for one that no case has.
    """
    kinds = (
        ("op", ops, {c.op for c in cases}),
        ("format", formats, {f for c in cases for f in c.formats}),
        ("tokens", tokens, {c.tokens for c in cases}),
    )
    for what, wanted, known in kinds:
        unknown = [w for w in wanted if w not in known]
        if unknown:
            allowed = ", ".join(map(str, sorted(known)))
            raise UsageError(f"no case with {what} {unknown[0]} (allowed: {allowed})")
    chosen = (c for c in cases if (not ops or c.op in ops) and (not tokens or c.tokens in tokens))
    return [c for c in chosen if not formats or set(c.formats) & set(formats)]
