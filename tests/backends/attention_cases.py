"""Op cases of attention, and of what is written to its cache."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from octavo.bench.op_case import OpCase
from octavo.graph.builder import WHOLE


def attention_cases() -> Iterator[OpCase]:
    """All cases of attention."""
    parts = (_heads, _groups, _masked, _shared, _reaching, _quantized, _written, _prompts, _gemma4, _scales_of_heads,
             _rotated)
    return chain.from_iterable(part() for part in parts)


def _heads() -> Iterator[OpCase]:
    """Numbers and sizes of heads, and steps of all kinds, with caches of floats and q8_0."""
    heads = ((4, 2, 128), (8, 8, 64), (7, 1, 64), (16, 2, 128), (3, 1, 96), (4, 1, 256), (2, 2, 80), (10, 2, 128))
    for h, kv, dim in heads:
        shape: dict[str, Any] = {"heads": h, "kv_heads": kv, "dim": dim}
        for t in (1, 2, 33, 127):
            yield OpCase("attention", t, shape)
        yield OpCase("attention", 1, shape, past=(700,))
    for cache in ("f16", "f32", "q8_0"):
        shape = {"heads": 4, "kv_heads": 2, "dim": 128, "cache": cache}
        yield from (OpCase("attention", 1, shape, past=(n,)) for n in (1, 62, 63, 64, 65))
        yield OpCase("attention", 1, {"heads": 2, "kv_heads": 1, "dim": 64, "cache": cache}, past=(4095,))
        yield OpCase("attention", 512, shape)
        yield OpCase("attention", 3, shape, past=(5, 128, 300))  # sequences that decode together
        yield OpCase("attention", 40, shape, past=(100,))  # more of a prompt
        yield OpCase("attention", 20, shape, past=(0, 70, 3))  # some begin, some go on
        yield OpCase("attention", 22, {**shape, "decodes": 2}, past=(130, 5, 70, 0))  # two decode meanwhile


def _masked() -> Iterator[OpCase]:
    """Windows, chunks, caps of scores, and sinks."""
    for cache, limits in (
        ("f16", {"window": 20, "cap": 1}),
        ("q8_0", {"window": 20, "cap": 1}),
        ("f16", {"window": 70}),
    ):
        shape = {"heads": 2, "kv_heads": 1, "dim": 64, "cache": cache, **limits}
        yield from (OpCase("attention", t, shape) for t in (1, 40, 127))
        yield from (OpCase("attention", 1, shape, past=(n,)) for n in (19, 70, 300))
        yield OpCase("attention", 3, shape, past=(5, 128, 300))
        yield OpCase("attention", 40, shape, past=(100,))
        yield OpCase("attention", 20, shape, past=(0, 70, 3))
        yield OpCase("attention", 11, {**shape, "decodes": 1}, past=(90, 40))
    for window in (-20, -70):
        shape = {"heads": 2, "kv_heads": 1, "dim": 64, "cache": "f16", "window": window}
        yield from (OpCase("attention", t, shape) for t in (1, 127))
        yield OpCase("attention", 3, shape, past=(5, 139, 300))
        yield OpCase("attention", 20, shape, past=(0, 70, 3))
    for limits in ({}, {"window": 20, "cap": 1}):
        shape = {"heads": 2, "kv_heads": 1, "dim": 64, "cache": "f16", "sinks": 1, **limits}
        yield from (OpCase("attention", t, shape) for t in (1, 40))
        yield OpCase("attention", 3, shape, past=(5, 128, 300))
        yield OpCase("attention", 20, shape, past=(0, 70, 3))
        yield OpCase("attention", 11, {**shape, "decodes": 1}, past=(90, 40))


def _shared() -> Iterator[OpCase]:
    """Keys that are values too, as in latent attention."""
    for cache in ("f16", "f32", "q8_0"):
        shape = {"heads": 4, "kv_heads": 1, "dim": 96, "cache": cache, "shared": 64}
        yield from (OpCase("attention", t, shape) for t in (1, 40))
        yield OpCase("attention", 3, shape, past=(5, 128, 300))
        yield OpCase("attention", 20, shape, past=(0, 70, 3))
        yield OpCase("attention", 11, {**shape, "decodes": 1}, past=(90, 40))
    shape = {"heads": 16, "kv_heads": 1, "dim": 576, "shared": 512}  # DeepSeek-V2-Lite's
    yield from (OpCase("attention", t, shape, past=past) for t, past in ((1, (150,)), (20, (70,))))
    yield OpCase("attention", 1, {**shape, "heads": 128}, past=(150,))  # DeepSeek-V3's
    shape = {"heads": 34, "kv_heads": 2, "dim": 48, "shared": 48, "window": 20, "cap": 1, "sinks": 1}
    yield from (OpCase("attention", t, shape, past=past) for t, past in ((1, (100,)), (20, (0, 70, 3))))


def _reaching() -> Iterator[OpCase]:
    """Attention to tokens that come later."""
    for limits in ({"reach": WHOLE}, {"window": 20, "reach": 19}):
        shape = {"heads": 2, "kv_heads": 1, "dim": 64, "cache": "f16", **limits}
        yield from (OpCase("attention", t, shape) for t in (1, 33, 127))
        yield from (OpCase("attention", t, shape, past=(0, 0, 0)) for t in (20, 100))  # sequences that are whole


def _quantized() -> Iterator[OpCase]:
    """Results that are quantized."""
    for h, dim, cache in ((4, 64, "f16"), (3, 64, "f16"), (4, 80, "f16"), (4, 128, "q8_0")):
        shape = {"heads": h, "kv_heads": 1, "dim": dim, "n": 48, "cache": cache}
        formats = ("Q8_0",) if h * dim % 256 else ("Q4_K",)
        yield from (OpCase("quantized_attention", t, shape, formats) for t in (1, 9, 40))
        yield OpCase("quantized_attention", 2, shape, formats, past=(30, 90))
        yield OpCase("quantized_attention", 7, {**shape, "decodes": 1}, formats, past=(30, 90))


def _groups() -> Iterator[OpCase]:
    """As many queries to a head of keys as models have: 3 (SmolLM2), 5 (Qwen3 14B), 6, 7, 12, and 21."""
    for cache in ("f16", "q8_0", "int8", "fp8", "int4"):
        for group in (3, 5, 6, 7, 12, 21):
            yield OpCase("attention", 1, {"heads": group, "kv_heads": 1, "dim": 64, "cache": cache}, past=(100,))


def _written() -> Iterator[OpCase]:
    """Keys and values that are normed, turned and written to the cache."""
    for norms in (0, 1):
        for interleaved in (0, 1):
            shape = {"heads": 4, "kv_heads": 2, "dim": 64, "norms": norms, "interleaved": interleaved}
            yield from (OpCase("rope_set_rows", t, shape) for t in (1, 2, 9, 33))
            yield OpCase("rope_set_rows", 2, shape, past=(30, 64))
            yield OpCase("rope_set_rows", 5, {**shape, "cache": "q8_0"}, past=(30, 64))


def _prompts() -> Iterator[OpCase]:
    """Attention to many tokens of several sequences."""
    shape = {"heads": 6, "kv_heads": 3, "dim": 64, "cache": "f16", "reach": WHOLE, "alibi": 8}
    yield from (OpCase("attention", t, shape, past=(0,) * n) for t, n in ((1, 1), (127, 1), (20, 3), (100, 3)))
    for cache in ("f32", "f16", "q8_0"):
        shape = {"heads": 6, "kv_heads": 3, "dim": 64, "cache": cache, "alibi": 8}
        yield OpCase("attention", 2, shape, past=(70, 30))
        yield OpCase("attention", 24, {**shape, "decodes": 1}, past=(70, 3, 20))
    for dim in (64, 128):
        shape = {"heads": 4, "kv_heads": 2, "dim": dim, "cache": "f16"}
        yield OpCase("attention", 530, shape, past=(0, 70, 3, 200))
        yield OpCase("attention", 300, {**shape, "decodes": 2}, past=(130, 5, 70, 0))
        for cache, static in (("int8", {}), ("int8", {"static": 1}), ("fp8", {}), ("fp8", {"static": 1})):
            yield OpCase("attention", 530, {**shape, "cache": cache, **static}, past=(0, 70, 3, 200))
            yield OpCase("attention", 300, {**shape, "cache": cache, **static, "decodes": 2}, past=(130, 5, 70, 0))


def _gemma4() -> Iterator[OpCase]:
    """Heads of layers without a window, and a layer that reads the cache of another."""
    shape: dict[str, Any] = {"heads": 8, "kv_heads": 1, "dim": 512}
    yield from (OpCase("attention", t, shape, past=past) for t, past in ((1, (70,)), (20, (0, 70, 3))))
    rotated = {**shape, "norms": 1, "interleaved": 0}
    yield OpCase("rope_set_rows", 3, rotated)
    yield OpCase("rope_set_rows", 2, {**rotated, "heads": 4, "kv_heads": 2, "dim": 64, "readers": 1}, past=(30, 64))


def _scales_of_heads() -> Iterator[OpCase]:
    """Attention to caches of codes, whose heads have scales."""
    for cache in ("int8", "fp8"):
        for static in ({}, {"static": 1}):
            shape = {"heads": 4, "kv_heads": 2, "dim": 128, "cache": cache, **static}
            yield from (OpCase("attention", 1, shape, past=(n,)) for n in (1, 63, 64))
            yield OpCase("attention", 1, {**shape, "heads": 2, "kv_heads": 1, "dim": 64}, past=(4095,))
            yield OpCase("attention", 512, shape)
            yield OpCase("attention", 3, shape, past=(5, 128, 300))
            yield OpCase("attention", 20, shape, past=(0, 70, 3))
            yield OpCase("attention", 22, {**shape, "decodes": 2}, past=(130, 5, 70, 0))
            rotated = {"heads": 4, "kv_heads": 2, "dim": 64, "norms": 1, "interleaved": 0, "cache": cache, **static}
            yield from (OpCase("rope_set_rows", t, rotated, past=(30, 64)) for t in (2, 70))
        for h, kv, dim in ((7, 1, 64), (16, 2, 96), (2, 2, 80), (4, 1, 256)):
            shape = {"heads": h, "kv_heads": kv, "dim": dim, "cache": cache}
            yield OpCase("attention", 11, {**shape, "decodes": 1, "window": 20, "cap": 1}, past=(90, 40))
            yield OpCase("attention", 11, {**shape, "decodes": 1, "sinks": 1}, past=(90, 40))


def _rotated() -> Iterator[OpCase]:
    """Attention to caches of int4, also of heads that are rotated in blocks."""
    for h, kv, dim in ((4, 2, 128), (7, 1, 64), (3, 1, 96), (4, 1, 256)):
        shape = {"heads": h, "kv_heads": kv, "dim": dim, "cache": "int4"}
        yield from (OpCase("attention", 1, shape, past=(n,)) for n in (1, 64, 700))
        yield OpCase("attention", 40, shape, past=(100,))
        yield OpCase("attention", 22, {**shape, "decodes": 2}, past=(130, 5, 70, 0))
        yield OpCase("attention", 11, {**shape, "decodes": 1, "window": 20, "cap": 1}, past=(90, 40))
        yield OpCase("attention", 11, {**shape, "decodes": 1, "sinks": 1}, past=(90, 40))
        rotated = {**shape, "norms": 1, "interleaved": 0}
        yield from (OpCase("rope_set_rows", t, rotated, past=(30, 64)) for t in (2, 70))
    shape = {"heads": 4, "kv_heads": 2, "dim": 128, "n": 48, "cache": "int4"}
    yield from (OpCase("quantized_attention", t, shape, ("Q4_K",)) for t in (1, 9))
