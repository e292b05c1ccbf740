"""Compiled kernels on disk, and a word to the user while they are made for the first time."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import re
import shutil
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from octavo.errors import BackendError
from octavo.jit import clock
from octavo.jit.clock import compile_seconds, spent

log = logging.getLogger("octavo")

_FOLDER = re.compile("[0-9a-f]{16}")


def cache_root() -> Path:
    """$OCTAVO_CACHE, or octavo/ in the user's cache folder."""
    chosen = os.environ.get("OCTAVO_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "octavo"


NOT_KEPT = "compiled kernels can't be kept in %s: %s"
DAY_S = 24 * 3600.0
UNUSED_DAYS, RECENT_FOLDERS = 30, 8
_said: set[str] = set()


def warn_once(message: str, *args: object) -> None:
    """Warn, unless this process has done so with the same message, whatever its arguments were."""
    if message not in _said:
        _said.add(message)
        log.warning(message, *args)


@cache
def kernel_folder(here: Path = Path(__file__).parents[1], compiler: str = "") -> Path | None:
    """The folder of kernels compiled from sources `here`, made if need be; None, with a warning, where it can't be.

    Its name holds a hash of the sources, and of `compiler`, its version: Numba itself would miss changes in the
    intrinsics that a kernel uses. Folders of other sources that are no longer used are removed.
    """
    archive = next((p for p in here.parents if p.is_file()), Path(sys.executable))
    sources = sorted(here.rglob("*.py")) or [archive]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources) + compiler.encode()).hexdigest()[:16]
    folder = cache_root() / "kernels" / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        warn_once(NOT_KEPT, folder, error.strerror)
        return None
    with suppress(OSError):  # of another user, say
        os.utime(folder)  # it is in use
        _remove_unused(folder)
    return folder


def _remove_unused(used: Path) -> None:
    """Remove folders like `used` that no process began to use for a month, or for a day where there are many.

    A process that is at work in one of them loses nothing but time: it makes its folder again. Raises OSError.
    """
    others = [f for f in used.parent.iterdir() if f != used and _FOLDER.fullmatch(f.name) and not f.is_symlink()]
    ages = sorted((time.time() - f.stat().st_mtime, f) for f in others)
    for i, (age, folder) in enumerate(ages):
        if age > UNUSED_DAYS * DAY_S or (i >= RECENT_FOLDERS and age > DAY_S):
            shutil.rmtree(folder, ignore_errors=True)


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
