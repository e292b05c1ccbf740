"""Small functions compiled as kernels are, and memory where one byte too many is a fault."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from octavo.backends.cpu.program import FAST


class Compiled:
    """`@compiled`: a function of integers, compiled with the options of kernels; arrays are passed as addresses."""

    def __call__(self, function: Callable[..., None]) -> Callable[..., None]:
        machine_code = self.inline(function)

        def call(*args: Any) -> None:
            machine_code(*[a.ctypes.data if isinstance(a, np.ndarray) else a for a in args])

        return call

    def inline(self, function: Callable[..., Any]) -> Any:
        """The compiled function itself, for others to call."""
        return njit(error_model="numpy", fastmath=FAST)(function)


compiled = Compiled()

_FENCES: list[mmap.mmap] = []


def fenced(nbytes: int) -> np.ndarray:
    """uint8 [nbytes], zeros, that end where a page begins that may be neither read nor written."""
    page = mmap.PAGESIZE
    size = -(-nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    _FENCES.append(memory)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    if libc.mprotect(ctypes.c_void_p(whole.ctypes.data + size), page, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return whole[size - nbytes : size]
