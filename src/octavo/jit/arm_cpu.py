"""Which of Arm's instructions the CPU has, as its system tells.

LLVM reads them on Linux only, and of these few: not those of dot products, so far as LLVM 22.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from octavo.io.macos import sysctl

AT_HWCAP, AT_HWCAP2 = 16, 26
LINUX = {"lse": (AT_HWCAP, 8), "dotprod": (AT_HWCAP, 20), "i8mm": (AT_HWCAP2, 13)}
"""The entry of the auxiliary vector and its bit, by LLVM's name (Linux: arch/arm64/include/uapi/asm/hwcap.h)."""
MACOS = {"lse": "FEAT_LSE", "dotprod": "FEAT_DotProd", "i8mm": "FEAT_I8MM"}
"""Names after hw.optional.arm. (Apple: Determining instruction set characteristics)."""
WINDOWS = {"lse": 34, "dotprod": 43, "i8mm": 66}
"""PF_ARM_V81_ATOMIC, PF_ARM_V82_DP and PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE (winnt.h)."""


def features() -> frozenset[str]:
    """LLVM's names of the features that levels are made of, and the CPU has; NEON is in every 64-bit Arm CPU."""
    ask = {"darwin": _asked_of_macos, "win32": _asked_of_windows}.get(sys.platform, _asked_of_linux)
    return frozenset({"fp-armv8", "neon", *filter(ask(), LINUX)})


def _asked_of_linux() -> Callable[[str], bool]:
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return lambda name: bool(getauxval(LINUX[name][0]) >> LINUX[name][1] & 1)


def _asked_of_macos() -> Callable[[str], bool]:
    return lambda name: sysctl(f"hw.optional.arm.{MACOS[name]}") == 1


def _asked_of_windows() -> Callable[[str], bool]:
    present = ctypes.CDLL("kernel32").IsProcessorFeaturePresent
    return lambda name: bool(present(WINDOWS[name]))
