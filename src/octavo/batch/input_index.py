"""A batch's file, read once: where each request is, and in which order they are asked. No request stays in memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from io import BufferedReader, IOBase
from itertools import count
from typing import cast

import numpy as np
from numpy.typing import NDArray

from octavo.batch.prefix_order import PREFIXES, prefix_marks, prefix_order
from octavo.batch.request_line import BOM, EMBEDDINGS, BatchRequest, LineError, is_plain, read_line
from octavo.errors import FileError
from octavo.io.regular_file import open_regular

LONGEST = 64 << 20
"""Bytes of a line."""
UTF_16 = b"\xff\xfe", b"\xfe\xff"
WHAT = "a file of requests as IN"
SHOWN_EACH = 1000
"""Lines after which it is told how far the reading is."""

State = tuple[int, ...]
"""What tells a file from another, and from itself after a change."""
Bad = Callable[[int, LineError], None]
"""Called with the number of a line that can't be asked, and why."""


@dataclass
class InputIndex:
    """The requests of a file.

    lines    that are not blank
    embeds   some are requests for embeddings
    numbers  of the lines that are requests, from 1, [n] in their order in the file
    offsets  of these, in bytes, [n]
    order    in which they are asked: indices of both, [n]
    state    the file's, when its reading began
    names    custom_ids that replace line-N where another line has that, by their indices
    """

    file: BufferedReader
    text_url: str
    lines: int
    embeds: bool
    numbers: NDArray[np.uint64]
    offsets: NDArray[np.uint64]
    order: NDArray[np.int64]
    state: State
    names: dict[int, str] = field(default_factory=dict)

    def request(self, index: int) -> BatchRequest:
        """Read a request again. Raises FileError where the file has changed."""
        number, offset = int(self.numbers[index]), int(self.offsets[index])
        self.file.seek(offset)
        data = self.file.readline(LONGEST)
        self.require_unchanged()
        try:
            found = read_line(number, data, self.text_url)
        except LineError:
            raise self._changed() from None
        return replace(found, custom_id=self.names[index]) if index in self.names else found

    def require_unchanged(self) -> None:
        """Raise FileError where the file has changed since it was first looked at."""
        if _state(self.file) != self.state:
            raise self._changed()

    def _changed(self) -> FileError:
        more = "the same command goes on if its lines are as they were; --restart deletes all responses and begins anew"
        return FileError(f"changed during the batch: {more}", file=self.file.name)

    def close(self) -> None:
        self.file.close()


def input_state(path: str) -> State:
    """The state of a file now. Raises FileError for what can't be read as one."""
    with open_regular(path, WHAT) as file:
        return _state(file)


def _state(file: IOBase) -> State:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def index_input(
    path: str, text_url: str, bad: Bad, *, in_file_order: bool = False, state: State | None = None,
    show: Callable[[int, int], None] = lambda done, total: None,
    check: Callable[[BatchRequest], None] = lambda request: None,
) -> InputIndex:
    """Read a file's lines, and put its requests in order. `show` is told the bytes that are read, and all.

    `check` raises LineError for further requests that can't be asked. `bad` is called for lines that are not requests,
    and for those whose custom_id an earlier line has. Takes 130 bytes a line, and 24 once all is read. Raises FileError
    for a file that can't be read, has no line of JSON, or is not in `state` any more.
    """
    file = cast(BufferedReader, BufferedReader(open_regular(path, WHAT), 1 << 20))
    try:
        return _index(file, text_url, bad, show, check, state or _state(file), in_file_order=in_file_order)
    except BaseException:
        file.close()
        raise


def _index(
    file: BufferedReader, text_url: str, bad: Bad, show: Callable[[int, int], None],
    check: Callable[[BatchRequest], None], state: State, *, in_file_order: bool,
) -> InputIndex:
    size, lines, plain, embeds = os.fstat(file.fileno()).st_size, 0, 0, False
    numbers, offsets, ids, marks = array("Q"), array("Q"), array("Q"), array("I")
    for number, offset, data in _lines(file):
        if number % SHOWN_EACH == 0:
            show(offset, size)
        if not data.strip():
            continue
        lines += 1
        try:
            if len(data) > LONGEST:
                raise LineError("line_too_long", f"the line has more than {LONGEST:,} bytes")
            request = read_line(number, data, text_url)
            check(request)
        except LineError as error:
            plain += is_plain(data)
            bad(number, error)
            continue
        embeds |= request.url == EMBEDDINGS
        numbers.append(number)
        offsets.append(offset)
        ids.append(_id_mark(request.custom_id))
        marks.extend((0,) * PREFIXES if in_file_order else prefix_marks(request.leading()))
    if lines and plain == lines:
        allowed = 'requests, or prompts as "What is 3 plus 4?", with their quotation marks, one per line'
        raise FileError("has no line of JSON", file=file.name, allowed=allowed)
    found = InputIndex(
        file, text_url, lines, embeds, np.array(numbers, np.uint64), np.array(offsets, np.uint64),
        np.arange(len(numbers)), state,
    )
    found.require_unchanged()
    found.order = prefix_order(np.frombuffer(marks, np.uint32).reshape(-1, PREFIXES))
    repeated = _repeated(found, np.frombuffer(ids, np.uint64), bad)
    found.order = found.order[~repeated[found.order]]
    return found


def _lines(file: BufferedReader) -> Iterator[tuple[int, int, bytes]]:
    """Each line with its number and its offset; of a line that is too long LONGEST bytes and one more."""
    number = offset = 0
    while data := file.readline(LONGEST + 1):
        number, at, rest = number + 1, offset, data
        offset += len(data)
        while len(rest) > LONGEST and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST + 1)
            offset += len(rest)
        if number == 1 and data.startswith(UTF_16):
            raise FileError("is in UTF-16 (allowed: UTF-8)", file=file.name, offset=0)
        if number == 1 and data.startswith(BOM):
            data, at = data[len(BOM) :], at + len(BOM)
        yield number, at, data


def _id_mark(custom_id: str) -> int:
    return int.from_bytes(blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _repeated(index: InputIndex, marks: NDArray[np.uint64], bad: Bad) -> NDArray[np.bool_]:
    """Which requests have the custom_id of an earlier one. Marks that are alike are looked at again.

    A line that has none of its own makes way for one that has: it takes another name.
    """
    sorted_marks, first, inverse = np.unique(marks, return_index=True, return_inverse=True)
    earlier = first[inverse]
    repeated = np.zeros(len(marks), bool)
    holders = dict[int, int]()
    """Requests that have the names of the first ones, which have others now."""
    for i in np.flatnonzero(earlier != np.arange(len(marks))):
        one, other = holders.get(int(earlier[i]), int(earlier[i])), int(i)
        before, request = index.request(one), index.request(other)
        if before.custom_id != request.custom_id:
            continue
        if not request.named:
            index.names[other] = _free_name(request.number, sorted_marks)
        elif not before.named:
            index.names[one] = _free_name(before.number, sorted_marks)
            holders[int(earlier[i])] = other
        else:
            repeated[i] = True
            message = f"custom_id {request.custom_id!r} is also that of line {before.number}"
            bad(request.number, LineError("repeated_custom_id", message, request.custom_id))
    return repeated


def _free_name(number: int, marks: NDArray[np.uint64]) -> str:
    """A custom_id for a line that no line has; `marks` are sorted, of all custom_ids."""
    for again in count(2):
        name = f"line-{number}-{again}"
        mark = np.uint64(_id_mark(name))
        at = int(np.searchsorted(marks, mark))
        if at == len(marks) or marks[at] != mark:
            return name
    raise AssertionError("there is always another name")
