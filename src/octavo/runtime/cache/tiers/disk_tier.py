"""The tier on disk: a folder of files, one an entry, that several engines may share.

    FOLDER/v1-<model>/<page before>/<tokens>-<key>.<kind>

A file appears whole, or not at all. Its time says when it was last used; the pages of a prefix are used from the last
one to the first, so that those before others stay longer. What goes wrong costs the file, or a while without new ones,
and one line in the log. Files are the user's alone: they hold what people wrote.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, time

from octavo.errors import FileError
from octavo.formats.spec import U8
from octavo.io.atomic import reason, replace_file
from octavo.io.regular_file import open_regular
from octavo.runtime.cache.tiers.entry import KINDS, Entry
from octavo.runtime.cache.tiers.entry_file import VERSION, Found, read_entry, read_tokens, write_entry, written_bytes

log = logging.getLogger("octavo")
PAUSE_S = 60.0
"""Seconds without new files after one could not be written."""
ROOM = 16
"""One part in this many of the limit is made free at once, and written between two looks at what others wrote."""
BLOCK = 4096
"""Bytes of which a file takes whole ones."""
MOST_LOOKED_AT = 64
"""Files after a page whose tokens are compared, at the most."""
NAME = re.compile(rf"\d+-[0-9a-f]{{32}}\.({'|'.join(KINDS)})")
TEMPORARY, STALE_S = re.compile(r"\.octavo-[0-9a-f]{16}\.tmp"), 3600.0
"""Files in work, and seconds after which one was left behind."""


class DiskTier:
    """Up to `limit` bytes of entries in a folder, those of other models and engines among them.

    One thread writes; any thread reads. Raises OSError, saying so in words, for a folder that can't be used.
    """

    def __init__(self, folder: Path, limit: int, fingerprint: bytes) -> None:
        self.folder, self.limit = folder, limit
        self._own = folder / f"v{VERSION}-{fingerprint.hex()[:32]}"
        self._tokens: dict[tuple[bytes, str], tuple[int, ...]] = {}
        self._left_out: set[str] = set()
        self._paused_until = 0.0
        self._nbytes, self._unseen = 0, limit  # nothing is known before the first look
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _require_private(folder)
        self._own.mkdir(exist_ok=True, mode=0o700)
        _require_private(self._own)

    def _path(self, entry: Entry) -> Path:
        return self._own / entry.parent.hex()[:32] / entry.name

    def put(self, entry: Entry, data: U8, given_back: int = 0) -> bool:
        """Write an entry, unless it is here; whether it is here then. What is least recently used makes room."""
        path = self._path(entry)
        if self.touch(entry):
            return True
        size = _on_disk(written_bytes(entry, data.nbytes))
        if monotonic() < self._paused_until or size > self.limit:
            return False
        try:
            if self._nbytes + size > self.limit or self._unseen > self.limit // ROOM:
                self._make_room(size)
            _write(path, entry, data, given_back)
        except (OSError, FileError) as error:
            self._paused_until = monotonic() + PAUSE_S
            why = reason(error) if isinstance(error, OSError) else error.problem
            log.warning("%s: prefixes can't be kept: %s; tried again in %.0f s", self.folder, why, PAUSE_S)
            return False
        self._nbytes += size
        self._unseen += size
        return True

    def touch(self, entry: Entry) -> bool:
        """Note that an entry is used now; False where it is not here."""
        try:
            os.utime(self._path(entry))
        except FileNotFoundError:
            return False
        except OSError:  # of a folder that is only to be read
            return self._path(entry).exists()
        return True

    def get(self, entry: Entry, into: U8 | None = None) -> Found | None:
        """An entry as it was written, its data in the memory `into` if they fit; None where it is not here, or damaged,
        which is told."""
        path = self._path(entry)
        try:
            with open_regular(path, "a kept prefix", FileError) as file:
                found = read_entry(file, str(path), into)
            if found is None or found.entry != entry:
                raise FileError("holds another prefix than its name says", file=path)
        except FileNotFoundError:
            return None
        except (FileError, OSError, MemoryError) as error:
            if path.exists():
                self._leave_out(path, error)
            return None
        self.touch(entry)
        return found

    def has(self, entry: Entry) -> bool:
        return self._path(entry).exists()

    def after(self, parent: bytes) -> list[Entry]:
        """What is here after a page, as far as names and headers tell; of many files only some."""
        found = []
        for name in self._names(parent)[:MOST_LOOKED_AT]:
            tokens = self._tokens.get((parent, name))
            if tokens is None:
                path = self._own / parent.hex()[:32] / name
                try:
                    with open_regular(path, "a kept prefix", FileError) as file:
                        tokens = read_tokens(file, str(path))
                except (FileError, OSError) as error:
                    if path.exists():
                        self._leave_out(path, error)
                    continue
                if len(self._tokens) > 1 << 14:
                    self._tokens.clear()
                self._tokens[parent, name] = tokens
            kind = next(kind for kind in KINDS if name.endswith(kind))
            found.append(Entry(parent, tokens, kind))
        return found

    def _names(self, parent: bytes) -> list[str]:
        try:
            return [name for name in os.listdir(self._own / parent.hex()[:32]) if NAME.fullmatch(name)]
        except OSError:
            return []

    def remove(self, entry: Entry) -> None:
        with suppress(OSError):
            self._path(entry).unlink()

    def _leave_out(self, path: Path, error: Exception) -> None:
        """Say that a file is not used, and remove it."""
        if str(path) not in self._left_out:
            self._left_out.add(str(path))
            log.warning("a kept prefix is left out: %s", error)
        with suppress(OSError):
            path.unlink()

    def _make_room(self, size: int) -> None:
        """Remove files, the least recently used first, until there is room for `size` bytes and some more."""
        files = sorted(self._files())
        self._nbytes, self._unseen = sum(nbytes for _, nbytes, _ in files), 0
        most = self.limit - self.limit // ROOM - size
        if self._nbytes + size <= self.limit:
            return
        for _, nbytes, path in files:
            if self._nbytes <= max(most, 0):
                break
            with suppress(OSError):
                os.unlink(path)
                self._nbytes -= nbytes
            with suppress(OSError):
                os.rmdir(os.path.dirname(path))

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """All files of entries, whichever engine's: when each was last used, its bytes, its path."""
        for model in _folders(self.folder):
            for page in _folders(model):
                with suppress(OSError), os.scandir(page) as found:
                    for one in found:
                        with suppress(OSError):
                            facts = one.stat(follow_symlinks=False)
                            stale = TEMPORARY.fullmatch(one.name) and time() - facts.st_mtime > STALE_S
                            if stale or NAME.fullmatch(one.name):
                                yield 0.0 if stale else facts.st_mtime, _on_disk(facts.st_size), one.path


def _folders(path: str | os.PathLike[str]) -> Iterator[str]:
    with suppress(OSError), os.scandir(path) as found:
        yield from (one.path for one in found if one.is_dir(follow_symlinks=False))


def _on_disk(nbytes: int) -> int:
    return -(-nbytes // BLOCK) * BLOCK


def _write(path: Path, entry: Entry, data: U8, given_back: int) -> None:
    """Write a file; its folder may be removed by another engine between the two. Raises OSError, FileError."""
    for left in (1, 0):
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            with replace_file(path, flush=False, mode=0o600) as temporary, open(temporary, "wb") as file:
                write_entry(file, entry, data, given_back)
            return
        except FileNotFoundError:
            if not left:
                raise
            for folder in (path.parents[2], path.parents[1]):  # which somebody may have removed, too
                folder.mkdir(exist_ok=True, mode=0o700)


def _require_private(folder: Path) -> None:
    """See that a folder is the user's own, and nobody else's to read. Raises OSError."""
    facts = os.lstat(folder)
    if not stat.S_ISDIR(facts.st_mode):
        raise NotADirectoryError(0, "is not a folder of its own")
    if os.name == "posix" and facts.st_uid != os.geteuid():
        raise PermissionError(0, "belongs to another user")
    if os.name == "posix" and facts.st_mode & 0o077:
        os.chmod(folder, 0o700)
