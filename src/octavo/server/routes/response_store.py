"""Responses of /v1/responses that are kept, by their ids: in memory, or in a file that is there after a restart."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from octavo.errors import FileError
from octavo.io.atomic import failures_of
from octavo.io.locks import locked_if_any
from octavo.server.http.sse import to_json

log = logging.getLogger("octavo")
NAME, LOCK = "responses.sqlite", "lock"
KEPT_S = 30 * 24 * 3600
"""Seconds for which responses are kept, as OpenAI does."""
MOST, MOST_BYTES, MOST_MEMORY = 10_000, 1 << 30, 256 << 20
"""Responses that are kept, of all keys, and their bytes in a file and in memory; the oldest make room."""
SCHEMA = """create table if not exists responses (id text primary key, owner text not null, created real not null,
 running integer not null, response blob not null, items blob not null);
create index if not exists by_age on responses (created)"""


@dataclass(frozen=True)
class Kept:
    """A response and what it was a reply to, a list of items, both in JSON."""

    response: bytes
    items: bytes


class ResponseStore:
    """Keeps responses for the keys that they were made with.

    folder  of the file, which is made, and is one server's at a time; None for memory

    A file that is damaged is put aside, with a line. Raises FileError for one that can't be opened.
    """

    def __init__(self, folder: str | None = None, *, most: int = MOST, most_bytes: int | None = None) -> None:
        self.path = None if folder is None else os.path.join(folder, NAME)
        self._most, self._lock, self._own = most, Lock(), -1
        self._most_bytes = most_bytes or (MOST_MEMORY if folder is None else MOST_BYTES)
        if folder is not None:
            self._own = _taken(folder)
        try:
            self._open()
        except BaseException:
            self._release()
            raise

    def _open(self) -> None:
        try:
            self._base = self._opened()
        except sqlite3.DatabaseError as error:
            if self.path is None or isinstance(error, sqlite3.OperationalError):
                raise FileError(f"can't be opened: {error}", file=self.path) from None
            aside = f"{self.path}.damaged-{int(time.time())}"
            log.warning("%s is damaged (%s): it is now %s, and earlier responses are lost", self.path, error, aside)
            os.replace(self.path, aside)
            self._base = self._opened()
        for one, owner, response, items in self._base.execute(
            "select id, owner, response, items from responses where running"
        ).fetchall():
            self.put(one, owner, Kept(unfinished(json.loads(response)), items))

    def _opened(self) -> sqlite3.Connection:
        if self.path is not None:
            with failures_of(self.path):  # its journal gets the file's mode
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            with suppress(OSError):  # a file system without modes
                os.chmod(self.path, 0o600)
        base = sqlite3.connect(self.path or ":memory:", isolation_level=None, check_same_thread=False)
        try:
            base.execute("pragma synchronous = normal")
            base.executescript(SCHEMA)
            (said,) = base.execute("pragma quick_check").fetchone()
            if said != "ok":
                raise sqlite3.DatabaseError(said)
            self._n, self._bytes = base.execute(
                "select count(*), coalesce(sum(length(response) + length(items)), 0) from responses"
            ).fetchone()
        except BaseException:
            base.close()
            raise
        return base

    def put(self, one: str, owner: str, kept: Kept, *, running: bool = False) -> None:
        """Keep a response, in place of one of this id; the oldest make room. A full disk is told in the log.

        `running`: it is not complete, and comes to nothing where the server ends.
        """
        with self._lock:
            try:
                self._put(one, owner, kept, running=running)
            except sqlite3.Error as error:
                log.error("response %s is not kept: %s", one, error)

    def _put(self, one: str, owner: str, kept: Kept, *, running: bool) -> None:
        size, now = len(kept.response) + len(kept.items), time.time()
        self._remove("id = ?", one)
        self._remove("created < ?", now - KEPT_S)
        if size > self._most_bytes:
            log.warning("response %s is not kept: it has %d bytes, of %d for all", one, size, self._most_bytes)
            return
        while self._n >= self._most or self._bytes + size > self._most_bytes:
            self._remove("id = (select id from responses order by created, rowid limit 1)")
        self._base.execute("insert into responses values (?, ?, ?, ?, ?, ?)",
                           (one, owner, now, running, kept.response, kept.items))
        self._n, self._bytes = self._n + 1, self._bytes + size

    def _remove(self, which: str, *values: Any) -> int:
        found = self._base.execute(
            f"delete from responses where {which} returning length(response) + length(items)", values
        ).fetchall()
        self._n, self._bytes = self._n - len(found), self._bytes - sum(size for (size,) in found)
        return len(found)

    def get(self, one: str, owner: str) -> Kept | None:
        """A response of a key, by its id; None where there is none, or it is too old."""
        with self._lock:
            found = self._base.execute(
                "select response, items from responses where id = ? and owner = ? and created >= ?",
                (one, owner, time.time() - KEPT_S),
            ).fetchone()
        return None if found is None else Kept(*found)

    def delete(self, one: str, owner: str) -> bool:
        """Forget a response of a key: whether there was one."""
        with self._lock:
            return self._remove("id = ? and owner = ?", one, owner) > 0

    def close(self) -> None:
        with self._lock:
            self._base.close()
            self._release()

    def _release(self) -> None:
        if self._own >= 0:
            os.close(self._own)
            self._own = -1


def _taken(folder: str) -> int:
    """The descriptor that holds a folder for this process. Raises FileError where another one has it."""
    with failures_of(folder):
        os.makedirs(folder, 0o700, exist_ok=True)
        found = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    if not locked_if_any(found):
        os.close(found)
        raise FileError("another server keeps its data there (allowed: a folder for each)", file=folder)
    return found


def failed(response: dict[str, Any], code: str, message: str) -> bytes:
    """A response that came to nothing, in JSON."""
    return to_json({**response, "status": "failed", "error": {"code": code, "message": message}})


def unfinished(response: dict[str, Any]) -> bytes:
    """One that was being computed when its server ended."""
    return failed(response, "server_error", "the server ended before the response was complete")
