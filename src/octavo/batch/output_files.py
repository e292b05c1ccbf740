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
from itertools import islice
from typing import Any, Self

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

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
MARKS = ("version", "input", "model")
"""Parts of a journal that say nothing to who reads them."""
SHOWN = 60
"""Characters of a value in an error."""
PIECE = 1 << 20
MOST_LINES = 1 << 63

_encode = msgspec.json.Encoder().encode


class _Written(msgspec.Struct):
    id: str


BEGIN = f'{{"id":"{ID}'.encode()
"""What each line begins with."""
_written = msgspec.json.Decoder(_Written)


def files_of(path: str) -> dict[str, str]:
    """The names of all files that a batch with this output writes, by what they are."""
    stem = path.removesuffix(".jsonl")
    return {"output": path, "errors": stem + ERRORS, "journal": path + JOURNAL}


class LineFile:
    """A file that lines are appended to, by one process at a time."""

    def __init__(self, path: str, mode: int = 0o666) -> None:
        """Raises FileError where it can't be written, or another process writes it."""
        require_target(path)
        self.path, new = path, not os.path.exists(path)
        with failures_of(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
        if not locked_if_any(self._fd) or not _is_at(self._fd, path):
            os.close(self._fd)
            raise FileError("another batch writes to it", file=path)
        self.made = new and not self.size

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def of_batch(self) -> bool:
        """Whether it begins as a batch's does."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        return os.read(self._fd, len(BEGIN)) == BEGIN

    def fault(self, index: int, problem: str) -> FileError:
        """The error of its line `index`, counted from 0."""
        with open(self._fd, "rb", PIECE, closefd=False) as file:
            file.seek(0)
            return FileError(f"{problem} (--restart begins anew)", file=self.path,
                             offset=sum(map(len, islice(file, index))))

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
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    number = 0
                if not 0 < number < MOST_LINES:
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

    def remove_empty(self) -> None:
        with suppress(OSError):
            if not self.size:
                os.unlink(os.path.realpath(self.path))

    def close(self) -> None:
        with suppress(OSError):  # of a pipe, and where the disk says no more than it did before
            os.fsync(self._fd)
        os.close(self._fd)


def _is_at(fd: int, path: str) -> bool:
    """Whether an open file is still there: another batch may have removed it."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


class OutputFiles:
    """Responses in `path`, errors and the journal beside it.

    done    numbers of the input's lines that have a response
    failed  numbers of those with an error
    """

    def __init__(self, path: str, *, restart: bool, mode: int = 0o666) -> None:
        """`mode` has permissions of new ones, see `replace_file`.

        Raises FileError where they can't be written, or have something that is not a batch's.
        """
        names = files_of(path)
        self.journal, self._mode = names["journal"], mode
        for name in (path, self.journal):
            require_target(name)
        self.responses = LineFile(names["output"], mode)
        try:
            self.errors = LineFile(names["errors"], mode)
        except BaseException:
            if self.responses.made:
                self.responses.remove_empty()
            self.responses.close()
            raise
        self.done, self.failed = array("Q"), set[int]()
        self._answered = self._made_journal = False
        self.begun: Any = None
        try:
            self._open(restart=restart)
        except BaseException:
            self._remove_made()
            self._close()
            raise

    def _open(self, *, restart: bool) -> None:
        files = self.responses, self.errors
        self.begun = self._journal()
        there = os.path.lexists(self.journal)
        if self.begun is None:
            foreign = next((file.path for file in files if file.size and not file.of_batch()), None)
            if foreign is None and there and not any(file.size for file in files):
                foreign = self.journal
            if foreign is not None:
                raise FileError("was not written by octavo batch; take another name for OUT", file=foreign)
        if restart:
            self.begun = None
            with failures_of(self.journal), suppress(FileNotFoundError):
                os.unlink(self.journal)
            for file in files:
                file.cut(0)
            return
        if not there:
            for file in files:
                if file.size:
                    raise FileError(f"is there, but not its batch's {self.journal} (--restart begins anew)",
                                    file=file.path)
            return
        if self.begun is None:
            raise FileError("is not the journal of a batch (--restart begins anew)", file=self.journal)
        self.done.extend(self.responses.numbers())
        self.failed.update(self.errors.numbers())
        self._answered = bool(self.done or self.failed)

    def _journal(self) -> dict[str, Any] | None:
        """What the journal says, if it is one."""
        try:
            found = json.loads(read_text(self.journal, MOST_JOURNAL))
        except (FileError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and found.get("version") == VERSION else None

    def require_of(self, numbers: NDArray[np.uint64]) -> None:
        """Raise FileError for a response that is there twice, or of none of these lines."""
        done = np.frombuffer(self.done, np.uint64)
        once = np.zeros(len(done), bool)
        once[np.unique(done, return_index=True)[1]] = True
        for i in np.flatnonzero(~(once & np.isin(done, numbers))):
            told = "is of no request of the input" if once[i] else "is there for the second time"
            raise self.responses.fault(int(i), f"the response to line {done[i]} {told}")

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
            old, new = before.get(changed), now.get(changed)
            if isinstance(old, dict) and isinstance(new, dict):  # settings by name: the first that differs
                one = next(name for name in {**old, **new} if old.get(name) != new.get(name))
                old, new, told = old.get(one), new.get(one), one
            else:
                told = changed
            told = f"{self.responses.path} was begun with another {told}"
            if changed not in MARKS:
                told += f" ({_value(old)}, and now it is {_value(new)})"
            raise UsageError(f"{told}: go on with that one, or take another name for OUT; --restart begins anew, and "
                             f"deletes what was answered ({len(self.done):,})")
        self.errors.cut(0)
        self.failed.clear()
        with written_file(self.journal, mode=self._mode) as made, open(made, "w", encoding="utf-8") as file:
            json.dump(now, file, indent=1)
        self._made_journal = self.begun is None

    def respond(self, request: BatchRequest, status: int, request_id: str, body: bytes) -> None:
        """Write a response, to the errors where its status is one."""
        self._answered = True
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
        self.errors.remove_empty()
        self._close()

    def _close(self) -> None:
        self.errors.close()
        self.responses.close()  # last: who has its lock may use the others

    def _remove_made(self) -> None:
        """Leave no file that was not there before, of a batch that has answered nothing."""
        if self._made_journal:
            with suppress(OSError):
                os.unlink(self.journal)
        for file in (self.errors, self.responses):
            if file.made:
                file.cut(0)
                file.remove_empty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None and not self._answered:
            self._remove_made()
        self.close()


def _value(value: Any) -> str:
    """A value of the journal, in a few words."""
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
