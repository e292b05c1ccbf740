"""The registry of op cases that every backend is tested with: small shapes and odd ones, to find what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from octavo.bench.cases import WEIGHTS, OpCase, each
from octavo.formats import by_name
from octavo.graph.pointwise import POINTWISE, Pointwise
from tests.backends.attention_cases import attention_cases

FEW = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)
ODD = (1, 2, 3, 5, 8, 9, 31, 33, 127, 512)
FLOATS = tuple(name for name in WEIGHTS if by_name(name).is_float)
MIXED = ("Q4_K", "Q6_K", "Q8_0")
FLOAT8 = ("FP8_128", "FP8_32")


def _products() -> Iterator[OpCase]:
    yield from each("mul_mat", FEW, WEIGHTS, n=16, k=256)
    yield from each("mul_mat", ODD, WEIGHTS, n=50, k=1024)
    yield from each("mul_mat", (1, 3, 9), FLOATS, n=19, k=264)  # rows that do not end at a group of 32
    yield from each("mul_mat", (32,), WEIGHTS, n=2880, k=2880)
    yield from each("mul_mat", (512,), WEIGHTS, n=576, k=576)
    yield from each("mul_mat", (1, 9), WEIGHTS, n=1, k=8192)
    yield from each("mul_mat", (2048,), ("Q4_K", "F16"), n=1, k=8192)
    for op in ("mul_mat_add", "quantized_rms_norm", "quantized_swiglu"):
        yield from each(op, (1, 2, 9, 33), ("Q4_K", "Q8_0", "F16", "BF16", "F32"), n=50, k=512)
    yield from each("mul_mat", (1, 2, 3, 4, 5, 8, 16, 31, 33, 127), FLOAT8, n=50, k=1024)
    for op in ("mul_mat_add", "quantized_rms_norm", "quantized_swiglu"):
        yield from each(op, (1, 3, 9, 33), FLOAT8, n=52, k=512)
    for t in (1, 2, 9, 33):
        yield from (
            OpCase(op, t, {"n": 48, "n2": 256, "k": 512}, f)
            for op in ("mul_mat_concat", "mul_mat_concat_add")
            for f in (MIXED, ("Q4_K", "Q4_K", "Q6_K"), ("Q8_0",), ("BF16",), FLOATS, ("FP8_128",))
        )


def _adapters() -> Iterator[OpCase]:
    """Adapters of several ranks, of which tokens have one or none: of a product, and of three of one x."""
    for t in (1, 2, 9, 33, 130):
        for kind in ("F32", "F16", "BF16"):
            yield OpCase("lora", t, {"n": 50, "k": 264, "ranks": (3, 0, 16)}, (kind,))
        yield OpCase("lora", t, {"n": 256, "k": 512, "ranks": (8,)}, ("Q4_K", "BF16"))
        yield OpCase("lora", t, {"n": 48, "n2": 256, "k": 512, "ranks": (20, 4)}, ("F16", "F16", "F16", "BF16"))


def _experts() -> Iterator[OpCase]:
    for experts, used in ((4, 1), (4, 2), (8, 2), (8, 4), (4, 4)):
        shape = {"experts": experts, "used": used, "n": 512, "k": 256}
        yield from each("mul_mat_id", (1, 4, 5, 17, 32, 129), ("Q4_K", "F16"), **shape, shared=1)
    shape = {"experts": 8, "used": 3, "n": 50, "k": 512}
    for shared in (0, 1):
        yield from each("mul_mat_id", (1, 2, 9, 33), (*WEIGHTS, *FLOAT8), **shape, shared=shared)
    wider = {**shape, "n": 52, "shared": 1}  # whose scales begin at whole 16 bytes
    yield from each("mul_mat_id", (33,), ("Q4_0", "Q4_K", "Q6_K", "Q8_0"), **wider)
    yield from each("mul_mat_id_concat", (1, 9, 33), ("Q4_K", "MXFP4", "F16", "FP8_128"), **{**shape, "n": 256})
    for biased in (0, 1):
        yield from each("mul_mat_id_gated", (1, 9, 33), ("Q4_K", "Q8_0", "F16", "FP8_128"), **shape, biased=biased)


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
    yield from each("get_rows", (1, 9, 33), WEIGHTS, n=50, k=512)
    yield from each("rms_norm", (1, 5, 33), k=264)
    yield from each("rms_norm", (1, 9), k=4096)
    yield from each("rms_norm", (1, 5, 33), heads=3, k=128)
    for biased in (0, 1):
        yield from each("layer_norm", (1, 5, 33), k=264, biased=biased)
    for interleaved in (0, 1):
        yield from each("rope", (1, 5, 33), heads=3, dim=128, interleaved=interleaved)
        yield from each("rope", (1, 9), heads=2, dim=80, turned=32, interleaved=interleaved)
    for k in (40, 1024):
        yield from each("soft_max", (1, 9), k=k)
        yield from each("normalize", (1, 9), k=k)
        yield from each("keep_largest", (1, 9), k=k)
        yield from each("as_large_as", (1, 9), streams=4, k=k)
    for experts, used in ((8, 2), (128, 8), (60, 4)):
        yield from each("top_k", (1, 9), k=experts, used=used)
        yield from each("soft_max_top_k", (1, 9), k=experts, used=used)
        for plus in (0, 1):
            for biased in (0, 1):
                yield from each("sum_experts", (1, 9), k=520, experts=experts, used=used, normalized=plus, plus=plus,
                                biased=biased)
        yield from each("gather", (1, 9), k=experts, used=used)
        yield from each("sparse_shares", (1, 9), k=experts, used=used)
        yield from each("weighted_sum", (1, 9), k=520, used=used)
    yield from each("weighted_sum", (1, 9), k=520, used=4, sums=3)
    yield from each("gather", (1, 9), k=60, used=4, row=1)
    yield from each("slice_heads", (1, 9), heads=3, dim=40, start=24, size=16)
    yield from each("join_heads", (1, 9), heads=3, dim=40, size=16)
    yield from each("numbers", (1, 9), ("F32", "Q8_0"), heads=3, n=24, k=64)
    yield from (c for best in (1, 2) for c in each("keep_groups", (1, 9), k=60, groups=5, used=2, best=best))
    yield from each("take_columns", (1, 9), k=1040)
    yield from each("take_columns_id", (1, 9), k=1040, experts=5, used=3)
    yield from (c for k in (40, 1024) for c in each("add_rows", (1, 9), k=k, used=3, experts=8))


def pointwise_cases(op: Pointwise) -> Iterator[OpCase]:
    """Values [tokens, k], also of several rows a token; and inputs of each kind that an op spreads."""
    for k in (40, 1024):
        yield from each(op.name, (1, 9), k=k)
        if op.spreads:
            if not op.integers:  # a weight is a row for all, and has no integers
                yield from each(op.name, (1, 9, 33), k=k, row=1)
            yield from (c for spread in (1, 2, 3) for c in each(op.name, (1, 9), k=k, used=3, spread=spread))
    yield from each(op.name, (1, 9), k=40, used=3)
    if op.quantizes and op.name != "swiglu":  # which runs with all formats
        yield from each(f"quantized_{op.name}", (1, 33), ("Q4_K",), n=50, k=512)


CASES: tuple[OpCase, ...] = (
    *_products(),
    *_adapters(),
    *_experts(),
    *attention_cases(),
    *_states(),
    *_small(),
    *(case for op in POINTWISE.values() for case in pointwise_cases(op)),
)
