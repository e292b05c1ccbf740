"""Numba made ready, and a word to the user while kernels are compiled for the first time."""

from __future__ import annotations

import importlib
import logging
import sys
from functools import cache
from typing import Any

from octavo.errors import BackendError
from octavo.jit import clock
from octavo.jit.clock import compile_seconds, spent

log = logging.getLogger("octavo")


@cache
def prepare() -> None:
    """Make Numba ready: its LLVM and OpenMP. Raises BackendError where Numba or its OpenMP layer is missing.

    LLVM must not write an integer that is used as an address as an offset from a null pointer. It does so late, where
    that is no harm; but Numba optimizes functions once more when it links them into their callers, and by then an
    access through null is undefined: sums were left out (LLVM 22).
    """
    try:
        import llvmlite.binding
        import numba
    except (ImportError, OSError) as error:  # OSError: llvmlite's library can't be loaded
        raise BackendError(f"device cpu: Numba can't be imported ({error}); `pip install numba`") from None
    llvmlite.binding.set_option("octavo", "-addr-sink-using-gep=false")
    config: Any = numba.config
    config.THREADING_LAYER = "omp"
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError as error:
        raise BackendError(
            f"device cpu: Numba's OpenMP layer is missing ({error}); install libgomp (Linux) or libomp (macOS)"
        ) from None


class _Progress:
    """How many kernels were compiled since the last line was ended, and whether it was said without a terminal."""

    compiled = 0
    said = False


def show_progress(kernel: str, seconds: float) -> None:
    """Say that a kernel was compiled: in the log, and on a terminal in a line that counts them, elsewhere once."""
    _Progress.compiled += 1
    spent(seconds)
    log.info("compiled %s in %.2f s", kernel, seconds)
    if not sys.stderr.isatty():
        if not _Progress.said and compile_seconds() > clock.NOTICE_S:
            _Progress.said = True
            print("octavo: compiling kernels for this CPU, which are kept for the next time", file=sys.stderr)
    else:
        sys.stderr.write(f"\rCompiling kernels for this CPU (once): {_Progress.compiled} ")
        sys.stderr.flush()


def end_progress() -> None:
    """End the progress line, if there is one."""
    if _Progress.compiled and sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
    _Progress.compiled = 0
