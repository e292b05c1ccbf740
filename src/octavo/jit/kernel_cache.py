"""The folders that compiled kernels are kept in, whoever compiles them."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

log = logging.getLogger("octavo")

_FOLDER = re.compile("[0-9a-f]{16}")


def cache_root() -> Path:
    """$OCTAVO_CACHE, or octavo/ in the user's cache folder: $XDG_CACHE_HOME, %LOCALAPPDATA% on Windows, or ~/.cache."""
    chosen = os.environ.get("OCTAVO_CACHE")
    if chosen:
        return Path(chosen)
    local = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
    base = os.environ.get("XDG_CACHE_HOME") or local or os.path.join(os.path.expanduser("~"), ".cache")
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


def kept() -> bool:
    """Whether compiled kernels are kept, as far as this process knows."""
    return NOT_KEPT not in _said


@cache
def sources(folder: Path) -> bytes:
    """A digest of all Python sources of a folder; of a package in an archive, of the archive. Raises OSError."""
    archive = next((p for p in folder.parents if p.is_file()), Path(sys.executable))
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(folder.rglob("*.py")) or [archive])).digest()


def _digest(here: Path, compiler: str = "") -> str:
    return hashlib.sha256(sources(here) + compiler.encode()).hexdigest()[:16]


@cache
def shipped_folder(here: Path = Path(__file__).parent) -> Path:
    """Where a platform wheel has kernels that were compiled from sources `here` (tools/build_wheel.py)."""
    return here / "shipped" / _digest(here)


@cache
def kernel_folder(here: Path = Path(__file__).parent, compiler: str = "") -> Path | None:
    """The folder of kernels compiled from sources `here`, made if need be; None, with a warning, where it can't be.

    Its name holds a hash of the sources, and of `compiler`, its version: Numba itself would miss changes in the
    intrinsics that a kernel uses. Folders of other sources that are no longer used are removed.
    """
    folder = cache_root() / "kernels" / _digest(here, compiler)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        warn_once(NOT_KEPT, folder, error.strerror)
        return None
    with suppress(OSError):  # the file may be another user's
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
