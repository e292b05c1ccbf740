"""What kernels are compiled for: a level of CPUs, so that what is kept runs on every CPU of the level; and what the
level can do, as the kernels need to know it.

Numba would name the CPU that it runs on and all its features to LLVM. Kernels use no instruction above their level, so
other features change nothing, and are off. The name of a CPU also decides how LLVM chooses and orders instructions, and
that matters: see docs/log.md, "A level of CPUs is its features, and the name of one of them".
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any, Literal

from octavo.errors import BackendError
from octavo.jit import arm_cpu

Level = Literal["avx512vnni", "avxvnni", "avx2", "x86-64", "i8mm", "dotprod", "generic"]
"""The instructions that integer dot products use, best first; see `simd.dot4`."""

V2 = frozenset("64bit cmov crc32 cx16 cx8 fxsr mmx popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3".split())
V3 = V2 | frozenset("avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave".split())
V4 = V3 | frozenset("avx512bw avx512cd avx512dq avx512f avx512vl".split())
VNNI = V4 | {"avx512vnni"}
FEATURES = {
    "amx": VNNI | {"amx-bf16", "amx-int8", "amx-tile", "avx512bf16"}, "avx512vnni": VNNI, "avx512": V4,
    "avxvnni": V3 | {"avxvnni"}, "avx2": V3, "x86-64-v2": V2,
}
"""LLVM's features of the levels of x86-64, best first: those of the psABI, and what dot products need."""
NEON = frozenset({"fp-armv8", "neon"})
ARM_FEATURES = {"i8mm": NEON | {"lse", "dotprod", "i8mm"}, "dotprod": NEON | {"lse", "dotprod"}, "neon": NEON}
"""The same of 64-bit Arm."""
ARM = "aarch64", "arm64"
"""What LLVM's names of targets begin with there."""
CHOSEN = "OCTAVO_CPU_LEVEL"
"""The variable of the environment that names a lower level than the CPU's own."""


def target_of(found: str) -> str | None:
    """The features to make code for on a CPU with the features `found`, as LLVM writes them.

    The features are those of the best level that the CPU has all of; all others that LLVM knows are switched off, since
    the name of a CPU switches some on. None where no level does as much as the kernels would do with what is found:
    code is made for the very CPU there.
    """
    names, has = [f[1:] for f in found.split(",")], _on(found)
    asked = _asked_for(FEATURES, has)
    chosen = asked or next((level for level in FEATURES.values() if level <= has), None)
    if chosen is None or (not asked and _level_of(chosen) != _level_of(has)):
        return None
    return ",".join(f"{'+' if name in chosen else '-'}{name}" for name in sorted(names))


def arm_target(has: frozenset[str]) -> str:
    """The features to make code for on an Arm CPU with those of `has`: the best level's, or those asked for."""
    chosen = _asked_for(ARM_FEATURES, has) or next(level for level in ARM_FEATURES.values() if level <= has)
    return ",".join(f"+{name}" for name in sorted(chosen))


def _asked_for(levels: dict[str, frozenset[str]], has: frozenset[str]) -> frozenset[str] | None:
    """The features of the level that the environment names. Raises BackendError where the CPU has no such level."""
    name = os.environ.get(CHOSEN)
    allowed = [level for level, features in levels.items() if features <= has]
    if name and name not in allowed:
        raise BackendError(f"{CHOSEN}={name}: not a level of this CPU (allowed: {', '.join(allowed) or 'none'})")
    return levels[name] if name else None


@cache
def codegen() -> Any:
    """What Numba generates code with: for the level of the host, unless NUMBA_CPU_NAME or NUMBA_CPU_FEATURES says what
    for, or Numba has begun to compile for this very CPU. Raises BackendError for a level that the host lacks."""
    import llvmlite.binding
    import numba
    from numba.core.codegen import get_host_cpu_features
    from numba.core.registry import cpu_target

    config: Any = numba.config
    if config.CPU_NAME is None and config.CPU_FEATURES is None and "_toplevel_target_context" not in vars(cpu_target):
        llvmlite.binding.initialize_native_target()
        triple = llvmlite.binding.get_process_triple()
        if triple.startswith("x86_64"):
            config.CPU_FEATURES = target_of(get_host_cpu_features())  # type: ignore[no-untyped-call]
        elif triple.startswith(ARM):
            config.CPU_NAME, config.CPU_FEATURES = "generic", arm_target(arm_cpu.features())
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
    found = features()
    if is_arm() and "dotprod" in found:
        return "i8mm" if "i8mm" in found else "dotprod"
    return _level_of(found) if _triple().startswith("x86_64") else "generic"


def is_arm() -> bool:
    """Whether code is made for 64-bit Arm."""
    return _triple().startswith(ARM)


def _triple() -> str:
    return str(codegen().magic_tuple()[0])


def _level_of(found: frozenset[str]) -> Level:
    """The best of the levels of x86-64 with these features."""
    if {"avx512vnni", "avx512bw", "avx512vl"} <= found:
        return "avx512vnni"
    if "avxvnni" in found:
        return "avxvnni"
    return "avx2" if {"avx2", "fma", "f16c"} <= found else "x86-64"


def has_byte_shuffle() -> bool:
    """Whether a table of 16 bytes can be looked up with one instruction."""
    return level() in ("avx512vnni", "avxvnni", "avx2", "i8mm", "dotprod")


def has_fma() -> bool:
    """Whether a product and a sum are one instruction; every CPU has it but x86-64's without AVX2."""
    return "fma" in features() or level() in ("i8mm", "dotprod", "generic")


def has_f16() -> bool:
    """Whether float16 is converted by an instruction: as `has_fma`."""
    return "f16c" in features() or level() in ("i8mm", "dotprod", "generic")


def products_of_16_bits(most: int) -> int:
    """Of codes up to `most` times signed bytes, summed by pairs: how many pairs' sums 16 bits surely hold.

    0 also where a CPU has something better: with VNNI.
    """
    return 32767 // (2 * 128 * most) if level() == "avx2" else 0


def why_no_tiles() -> str:
    """Why kernels use no matrix tiles (AMX) here, "" if they do."""
    if not {"amx-tile", "amx-int8"} <= features() or level() != "avx512vnni":
        asked = os.environ.get(CHOSEN)
        return f"{CHOSEN} is {asked}" if asked else "this CPU has no AMX"
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
        return "avx512vnni with matrix tiles (AMX)"
    return level() if is_arm() else f"{level()}; no matrix tiles: {why}"
