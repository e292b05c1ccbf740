"""One file's download: goes on where an earlier one stopped, and leaves the right bytes or none.

The hub's client gives the address and the token. The bytes are read with the standard library, which takes about half
of the processor's time that the client takes for them, and are hashed in a thread of its own.
"""

from __future__ import annotations

import errno
import hashlib
import os
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from io import FileIO
from itertools import cycle
from typing import Self
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, OpenerDirector, Request, build_opener

from octavo.errors import HubError
from octavo.io.hub.patience import Header, Patience, Show
from octavo.io.hub.variants import RepoFile
from octavo.io.locks import locked_if_any
from octavo.sizes import size

PIECE, DEEP = 1 << 18, 8
"""Bytes that are read at once, and how many such pieces may wait to be hashed."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FullError(Exception):
    """The disk has no room for more; what the system says of it."""


class CutError(Exception):
    """The way to the server failed before the end."""


@dataclass(frozen=True)
class Origin:
    """Where files come from: `url` of a name, headers (the token goes to no other host), and what refusals mean.

    `refused` is told of each answer that is an error, and returns if it is to be asked again.
    """

    url: Callable[[str], str]
    headers: Mapping[str, str]
    context: ssl.SSLContext
    timeout: float
    refused: Callable[[int, Header], None]

    def open(self, name: str, start: int) -> HTTPResponse:
        """The file's bytes from `start` on. Raises HTTPError, and CutError where nothing answers."""
        request = Request(self.url(name), headers={"Accept-Encoding": "identity"})
        for header, value in self.headers.items():
            request.add_unredirected_header(header, value)
        if start:
            request.add_header("Range", f"bytes={start}-")
        try:
            return self._opener().open(request, timeout=self.timeout)  # type: ignore[no-any-return]
        except HTTPError:
            raise
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise HubError(f"{name}: the server's certificate is wrong: {error.reason}") from None
            raise CutError(str(error.reason)) from None
        except (OSError, HTTPException) as error:
            raise CutError(str(error) or type(error).__name__) from None

    def _opener(self) -> OpenerDirector:
        return build_opener(HTTPSHandler(context=self.context))


class Digest:
    """A file's digest, computed beside what else goes on: SHA-256, or Git's SHA-1 of what LFS does not keep."""

    def __init__(self, entry: RepoFile) -> None:
        self._entry = entry
        self._pool = ThreadPoolExecutor(1, "octavo-digest")
        self.restart()

    def restart(self) -> None:
        """Forget all bytes."""
        git = len(self._entry.digest) == 40
        self._hash = hashlib.sha1(usedforsecurity=False) if git else hashlib.sha256()
        if git:
            self._hash.update(b"blob %d\0" % self._entry.size)

    def add(self, data: memoryview) -> Future[None]:
        """Hash `data` after all that was added before; they stay as they are until then."""
        return self._pool.submit(self._hash.update, data)

    def is_right(self) -> bool:
        """Whether all bytes together have the digest that they should have."""
        self._pool.submit(int).result()
        return self._hash.hexdigest() == self._entry.digest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown()


def fetch(source: Origin, entry: RepoFile, blob: str, partial: str, patience: Patience, show: Show) -> int:
    """Bring a file to `blob`, by way of `partial`, which keeps what is there when it is interrupted.

    `show` is told of the bytes that are there. Returns how many were downloaded. Raises HubError, for wrong bytes after
    `partial` was removed.
    """
    with _alone(entry, partial, blob, show) as file, Digest(entry) as digest:
        if file is None:
            return 0
        done = begun = _again(file, digest, entry, show)
        while done < entry.size:
            try:
                with source.open(entry.name, done) as response:
                    if done and response.status != 206:
                        done = begun = _restart(file, digest)
                    _require_size(response, entry, done)
                    for received in _receive(response, file, digest, entry.size - done):
                        done += received
                        patience.refresh()
                        show(entry.name, done, entry.size)
                problem = "the connection was cut"
            except FullError as error:
                problem = f"{entry.name} can't be written to {os.path.dirname(blob)}: {error}"
                raise HubError(f"{problem}; with room there, the same command goes on") from None
            except HTTPError as error:
                if error.code == 416:
                    done = begun = _restart(file, digest)
                error.close()
                source.refused(503 if error.code == 416 else error.code, error.headers.get)
                continue
            except CutError as error:
                problem = f"the connection was cut ({error})"
            if done < entry.size:
                patience.wait(f"{entry.name}: {problem} after {size(done)}")
        if not digest.is_right():
            os.unlink(partial)
            raise HubError(f"{entry.name} was downloaded with wrong bytes, and removed (allowed: {_named(entry)})")
        os.fsync(file.fileno())
        os.replace(partial, blob)
        return done - begun


def _named(entry: RepoFile) -> str:
    return f"{'SHA-256' if len(entry.digest) == 64 else 'Git blob'} {entry.digest}"


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


def _again(file: FileIO, digest: Digest, entry: RepoFile, show: Show) -> int:
    """Hash what an earlier download left, and stand at its end."""
    if os.fstat(file.fileno()).st_size > entry.size:
        return _restart(file, digest)
    done, view = 0, memoryview(bytearray(PIECE))
    while n := file.readinto(view):
        digest.add(view[:n]).result()
        done += n
        show(f"{entry.name}: looking at what is there", done, entry.size)
    return done


def _restart(file: FileIO, digest: Digest) -> int:
    file.seek(0)
    file.truncate()
    digest.restart()
    return 0


def _require_size(response: HTTPResponse, entry: RepoFile, start: int) -> None:
    """Raise HubError where the server sends another file than the hub has listed, or another part of it."""
    total = response.headers.get("Content-Length")
    if response.status == 206:
        part, _, total = (response.headers.get("Content-Range") or "").partition("/")
        if not part.startswith(f"bytes {start}-"):
            raise HubError(f"{entry.name}: the server sends {part or 'no range'} (allowed: bytes {start}-)")
    if total is not None and total.isdigit() and int(total) != entry.size:
        raise HubError(f"{entry.name}: the server has {int(total):,} bytes (allowed: {entry.size:,}, as is listed)")


def _receive(response: HTTPResponse, file: FileIO, digest: Digest, most: int) -> Iterator[int]:
    """Write and hash what is sent, at most so many bytes; gives how many each piece has. Raises CutError."""
    hashed: deque[Future[None]] = deque()
    for view in cycle([memoryview(bytearray(PIECE)) for _ in range(DEEP)]):
        if len(hashed) == DEEP:
            hashed.popleft().result()  # this piece's last bytes are hashed before it is filled again
        try:
            n = response.readinto(view[: min(PIECE, most)]) if most else 0
        except (OSError, HTTPException) as error:
            raise CutError(str(error) or type(error).__name__) from None
        if not n:
            return
        _write(file, view[:n])
        hashed.append(digest.add(view[:n]))
        most -= n
        yield n


def _write(file: FileIO, data: memoryview) -> None:
    try:
        while data:
            data = data[file.write(data) :]
    except OSError as error:
        if error.errno in _FULL:
            raise FullError(error.strerror) from None
        raise
