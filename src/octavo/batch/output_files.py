"""What a batch has done: responses and errors, a line each, and a journal of what they are of.

A line is written whole or, where the process is killed or the disk is full, cut off when the batch goes on: what is
done is what these files have. A response's id is `batch_req_` and its line's number in the input.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Self

import msgspec
from msgspec import Raw

from octavo.batch.request_line import BatchRequest, LineError
from octavo.errors import FileError, UsageError
from octavo.io.atomic import failures_of, reason, require_target, written_file
from octavo.io.locks import locked_if_any
from octavo.io.regular_file import read_text

ID = "batch_req_"
ERRORS, JOURNAL = ".errors.jsonl", ".journal"
"""Ends of names of the files beside the output."""
MOST_JOURNAL = 1 << 20
VERSION = 1
PIECE = 1 << 20

_encode = msgspec.json.Encoder().encode


class _Written(msgspec.Struct):
    id: str


_written = msgspec.json.Decoder(_Written)


def files_of(path: str) -> dict[str, str]:
    """The names of all files that a batch with this output writes, by what they are."""
    stem = path.removesuffix(".jsonl")
    return {"output": path, "errors": stem + ERRORS, "journal": path + JOURNAL}


class LineFile:
    """A file that lines are appended to, by one process at a time."""

    def __init__(self, path: str) -> None:
        """Raises FileError where it can't be written, or another process writes it."""
        require_target(path)
        self.path = path
        with failures_of(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        if not locked_if_any(self._fd):
            os.close(self._fd)
            raise FileError("another batch writes to it", file=path)

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def numbers(self) -> Iterator[int]:
        """The number of each line that is written; a torn last one is cut off. Raises FileError for another file."""
        with open(self._fd, "rb", PIECE, closefd=False) as file:
            file.seek(0)
            end = 0
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    found = _written.decode(line).id
                    number = int(found.removeprefix(ID)) if found.startswith(ID) else 0
                except (msgspec.MsgspecError, ValueError):
                    number = 0
                if number < 1:
                    raise FileError("is not a line of a batch (--restart begins anew)", file=self.path, offset=end)
                end += len(line)
                yield number
        self.cut(end)

    def cut(self, size: int) -> None:
        with failures_of(self.path):
            os.ftruncate(self._fd, size)

    def write(self, line: bytes) -> None:
        """Append a line, all of it or nothing. Raises FileError."""
        left = memoryview(line + b"\n")
        start = self.size
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            with suppress(OSError):  # else the next run cuts it off
                os.ftruncate(self._fd, start)
            more = "; the same command goes on from here once it can be"
            raise FileError(f"can't be written: {reason(error)}{more}", file=self.path) from None

    def close(self) -> None:
        with suppress(OSError):  # of a pipe, and where the disk says no more than it did before
            os.fsync(self._fd)
        os.close(self._fd)


class OutputFiles:
    """Responses in `path`, errors and the journal beside it.

    done    numbers of the input's lines that have a response
    failed  numbers of those with an error
    """

    def __init__(self, path: str, *, restart: bool) -> None:
        """Raises FileError where they can't be written, or have something that is not a batch's."""
        names = files_of(path)
        self.journal = names["journal"]
        require_target(self.journal)
        self.responses = LineFile(names["output"])
        try:
            self.errors = LineFile(names["errors"])
        except BaseException:
            self.responses.close()
            raise
        self.done, self.failed = array("Q"), set[int]()
        self.begun: Any = None
        try:
            self._open(restart=restart)
        except BaseException:
            self.close()
            raise

    def _open(self, *, restart: bool) -> None:
        files = self.responses, self.errors
        if restart:
            with failures_of(self.journal), suppress(FileNotFoundError):
                os.unlink(self.journal)
            for file in files:
                file.cut(0)
            return
        if not os.path.exists(self.journal):
            for file in files:
                if file.size:
                    raise FileError(f"is there, but not its batch's {self.journal} (--restart begins anew)",
                                    file=file.path)
            return
        try:
            self.begun = json.loads(read_text(self.journal, MOST_JOURNAL))
        except ValueError:
            self.begun = None
        if not isinstance(self.begun, dict) or self.begun.get("version") != VERSION:
            raise FileError("is not the journal of a batch (--restart begins anew)", file=self.journal)
        self.done.extend(self.responses.numbers())
        self.failed.update(self.errors.numbers())

    def begin(self, what: Mapping[str, Any]) -> None:
        """Say what the lines are of: a part for each thing that must not change. Raises UsageError where it has.

        Without a response nothing is lost, and the batch begins anew.
        """
        now = json.loads(json.dumps({"version": VERSION, **what}))
        before = self.begun or {}
        changed = next((name for name in {**before, **now} if before.get(name) != now.get(name)), None)
        if changed is None:
            return
        if self.done:
            told = f"{self.responses.path} was begun with another {changed}"
            raise UsageError(f"{told}: go on with that one, or begin anew with --restart")
        self.errors.cut(0)
        self.failed.clear()
        with written_file(self.journal) as temporary, open(temporary, "w", encoding="utf-8") as file:
            json.dump(now, file, indent=1)

    def respond(self, request: BatchRequest, status: int, request_id: str, body: bytes) -> None:
        """Write a response, to the errors where its status is one."""
        told = {"status_code": status, "request_id": request_id, "body": Raw(body)}
        named = {"id": f"{ID}{request.number}", "custom_id": request.custom_id}
        line: dict[str, Any] = {**named, "response": told, "error": None}
        if status >= 400:
            self.errors.write(_encode({**line, "line": request.number}))
        else:
            self.responses.write(_encode(line))

    def refuse(self, number: int, error: LineError) -> None:
        """Write why a line was not asked, once."""
        if number in self.failed:
            return
        self.failed.add(number)
        told = {"code": error.code, "message": error.message}
        line = {"id": f"{ID}{number}", "custom_id": error.custom_id, "response": None, "error": told, "line": number}
        self.errors.write(_encode(line))

    def close(self) -> None:
        self.responses.close()
        self.errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
