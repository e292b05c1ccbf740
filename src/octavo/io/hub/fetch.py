"""One file's download: goes on where an earlier one stopped, and leaves the right bytes or none.

The requests are those of `huggingface_hub`'s session. Its own `hf_hub_download` begins anew after Ctrl-C, and compares
sizes only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from typing import Any

from octavo.errors import HubError
from octavo.io.hub.hub_client import http_library
from octavo.io.hub.patience import Patience, Show
from octavo.io.hub.variants import RepoFile
from octavo.io.locks import locked_if_any
from octavo.sizes import size

PIECE = 1 << 20
"""Bytes of a partial file that are read at once."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def fetch(
    url: str, headers: Mapping[str, str], entry: RepoFile, blob: str, partial: str, refused: Callable[[Any], None],
    patience: Patience, show: Show,
) -> int:
    """Bring a file from `url` to `blob`, by way of `partial`, which keeps what is there when it is interrupted.

    `refused` is told of each response that is an error, and returns if it is to be asked again; `show` is told of the
    bytes that are there. Returns how many were downloaded. Raises HubError, after `partial` was removed where its bytes
    are wrong.
    """
    from huggingface_hub import constants, get_session

    with _alone(entry, partial, blob, show) as file:
        if file is None:
            return 0
        part, downloaded, http = _Part(file, entry, show), 0, http_library()
        while part.done < entry.size:
            asked = {**headers, "Accept-Encoding": "identity"}
            if part.done:
                asked["Range"] = f"bytes={part.done}-"
            problem = "the connection was lost"
            try:
                with get_session().stream(
                    "GET", url, headers=asked, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
                ) as response:
                    for n in () if response.is_error else _receive(response, part, entry):
                        downloaded += n
                        patience.refresh()
                        show(entry.name, part.done, entry.size)
                if response.is_error:
                    refused(response)
                    continue
            except http.RequestError as error:
                if not isinstance(error, http.RemoteProtocolError):
                    problem += f" ({error or type(error).__name__})"
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                problem = f"{entry.name} can't be written to {os.path.dirname(blob)}: {error.strerror}"
                raise HubError(f"{problem}; free some space, and the same command will resume") from None
            if part.done < entry.size:
                patience.wait(f"{entry.name}: {problem} after {size(part.done)}")
        if part.digest() != entry.digest:
            os.unlink(partial)
            wanted = f"{'SHA-256' if len(entry.digest) == 64 else 'Git blob'} {entry.digest}"
            raise HubError(f"{entry.name} was corrupted in the download, and removed: it should have {wanted}")
        os.fsync(file.fileno())
        os.replace(partial, blob)
        return downloaded


class _Part:
    """What is there of a file, `done` bytes, and their digest: SHA-256, or Git's SHA-1 of what LFS does not keep."""

    def __init__(self, file: FileIO, entry: RepoFile, show: Show) -> None:
        self._file, self._entry = file, entry
        if os.fstat(file.fileno()).st_size > entry.size:
            file.truncate(0)
        self._begin()
        while piece := file.read(PIECE):
            self._hash.update(piece)
            self.done += len(piece)
            show(f"{entry.name}: looking at what is there", self.done, entry.size)

    def _begin(self) -> None:
        self.done = 0
        git = hashlib.sha1(b"blob %d\0" % self._entry.size, usedforsecurity=False)
        self._hash = hashlib.sha256() if len(self._entry.digest) == 64 else git

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._begin()

    def add(self, data: bytes) -> None:
        self._hash.update(data)
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        self.done += len(data)

    def digest(self) -> str:
        return self._hash.hexdigest()


def _receive(response: Any, part: _Part, entry: RepoFile) -> Iterator[int]:
    """Write and hash what is sent, no more than is listed; gives how many bytes each piece has. Raises HubError."""
    if part.done and response.status_code != 206:
        part.restart()
    _require_size(response, entry, part.done)
    for piece in response.iter_raw():
        data = piece[: entry.size - part.done]
        if not data:
            return
        part.add(data)
        yield len(data)


@contextmanager
def _alone(entry: RepoFile, partial: str, blob: str, show: Show) -> Iterator[FileIO | None]:
    """The partial file, locked, once no other process downloads it; None if another has brought `blob` meanwhile."""
    os.makedirs(os.path.dirname(partial), exist_ok=True)
    while True:
        with FileIO(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666), "r+") as file:
            if not locked_if_any(file.fileno()):
                show(f"another process downloads {os.path.basename(blob)}", 0, None)
                time.sleep(0.2)
                continue
            if os.path.isfile(blob) and os.path.getsize(blob) == entry.size:
                os.unlink(partial)
                yield None
                return
            if not os.path.exists(partial) or not os.path.samestat(os.stat(partial), os.fstat(file.fileno())):
                continue  # it was finished, or removed, before the lock was ours
            yield file
            return


def _require_size(response: Any, entry: RepoFile, start: int) -> None:
    """Raise HubError where the server sends another file than the hub has listed, or another part of it."""
    total = response.headers.get("Content-Length")
    if response.status_code == 206:
        part, _, total = response.headers.get("Content-Range", "").partition("/")
        if not part.startswith(f"bytes {start}-"):
            raise HubError(f"{entry.name}: the server sends {part or 'no range'}, not bytes {start}-")
    if total is not None and total.isdigit() and int(total) != entry.size:
        raise HubError(f"{entry.name}: the server has {int(total):,} bytes, not the {entry.size:,} that the hub lists")
