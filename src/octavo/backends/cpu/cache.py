"""Compiled kernels on disk, and a word to the user while they are made for the first time."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from octavo.errors import BackendError

log = logging.getLogger("octavo")


def cache_root() -> Path:
    """$OCTAVO_CACHE, or octavo/ in the user's cache folder."""
    chosen = os.environ.get("OCTAVO_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "octavo"


@cache
def prepare() -> None:
    """Point Numba at our cache and at OpenMP. Raises BackendError where Numba or its OpenMP layer is missing.

    The folder's name holds a hash of the sources: Numba itself would miss changes in the intrinsics that a kernel uses.

    LLVM must not write an integer that is used as an address as an offset from a null pointer. It does so late, where
    that is no harm; but Numba optimizes functions once more when it links them into their callers, and by then an
    access through null is undefined: sums were left out (LLVM 22).
    """
    try:
        import llvmlite.binding
        import numba
    except ImportError as error:
        raise BackendError(f"device cpu: Numba can't be imported ({error}); `pip install numba`") from None
    llvmlite.binding.set_option("octavo", "-addr-sink-using-gep=false")
    config: Any = numba.config
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources) + numba.__version__.encode()).hexdigest()[:16]
    folder = cache_root() / "kernels" / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config.CACHE_DIR = str(folder)
    except OSError as error:
        log.warning("compiled kernels can't be kept in %s: %s", folder, error.strerror)
    config.THREADING_LAYER = "omp"
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError as error:
        raise BackendError(
            f"device cpu: Numba's OpenMP layer is missing ({error}); install libgomp (Linux) or libomp (macOS)"
        ) from None


class _Progress:
    """How many kernels were compiled since the last line was ended."""

    compiled = 0


def show_progress(kernel: str, seconds: float) -> None:
    """Say that a kernel was compiled: in the log, and on a terminal in a line that counts them."""
    _Progress.compiled += 1
    log.info("compiled %s in %.2f s", kernel, seconds)
    if sys.stderr.isatty():
        sys.stderr.write(f"\rCompiling kernels for this CPU (once): {_Progress.compiled} ")
        sys.stderr.flush()


def end_progress() -> None:
    """End the progress line, if there is one."""
    if _Progress.compiled and sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
    _Progress.compiled = 0
