# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Keys that are values too as floats, of types but int8 and int4: a page of them, some values at a time."""

from __future__ import annotations

import math
from typing import Any

from octavo.backends.cpu.attention.cache_layout import ROW_SCALES, SCALES, Kind, head_bytes
from octavo.graph.node import PAGE_SIZE
from octavo.jit.compile import inner
from octavo.jit.simd import (
    load_e4m3x16,
    load_f16x16,
    load_f32x16,
    load_s8x16,
    mul,
    store_f32x16,
)


def chunk_of(dim: int) -> int:
    """Of a key's values, those whose page is made float32 at once."""
    return math.gcd(dim, 32)


def header_bytes(kind: Kind) -> int:
    """Bytes of a page's scales before all its numbers."""
    return ROW_SCALES if kind == "fp8" else 0


def chunk_bytes(kind: Kind, dim: int) -> int:
    """Bytes of the values of a page that are made float32 at once."""
    return (head_bytes(kind, dim) - header_bytes(kind)) * chunk_of(dim) // dim


def widen_function(kind: Kind, chunk: int) -> Any:
    """A function (out, at, scales): out [chunk, 64] = so many values of a page's keys as float32.

    `scales` are those of a type whose keys have one each.
    """
    loads = {"f16": (load_f16x16, 32), "f32": (load_f32x16, 64), "q8_0": (load_s8x16, 16), "fp8": (load_e4m3x16, 16)}
    load, width = loads[kind]
    coded, scaled, runs = kind == "q8_0", kind == "fp8", 4 * chunk
    blocks, block_bytes = chunk // 32, SCALES + 32 * PAGE_SIZE

    def widen(out, at, scales):
        if coded:
            for block in range(blocks):
                here = at + block * block_bytes
                for part in range(4):
                    scale = load_f16x16(here + 32 * part)
                    for d in range(32):
                        codes = load(here + SCALES + d * PAGE_SIZE + part * width)
                        store_f32x16(out + (block * 32 + d) * 256 + part * 64, mul(codes, scale))
        elif scaled:
            for part in range(4):
                scale = load_f32x16(scales + 64 * part)
                for d in range(chunk):
                    store_f32x16(out + d * 256 + part * 64, mul(load(at + d * PAGE_SIZE + part * width), scale))
        else:
            for i in range(runs):
                store_f32x16(out + i * 64, load(at + i * width))

    return inner(widen, kind, chunk)
