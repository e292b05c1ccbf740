"""What kernels are compiled for: a level of CPUs, so that what is kept runs on every CPU of the level; and what the
level can do, as the kernels need to know it.

Numba would name the CPU that it runs on and all its features to LLVM. Kernels use no instruction above their level, so
other features change nothing, and are off. The name of a CPU also decides how LLVM chooses and orders instructions, and
that matters: see docs/log.md, "A level of CPUs is its features, and the name of one of them".
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any, Literal

Level = Literal["avx512vnni", "avxvnni", "avx2", "x86-64", "dotprod", "generic"]
"""The instructions that integer dot products use, best first; see `simd.dot4`."""

V2 = frozenset("64bit cmov crc32 cx16 cx8 fxsr mmx popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3".split())
V3 = V2 | frozenset("avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave".split())
V4 = V3 | frozenset("avx512bw avx512cd avx512dq avx512f avx512vl".split())
VNNI = V4 | {"avx512vnni"}
FEATURES = (VNNI | {"amx-bf16", "amx-int8", "amx-tile", "avx512bf16"}, VNNI, V4, V3 | {"avxvnni"}, V3, V2)
"""LLVM's features of the levels of x86-64, best first: those of the psABI, and what dot products need."""


def target_of(found: str) -> str | None:
    """The features to make code for on a CPU with the features `found`, as LLVM writes them.

    The features are those of the best level that the CPU has all of; all others that LLVM knows are switched off, since
    the name of a CPU switches some on. None where no level does as much as the kernels would do with what is found:
    code is made for the very CPU there.
    """
    names, has = [f[1:] for f in found.split(",")], _on(found)
    chosen = next((level for level in FEATURES if level <= has), None)
    if chosen is None or _level_of(chosen) != _level_of(has):
        return None
    return ",".join(f"{'+' if name in chosen else '-'}{name}" for name in sorted(names))


@cache
def codegen() -> Any:
    """What Numba generates code with: for the level of the host, unless NUMBA_CPU_NAME or NUMBA_CPU_FEATURES says what
    for, or Numba has begun to compile for this very CPU."""
    import llvmlite.binding
    import numba
    from numba.core.codegen import get_host_cpu_features
    from numba.core.registry import cpu_target

    config: Any = numba.config
    if config.CPU_NAME is None and config.CPU_FEATURES is None and "_toplevel_target_context" not in vars(cpu_target):
        llvmlite.binding.initialize_native_target()
        if llvmlite.binding.get_process_triple().startswith("x86_64"):
            config.CPU_FEATURES = target_of(get_host_cpu_features())  # type: ignore[no-untyped-call]
    return cpu_target.target_context.codegen()


@cache
def features() -> frozenset[str]:
    """Features that Numba generates code for."""
    return _on(codegen()._tm_features or "")


def _on(found: str) -> frozenset[str]:
    return frozenset(f[1:] for f in found.split(",") if f.startswith("+"))


@cache
def level() -> Level:
    """The best of the levels that the CPU has."""
    triple = codegen().magic_tuple()[0]
    found = features()
    if triple.startswith(("aarch64", "arm64")):
        return "dotprod" if "dotprod" in found else "generic"
    return _level_of(found) if triple.startswith("x86_64") else "generic"


def _level_of(found: frozenset[str]) -> Level:
    """The best of the levels of x86-64 with these features."""
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


def why_no_tiles() -> str:
    """Why kernels use no matrix tiles (AMX) here, "" if they do."""
    if not {"amx-tile", "amx-int8"} <= features() or level() != "avx512vnni":
        return "code is not made for a CPU with AMX"
    return "" if _has_permission() else "the system does not hand AMX's tiles out"


def has_tiles() -> bool:
    """Whether kernels use matrix tiles (AMX). Asks the system for them, once; it hands them out to all threads."""
    return not why_no_tiles()


@cache
def _has_permission() -> bool:
    """Whether Linux lets this process use the data of tiles: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc is not None and libc.syscall(158, 0x1023, 18) == 0


def described() -> str:
    """What kernels are compiled for, and why not for more, in a line."""
    if (why := why_no_tiles()) == "":
        return "avx512vnni with AMX's tiles"
    return f"{level()}; no tiles: {why}" if _triple_is_x86() else level()


def _triple_is_x86() -> bool:
    return str(codegen().magic_tuple()[0]).startswith("x86_64")
