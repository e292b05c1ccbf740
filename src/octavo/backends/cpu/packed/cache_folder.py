"""The folder of packed weights: how much it may hold, what is in it, and what leaves it first."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from octavo.backends.cpu.packed.cache_file import CacheFile, DamagedError
from octavo.errors import UsageError
from octavo.jit.kernel_cache import DAY_S, cache_root

log = logging.getLogger("octavo")

VARIABLE = "OCTAVO_WEIGHT_CACHE"
MOST = 64 << 30
"""Bytes that the folder holds at most, unless the variable says otherwise; never over half of what its disk has."""
SPARED = 1 << 30
"""Bytes that are left free on its disk."""
NOT_KEPT = "packed weights are not kept in %s: %s"
_NAME = re.compile(r"[0-9a-f]{32}\.weights")
_LIMIT = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.IGNORECASE)


@dataclass(frozen=True)
class Entry:
    """A file of the folder: the model whose weights are in it, where that was, and when it was last used.

    made_of  digests of the model's files, and of the code that packed them
    """

    path: Path
    model: str
    nbytes: int
    used: float
    made_of: tuple[str, str] = ("", "")


def folder() -> Path:
    """`weights`, beside the folder of compiled kernels."""
    return cache_root() / "weights"


def limit() -> int:
    """Bytes that the folder may hold. Raises UsageError where the variable is not a size."""
    given = os.environ.get(VARIABLE)
    if given:
        found = _LIMIT.fullmatch(given.strip())
        if found is None:
            raise UsageError(f"{VARIABLE} is {given!r} (allowed: bytes, such as 512M or 20G; 0: keep nothing)")
        return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))
    return min(MOST, (_free() + sum(size for _, size, _ in _files())) // 2)


def why_no_room(needed: int) -> str:
    """Why a file of this size can't be kept, whatever goes for it; empty if it can. Raises UsageError as `limit`."""
    if needed > limit():
        return f"they take {needed:,} bytes, and all that is kept may take {limit():,} ({VARIABLE})"
    if _free() + sum(size for _, size, _ in _files()) < needed + SPARED:
        return f"they take {needed:,} bytes, and the disk has {_free():,} left"
    return ""


def make_room(needed: int) -> None:
    """Make the folder, and remove what was not used for longest until there is room for a file. Raises OSError."""
    folder().mkdir(parents=True, exist_ok=True)
    files = sorted(_files(), reverse=True)
    total, most = sum(size for _, size, _ in files), limit()
    while files and (total + needed > most or _free() < needed + SPARED):
        _, size, path = files.pop()
        with suppress(PermissionError):  # on Windows a process has it mapped
            path.unlink(missing_ok=True)
            log.info("removed %s, packed weights that were not used for longest", path)
            total -= size


def entries() -> list[Entry]:
    """The files that are there, the last used first. A damaged one has no model."""
    found = []
    for used, size, path in sorted(_files(), reverse=True):
        try:
            index = CacheFile(str(path), check=False).index
            model, made_of = str(index["model"]), (str(index["files"]), str(index["code"]))
        except (OSError, DamagedError, KeyError, ValueError):
            model, made_of = "", ("", "")
        found.append(Entry(path, model, size, used, made_of))
    return found


def remove(these: Iterable[Entry]) -> int:
    """Remove files; the bytes that this frees. A process that has one mapped keeps it until it ends. Raises OSError."""
    freed = 0
    for entry in these:
        entry.path.unlink(missing_ok=True)
        freed += entry.nbytes
    return freed


def remove_outdated(made_of: Mapping[str, str]) -> None:
    """Remove the weights that the same model had before its files changed, and those that other code packed, unused
    for a day. Raises OSError."""
    for entry in entries():
        files, code = entry.made_of
        old = code != made_of["code"] and time.time() - entry.used > DAY_S
        if entry.model == made_of["model"] and (files != made_of["files"] or old):
            with suppress(PermissionError):  # as above
                remove([entry])


def touch(path: Path) -> None:
    """A file is used now."""
    with suppress(OSError):  # it may be another user's
        os.utime(path, (time.time(), time.time()))


def _files() -> list[tuple[float, int, Path]]:
    found = []
    with suppress(OSError), os.scandir(folder()) as all_there:
        for each in all_there:
            if _NAME.fullmatch(each.name):
                with suppress(FileNotFoundError):
                    stat = each.stat(follow_symlinks=False)
                    found.append((stat.st_mtime, stat.st_size, Path(each.path)))
    return found


def _free() -> int:
    return shutil.disk_usage(next(f for f in (folder(), *folder().parents) if f.is_dir())).free
