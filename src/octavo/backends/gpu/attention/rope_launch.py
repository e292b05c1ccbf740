"""RotaryAngles of heads by their position, and what goes into the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import triton

from octavo.backends.gpu.attention.rope_kernel import rope_kernel, rope_set_rows_kernel, set_rows_kernel
from octavo.backends.gpu.launch.arguments import Constant, Matrix, Pointer
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Cache

SOME_TOKENS, ENOUGH_HEADS = 64, 1 << 14
"""Tokens from which on a program turns four heads, and heads of all tokens from which on it turns eight."""


class RotaryAngles(NamedTuple):
    """By which angles heads are turned.

    positions  int32 [T]
    freqs      float32 [half], of each pair of values
    scale      of all cosines and sines
    """

    positions: Pointer
    freqs: Pointer
    scale: float


class CacheRows(NamedTuple):
    """A cache of keys or of values [rows, heads, dim].

    data    floats, or bytes of codes
    scales  of codes, as a Cache has them; None for floats
    heads   of a row
    """

    data: Pointer
    scales: Pointer | None
    heads: int


class Norms(NamedTuple):
    """Weights [dim] of the RMS norms of each head of q and of k."""

    q: Pointer
    k: Pointer
    eps: float


@dataclass(frozen=True)
class HeadShape(Constant):
    """How a head is turned.

    dim          values of a head
    block_d      the power of two that holds them
    half         pairs of values that are turned: the first 2 * half
    interleaved  a pair is two neighbours; otherwise values i and half + i
    kind         of the caches that it goes to, if they have codes: "q8_0", "int8", "fp8" or "int4"
    static       those codes have static scales
    per_program  heads that a program turns one after the other: their angles are the same
    """

    dim: int
    block_d: int
    half: int = 0
    interleaved: bool = False
    kind: str = ""
    static: bool = False
    per_program: int = 1


def apply_rope(c: Context, x: torch.Tensor, rotation: RotaryAngles, interleaved: bool, out: torch.Tensor) -> Launch:
    """out [T, heads, dim] = x turned."""
    tokens, heads, _ = x.shape
    shape = _shape(x, rotation, interleaved)
    return c.launch(rope_kernel, (tokens, heads), _rows(x), rotation, _rows(out), shape=shape, warps=1)


def rope_and_set_rows(
    c: Context, qkv: Sequence[torch.Tensor], caches: Sequence[Cache], rows: torch.Tensor, rotation: RotaryAngles,
    interleaved: bool, norms: Norms | None, out: torch.Tensor,
) -> Launch:
    """out = q turned; k turned, and v, go to rows `rows` of their caches. With `norms` q and k are normed before."""
    q, k, v = qkv
    tokens, heads, _ = q.shape
    k_cache, v_cache = map(_cache_rows, caches)
    shape = _stored(_shape(q, rotation, interleaved), caches[0])
    rows_of_heads = heads + 2 * k.shape[1]
    shape = replace(shape, per_program=_per_program(tokens, rows_of_heads))
    return c.launch(
        rope_set_rows_kernel, (tokens, -(-rows_of_heads // shape.per_program)), _rows(q), _rows(k), _rows(v), k_cache,
        v_cache, rows, rotation, norms, _rows(out), heads, shape=shape, warps=1, exact=True,
    )


def _per_program(tokens: int, heads: int) -> int:
    """As many heads of a token as leave enough programs: cosines and sines take most of the time of one."""
    return 8 if tokens * heads >= ENOUGH_HEADS else 4 if tokens >= SOME_TOKENS else 1


def set_rows(c: Context, values: torch.Tensor, rows: torch.Tensor, cache: Cache) -> Launch:
    """cache[rows] = values [T, heads, dim]."""
    tokens, heads, dim = values.shape
    shape = _stored(HeadShape(dim, triton.next_power_of_2(dim)), cache)
    return c.launch(
        set_rows_kernel, (tokens, heads), _rows(values), rows, _cache_rows(cache), shape=shape, warps=1, exact=True
    )


def _shape(x: torch.Tensor, rotation: RotaryAngles, interleaved: bool) -> HeadShape:
    dim = x.shape[2]
    return HeadShape(dim, triton.next_power_of_2(dim), len(rotation.freqs), interleaved)


def _stored(shape: HeadShape, cache: Cache) -> HeadShape:
    return replace(shape, kind=cache.kind, static=cache.scaling == "static")


def _rows(x: torch.Tensor) -> Matrix:
    return Matrix(x, x.stride(0))


def _cache_rows(cache: Cache) -> CacheRows:
    return CacheRows(cache.data, cache.scales, cache.shape[1])
