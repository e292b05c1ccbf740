"""Numba made ready, and a word to the user while kernels are compiled for the first time."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

from octavo.errors import INSTALL_BASE, BackendError, import_failure
from octavo.jit import clock, host_cpu
from octavo.jit.clock import compile_seconds, spent
from octavo.jit.kernel_cache import kept
from octavo.progress import Line, tell

log = logging.getLogger("octavo")


@cache
def prepare() -> None:
    """Make Numba ready: its LLVM and its threads. Raises BackendError where Numba is missing.

    LLVM must not write an integer that is used as an address as an offset from a null pointer. It does so late, where
    that does no harm; but Numba optimizes functions once more when it links them into their callers, and by then an
    access through null is undefined: sums were left out (LLVM 22).
    """
    try:
        import llvmlite.binding
        import numba
    except (ImportError, OSError) as error:  # OSError: llvmlite's library can't be loaded, or there is no memory for it
        raise BackendError(f"device cpu: {import_failure('numba', error, INSTALL_BASE)}") from None
    llvmlite.binding.set_option("octavo", "-addr-sink-using-gep=false")
    config: Any = numba.config
    config.THREADING_LAYER = layer()
    host_cpu.codegen()


@cache
def layer() -> str:
    """The layer of Numba's threads: OpenMP's, or Numba's own where the system has no OpenMP (libgomp, libomp)."""
    try:
        with _sleeping_threads():
            importlib.import_module("numba.np.ufunc.omppool")
    except ImportError as error:
        log.info("threads are Numba's own, for OpenMP is missing (%s)", error)
        return "workqueue"
    return "omp"


@contextmanager
def _sleeping_threads() -> Iterator[None]:
    """OpenMP is loaded so that its threads sleep when they wait, unless the user's environment says how.

    GNU's spin for up to 20 ms otherwise: where other programs run, on cores that a thread which is waited for needs.
    """
    theirs = os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
    ours = {} if theirs else {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


_ONE = threading.Lock()


def turn() -> AbstractContextManager[object]:
    """What a parallel region is run under: Numba's own threads serve one at a time, OpenMP's any number."""
    return nullcontext() if layer() == "omp" else _ONE


class _Progress:
    """How many kernels were compiled since the last line was ended, of how many, and whether that was said."""

    compiled = 0
    total = 0
    said = False
    line = Line()


def expect(count: int) -> None:
    """Say of how many kernels those are that are to be compiled now."""
    _Progress.total = _Progress.compiled + count


def made_elsewhere(count: int) -> None:
    """Count kernels that other processes have compiled."""
    if count:
        _Progress.compiled += count
        _show()


def show_progress(kernel: str, seconds: float) -> None:
    """Say that a kernel was compiled: in the log, and on a terminal in a line that counts them, elsewhere once."""
    _Progress.compiled += 1
    spent(seconds)
    log.info("compiled %s in %.2f s", kernel, seconds)
    _show()


def _show() -> None:
    done, total = _Progress.compiled, max(_Progress.total, _Progress.compiled)
    what = f"compiling kernels for this CPU{' (once)' if kept() else ''}: {done} of {total}"
    if tell(what, done, total):
        _Progress.said = True
        return
    if sys.stderr.isatty():
        _Progress.line.show(what, done, total)
    elif not _Progress.said and compile_seconds() > clock.NOTICE_S:
        _Progress.said = True
        told = " (first run only)" if kept() else ""
        print(f"octavo: compiling kernels for this CPU{told}", file=sys.stderr)


def end_progress() -> None:
    """End the progress line, if there is one."""
    _Progress.line.clear()
    _Progress.compiled = _Progress.total = 0
