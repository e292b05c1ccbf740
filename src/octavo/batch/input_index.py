"""A batch's file, read once: where each request is, and in which order they are asked. No request stays in memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedReader
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from octavo.batch.prefix_order import PREFIXES, prefix_marks, prefix_order
from octavo.batch.request_line import EMBEDDINGS, BatchRequest, LineError, read_line
from octavo.errors import FileError
from octavo.io.regular_file import open_regular

LONGEST = 64 << 20
"""Bytes of a line."""
BOM = b"\xef\xbb\xbf"
SHOWN_EACH = 1000
"""Lines after which it is told how far the reading is."""

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
    """

    file: BinaryIO
    text_url: str
    lines: int
    embeds: bool
    numbers: NDArray[np.uint64]
    offsets: NDArray[np.uint64]
    order: NDArray[np.int64]

    def request(self, index: int) -> BatchRequest:
        """Read a request again. Raises FileError where the file has changed."""
        number, offset = int(self.numbers[index]), int(self.offsets[index])
        self.file.seek(offset)
        try:
            return read_line(number, self.file.readline(LONGEST), self.text_url)
        except LineError as error:
            raise FileError(f"changed while it was read: line {number}: {error}", file=self.file.name) from None

    def close(self) -> None:
        self.file.close()


def index_input(
    path: str, text_url: str, bad: Bad, *, in_file_order: bool = False,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> InputIndex:
    """Read a file's lines, and put its requests in order. `show` is told the bytes that are read, and all.

    `bad` is called for lines that are not requests, and for those whose custom_id an earlier line has. Takes 130 bytes
    a line, and 24 once all is read. Raises FileError for a file that can't be read.
    """
    file = cast(BinaryIO, BufferedReader(open_regular(path, "a file of lines in JSON"), 1 << 20))
    try:
        return _index(file, text_url, bad, show, in_file_order=in_file_order)
    except BaseException:
        file.close()
        raise


def _index(
    file: BinaryIO, text_url: str, bad: Bad, show: Callable[[int, int], None], *, in_file_order: bool
) -> InputIndex:
    size, lines, embeds = os.fstat(file.fileno()).st_size, 0, False
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
        except LineError as error:
            bad(number, error)
            continue
        embeds |= request.url == EMBEDDINGS
        numbers.append(number)
        offsets.append(offset)
        ids.append(_id_mark(request.custom_id))
        marks.extend((0,) * PREFIXES if in_file_order else prefix_marks(request.leading()))
    found = InputIndex(
        file, text_url, lines, embeds, np.array(numbers, np.uint64), np.array(offsets, np.uint64),
        np.arange(len(numbers)),
    )
    found.order = prefix_order(np.frombuffer(marks, np.uint32).reshape(-1, PREFIXES))
    repeated = _repeated(found, np.frombuffer(ids, np.uint64), bad)
    found.order = found.order[~repeated[found.order]]
    return found


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Each line with its number and its offset; of a line that is too long LONGEST bytes and one more."""
    number = offset = 0
    while data := file.readline(LONGEST + 1):
        number, at, rest = number + 1, offset, data
        offset += len(data)
        while len(rest) > LONGEST and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST + 1)
            offset += len(rest)
        if number == 1 and data.startswith(BOM):
            data, at = data[len(BOM) :], at + len(BOM)
        yield number, at, data


def _id_mark(custom_id: str) -> int:
    return int.from_bytes(blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _repeated(index: InputIndex, marks: NDArray[np.uint64], bad: Bad) -> NDArray[np.bool_]:
    """Which requests have the custom_id of an earlier one. Marks that are alike are looked at again."""
    _, first, inverse = np.unique(marks, return_index=True, return_inverse=True)
    earlier = first[inverse]
    repeated = np.zeros(len(marks), bool)
    for i in np.flatnonzero(earlier != np.arange(len(marks))):
        before, request = index.request(int(earlier[i])), index.request(int(i))
        if before.custom_id == request.custom_id:
            repeated[i] = True
            message = f"custom_id {request.custom_id!r} is that of line {before.number}, too"
            bad(request.number, LineError("repeated_custom_id", message, request.custom_id))
    return repeated
