"""The one registry of op cases: what is computed, on which shapes and formats, and how far a backend may be off.

Tests and benchmarks use it alike. A case builds its graph on the plain ops, and any backend runs it:

    from octavo.backends.cpu import CpuBackend
    from octavo.backends.reference import ReferenceBackend
    from octavo.bench.cases import CASES, compare, run

    for case in CASES:
        built = case.build()                                # graph, steps of (inputs, sizes), limits
        expected = run(built, [ReferenceBackend()])         # one array a step
        found = run(built, [CpuBackend(threads=2)])         # GraphError if it lacks a kernel for the case
        assert compare(case, found, expected).ok, case.name

`CASES` are small and odd, to find what is wrong; `SPEED_CASES` are the products of real models, to see how fast.
`select` picks from either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from octavo.bench.attention_cases import attention_cases
from octavo.bench.op_case import Built, Difference, OpCase, compare, executor, run
from octavo.errors import UsageError
from octavo.formats import FORMATS, by_name
from octavo.formats.group import row_named
from octavo.graph.pointwise import POINTWISE, Pointwise

__all__ = ["CASES", "SPEED_CASES", "WEIGHTS", "Built", "Difference", "OpCase", "compare", "executor", "run", "select"]

FEW = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)
ODD = (1, 2, 3, 5, 8, 9, 31, 33, 127, 512)
NOT_OF_WEIGHTS = ("F64", "Q8_1", "Q8_K")
WEIGHTS = tuple(f.name for f in FORMATS if f.encode and f.name not in NOT_OF_WEIGHTS)
"""Formats that matrices come in."""
GROUPS = ("GROUP4_128_F16", "GROUP4_128_Z_F16")
"""Rows of checkpoints that most people have: 4 bits in groups of 128, symmetric and with zero points."""
FLOATS = tuple(name for name in WEIGHTS if by_name(name).is_float)
MIXED = ("Q4_K", "Q6_K", "Q8_0")


def _fits(fmt: str, k: int) -> bool:
    return k % row_named(fmt).block == 0


def _each(op: str, tokens: Sequence[int], formats: Sequence[str] = (), **shape: Any) -> Iterator[OpCase]:
    """A case for each number of tokens and each format that rows of k values can be stored in."""
    for t in tokens:
        if not formats:
            yield OpCase(op, t, shape)
        yield from (OpCase(op, t, shape, (f,)) for f in formats if _fits(f, shape["k"]))


def _products() -> Iterator[OpCase]:
    yield from _each("mul_mat", FEW, WEIGHTS, n=16, k=256)
    yield from _each("mul_mat", ODD, WEIGHTS, n=50, k=1024)
    yield from _each("mul_mat", (1, 3, 9), FLOATS, n=19, k=264)  # rows that do not end at a group of 32
    yield from _each("mul_mat", (32,), WEIGHTS, n=2880, k=2880)
    yield from _each("mul_mat", (512,), WEIGHTS, n=576, k=576)
    yield from _each("mul_mat", (1, 9), WEIGHTS, n=1, k=8192)
    yield from _each("mul_mat", (2048,), ("Q4_K", "F16"), n=1, k=8192)
    for op in ("mul_mat_add", "quantized_rms_norm", "quantized_swiglu"):
        yield from _each(op, (1, 2, 9, 33), ("Q4_K", "Q8_0", "F16", "BF16", "F32"), n=50, k=512)
    for t in (1, 2, 9, 33):
        yield from (
            OpCase("mul_mat_concat", t, {"n": 48, "n2": 256, "k": 512}, f)
            for f in (MIXED, ("Q4_K", "Q4_K", "Q6_K"), ("Q8_0",), ("BF16",), FLOATS)
        )


def _experts() -> Iterator[OpCase]:
    for experts, used in ((4, 1), (4, 2), (8, 2), (8, 4), (4, 4)):
        shape = {"experts": experts, "used": used, "n": 512, "k": 256}
        yield from _each("mul_mat_id", (1, 4, 5, 17, 32, 129), ("Q4_K", "F16"), **shape, shared=1)
    shape = {"experts": 8, "used": 3, "n": 50, "k": 512}
    for shared in (0, 1):
        yield from _each("mul_mat_id", (1, 2, 9, 33), WEIGHTS, **shape, shared=shared)
    wider = {**shape, "n": 52, "shared": 1}  # whose scales begin at whole 16 bytes
    yield from _each("mul_mat_id", (33,), ("Q4_0", "Q4_K", "Q6_K", "Q8_0"), **wider)
    yield from _each("mul_mat_id_swiglu", (1, 9, 33), ("Q4_K", "Q8_0", "F16"), **shape)


def _states() -> Iterator[OpCase]:
    """Steps that go on with the states of several sequences, or begin some; prompts shorter than what is kept."""
    lies: tuple[tuple[int, Mapping[str, int], tuple[int, ...]], ...] = (
        (1, {}, ()), (9, {}, ()), (33, {}, ()), (1, {}, (5,)), (3, {}, (5, 1, 70)), (20, {}, (0, 70, 3)),
        (11, {"decodes": 2}, (9, 0, 40)), (2, {}, (1,)),
    )
    for width, channels, more_of_it in ((3, 144, {"silu": 0}), (4, 48, {"silu": 1}), (4, 48, {"silu": 1, "biased": 1}),
                                        (2, 48, {"silu": 0, "filters": 3})):
        shape = {"width": width, "channels": channels, **more_of_it}
        yield from (OpCase("causal_conv", t, {**shape, **more}, past=past) for t, more, past in lies)
        yield OpCase("causal_conv", 90, {**shape, "decodes": 1}, past=(3, 0, 70))
    for heads, key_heads, keys, size, tiled, by_row in ((4, 2, 16, 16, 0, {}), (6, 2, 32, 64, 1, {}),
                                                        (3, 3, 48, 32, 0, {"by_row": 1})):
        shape = {"heads": heads, "key_heads": key_heads, "keys": keys, "size": size, "tiled": tiled, **by_row}
        yield from (OpCase("gated_delta_rule", t, {**shape, **more}, past=past) for t, more, past in lies)
        yield OpCase("gated_delta_rule", 150, {**shape, "decodes": 1}, past=(3, 0, 70))
    for heads, groups, keys, size in ((4, 1, 16, 16), (6, 2, 32, 64)):
        shape = {"heads": heads, "groups": groups, "keys": keys, "size": size}
        yield from (OpCase("selective_scan", t, {**shape, **more}, past=past) for t, more, past in lies)
        yield OpCase("selective_scan", 150, {**shape, "decodes": 1}, past=(3, 0, 70))
    for heads, size, mixed in ((3, 16, {"plain": 1}), (2, 48, {"mixed": 1})):
        shape = {"heads": heads, "size": size, **mixed}
        yield from (OpCase("wkv7", t, {**shape, **more}, past=past) for t, more, past in lies)
        yield OpCase("wkv7", 70, {**shape, "decodes": 1}, past=(3, 0, 20))
    for channels, keys in ((48, 6), (144, 16)):
        shape = {"channels": channels, "keys": keys}
        yield from (OpCase("channel_scan", t, {**shape, **more}, past=past) for t, more, past in lies)
        yield OpCase("channel_scan", 70, {**shape, "decodes": 1}, past=(3, 0, 20))


def _small() -> Iterator[OpCase]:
    yield from _each("get_rows", (1, 9, 33), WEIGHTS, n=50, k=512)
    yield from _each("rms_norm", (1, 5, 33), k=264)
    yield from _each("rms_norm", (1, 9), k=4096)
    yield from _each("rms_norm", (1, 5, 33), heads=3, k=128)
    for biased in (0, 1):
        yield from _each("layer_norm", (1, 5, 33), k=264, biased=biased)
    for interleaved in (0, 1):
        yield from _each("rope", (1, 5, 33), heads=3, dim=128, interleaved=interleaved)
        yield from _each("rope", (1, 9), heads=2, dim=80, turned=32, interleaved=interleaved)
    for k in (40, 1024):
        yield from _each("soft_max", (1, 9), k=k)
        yield from _each("normalize", (1, 9), k=k)
        yield from _each("keep_largest", (1, 9), k=k)
        yield from _each("as_large_as", (1, 9), streams=4, k=k)
    for experts, used in ((8, 2), (128, 8), (60, 4)):
        yield from _each("top_k", (1, 9), k=experts, used=used)
        yield from _each("soft_max_top_k", (1, 9), k=experts, used=used)
        for plus in (0, 1):
            yield from _each("sum_experts", (1, 9), k=520, experts=experts, used=used, normalized=plus, plus=plus)
        yield from _each("gather", (1, 9), k=experts, used=used)
        yield from _each("sparse_shares", (1, 9), k=experts, used=used)
        yield from _each("weighted_sum", (1, 9), k=520, used=used)
    yield from _each("weighted_sum", (1, 9), k=520, used=4, sums=3)
    yield from _each("gather", (1, 9), k=60, used=4, row=1)
    yield from _each("slice_heads", (1, 9), heads=3, dim=40, start=24, size=16)
    yield from _each("join_heads", (1, 9), heads=3, dim=40, size=16)
    yield from _each("numbers", (1, 9), ("F32", "Q8_0"), heads=3, n=24, k=64)
    yield from (c for best in (1, 2) for c in _each("keep_groups", (1, 9), k=60, groups=5, used=2, best=best))
    yield from _each("take_columns", (1, 9), k=1040)
    yield from _each("take_columns_id", (1, 9), k=1040, experts=5, used=3)
    yield from (c for k in (40, 1024) for c in _each("add_rows", (1, 9), k=k, used=3, experts=8))


def pointwise_cases(op: Pointwise) -> Iterator[OpCase]:
    """Values [tokens, k], also of several rows a token; and inputs of each kind that an op spreads."""
    for k in (40, 1024):
        yield from _each(op.name, (1, 9), k=k)
        if op.spreads:
            if not op.integers:  # a weight is a row for all, and has no integers
                yield from _each(op.name, (1, 9, 33), k=k, row=1)
            yield from (c for spread in (1, 2, 3) for c in _each(op.name, (1, 9), k=k, used=3, spread=spread))
    yield from _each(op.name, (1, 9), k=40, used=3)
    if op.quantizes and op.name != "swiglu":  # which runs with all formats
        yield from _each(f"quantized_{op.name}", (1, 33), ("Q4_K",), n=50, k=512)


def _speed() -> Iterator[OpCase]:
    for n, k in ((4096, 14336), (6144, 2048), (2048, 6144)):
        yield from _each("mul_mat", (1, 2, 3, 4, 5, 8, 512), (*WEIGHTS, *GROUPS), n=n, k=k)
    shape = {"experts": 128, "used": 8, "n": 768, "k": 2048, "shared": 1}
    yield from _each("mul_mat_id", (1, 8, 512), ("Q4_K", "Q8_0", "MXFP4"), **shape)
    heads = {"heads": 16, "kv_heads": 8, "dim": 128}
    yield from (OpCase("attention", 1, heads, past=(n,)) for n in (128, 4096))
    yield OpCase("attention", 512, heads)


CASES: tuple[OpCase, ...] = (
    *_products(),
    *_experts(),
    *attention_cases(),
    *_states(),
    *_small(),
    *(case for op in POINTWISE.values() for case in pointwise_cases(op)),
)
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
