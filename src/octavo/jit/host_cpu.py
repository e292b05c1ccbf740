"""What the CPU that Numba compiles for can do, as the kernels need to know it."""

from __future__ import annotations

from functools import cache
from typing import Literal

Level = Literal["avx512vnni", "avxvnni", "avx2", "x86-64", "dotprod", "generic"]
"""The instructions that integer dot products use, best first; see `simd.dot4`."""


@cache
def features() -> frozenset[str]:
    """Features that Numba generates code for: the host's, unless NUMBA_CPU_FEATURES or a generic CPU name says less."""
    from numba.core.registry import cpu_target

    text: str = cpu_target.target_context.codegen()._tm_features or ""
    return frozenset(f[1:] for f in text.split(",") if f.startswith("+"))


@cache
def level() -> Level:
    """The best of the levels that the CPU has."""
    from numba.core.registry import cpu_target

    triple = cpu_target.target_context.codegen().magic_tuple()[0]
    found = features()
    if triple.startswith(("aarch64", "arm64")):
        return "dotprod" if "dotprod" in found else "generic"
    if not triple.startswith("x86_64"):
        return "generic"
    if {"avx512vnni", "avx512bw", "avx512vl"} <= found:
        return "avx512vnni"
    if "avxvnni" in found:
        return "avxvnni"
    return "avx2" if {"avx2", "fma", "f16c"} <= found else "x86-64"


def has_byte_shuffle() -> bool:
    """Whether a table of 16 bytes can be looked up with one instruction."""
    return level() in ("avx512vnni", "avxvnni", "avx2", "dotprod")


def products_of_16_bits(most: int) -> int:
    """Of codes up to `most` times signed bytes, summed by pairs: how many pairs' sums 16 bits surely hold.

    0 also where a CPU has something better: with VNNI.
    """
    return 32767 // (2 * 128 * most) if level() == "avx2" else 0
