"""Files that clients upload and batches write: the bytes of each in a folder, and beside them what they are."""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from octavo.errors import FileError
from octavo.io.atomic import failures_of, written_file
from octavo.io.regular_file import read_text
from octavo.server.generation.ids import new_id
from octavo.server.http.api_errors import ApiError

log = logging.getLogger("octavo")
ENDING = ".json"
"""Of the name of what says what a file is."""
ID = re.compile(r"file-[A-Za-z0-9]{24}[oe]?")
"""Of an upload, and with a letter more what a batch has written."""
COMING = re.compile(r"\.upload-[A-Za-z0-9]{24}")
"""The name of a file while it is uploaded."""
MOST_SAID = 1 << 20
MOST_FILE, MOST_FILES, MOST_BYTES = 512 << 20, 10_000, 32 << 30
"""Bytes of a file, as OpenAI has it; files of all keys, and their bytes."""
USUAL_S = 30 * 24 * 3600
"""Seconds after which an uploaded file goes that says nothing else."""


class StoredFile(msgspec.Struct, frozen=True):
    """What a file is. `owner` is the key that it was uploaded with."""

    id: str
    owner: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None

    def shown(self) -> dict[str, object]:
        """As clients see it."""
        found = {name: value for name, value in msgspec.structs.asdict(self).items() if name != "owner"}
        return {"object": "file", **found, "status": "processed"}


class FileStore:
    """The files in a folder. A file is there once what it is has been written."""

    def __init__(
        self, folder: str, *, most: int = MOST_FILES, most_bytes: int = MOST_BYTES, most_file: int = MOST_FILE
    ) -> None:
        """Raises FileError for a folder that can't be made."""
        self.folder, self._most, self._most_bytes, self.most_file = folder, most, most_bytes, most_file
        self._coming = list[int]()  # bytes of what is being uploaded, at most
        with failures_of(folder):
            os.makedirs(folder, 0o700, exist_ok=True)
        self.files = {one.id: one for one in self._found()}

    def _found(self) -> Iterator[StoredFile]:
        names = set(os.listdir(self.folder))
        for name in sorted(names):
            path = os.path.join(self.folder, name)
            if COMING.fullmatch(name) or (ID.fullmatch(name) and name + ENDING not in names):
                _remove_left_behind(path)
            if not (name.endswith(ENDING) and ID.fullmatch(name.removesuffix(ENDING))):
                continue  # all other names are the user's own
            try:
                one = msgspec.json.decode(read_text(path, MOST_SAID), type=StoredFile)
                if name != one.id + ENDING or os.path.getsize(self.path(one.id)) != one.bytes:
                    raise FileError("is not what is beside it", file=path)
            except (FileError, msgspec.MsgspecError, OSError) as error:
                log.warning("%s is left out: %s", path, error)
                continue
            yield one

    def path(self, one: str) -> str:
        return os.path.join(self.folder, one)

    def require_room(self, nbytes: int) -> None:
        """Raise ApiError where another file of this size is too much."""
        self._remove_expired()
        held = sum(one.bytes for one in self.files.values()) + sum(self._coming)
        if len(self.files) + len(self._coming) >= self._most:
            raise full(f"there are {len(self.files)} files (allowed: {self._most}): delete some")
        if nbytes > self.most_file:
            raise ApiError(413, f"the file is larger than {self.most_file} bytes, which is the most", param="file")
        if held + nbytes > self._most_bytes:
            raise full(f"files take {held} bytes (allowed: {self._most_bytes}): delete some")

    @contextmanager
    def receiving(self, nbytes: int) -> Iterator[str]:
        """The path of a file to write what is uploaded to, of at most `nbytes`; it is removed: see `add`.

        Raises ApiError where that is too much.
        """
        self.require_room(nbytes)
        path = os.path.join(self.folder, f".{new_id('upload-')}")
        self._coming.append(nbytes)
        try:
            yield path
        finally:
            self._coming.remove(nbytes)
            with suppress(OSError):
                os.unlink(path)

    def add(
        self, path: str, owner: str, filename: str, purpose: str, *, seconds: int | None = None, one: str | None = None
    ) -> StoredFile:
        """Have a file's bytes in the store, with another name for them; `one` is its id if there is one already.

        Raises FileError where that can't be written.
        """
        one, now = one or new_id("file-"), int(time.time())
        with failures_of(self.path(one)):
            with suppress(FileNotFoundError):
                os.unlink(self.path(one))
            try:
                os.link(path, self.path(one))
            except OSError:  # a file system without links
                shutil.copy(path, self.path(one))  # which is nobody else's to read either
            size = os.path.getsize(path)
        found = StoredFile(one, owner, size, now, filename, purpose, None if seconds is None else now + seconds)
        with written_file(self.path(one) + ENDING, mode=0o600) as temporary, open(temporary, "wb") as file:
            file.write(msgspec.json.encode(found))
        self.files[one] = found
        return found

    def of(self, owner: str, purpose: str | None = None) -> list[StoredFile]:
        """The files of a key, the oldest first."""
        self._remove_expired()
        found = (one for one in self.files.values() if one.owner == owner and purpose in (None, one.purpose))
        return sorted(found, key=lambda one: one.created_at)

    def find(self, one: str, owner: str) -> StoredFile:
        """A file of a key. Raises ApiError for none."""
        self._remove_expired()
        found = self.files.get(one)
        if found is None or found.owner != owner:
            raise ApiError(404, f"No such File object: {one[:200]}", param="id", type="invalid_request_error")
        return found

    def remove(self, one: str) -> None:
        """Remove a file: what it is first, so that no half of it stays known."""
        del self.files[one]
        for path in (self.path(one) + ENDING, self.path(one)):
            with suppress(OSError):
                os.unlink(path)

    def _remove_expired(self) -> None:
        now = time.time()
        for one in [one.id for one in self.files.values() if one.expires_at is not None and one.expires_at < now]:
            self.remove(one)


def _remove_left_behind(path: str) -> None:
    """Remove a file that was not whole when its server was killed. What isn't a regular file stays."""
    with suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)


def full(message: str) -> ApiError:
    """There is no room for what is to be kept."""
    return ApiError(507, message, code="storage_full", headers={"x-should-retry": "false"})
