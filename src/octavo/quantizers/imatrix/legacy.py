"""Reads importance matrices of the form that llama.cpp wrote before GGUF (imatrix.dat).

Little-endian: the number of entries; for each the length of its name, the name, calls, the number of values, and the
values, float32, each a mean square times the calls. Then, in later files, the chunks and the name of the text.
"""

from __future__ import annotations

import os
import struct

import numpy as np

from octavo.errors import shown
from octavo.io.gguf.cursor import Cursor
from octavo.io.gguf.source import Source
from octavo.quantizers.imatrix.sums import SquareSums, checked

CHUNK_SIZE = 512
"""Tokens of a call: the file does not say, and this is what llama.cpp assumes."""

_ENTRY_BYTES_LEAST = 4 + 1 + 4 + 4 + 4
_NAME_BYTES = 1 << 10


def is_legacy(path: str | os.PathLike[str]) -> bool:
    """Whether a file may be of this form: it begins with a number of entries that it has room for.

    GGUF's magic read as such a number is 1.2 billion.
    """
    source = Source(path)
    try:
        start = source.read(0, min(4, source.size), "header")
    finally:
        source.close()
    return len(start) == 4 and 0 < struct.unpack("<I", start)[0] <= source.size // _ENTRY_BYTES_LEAST


def read_legacy(path: str | os.PathLike[str]) -> tuple[dict[str, SquareSums], tuple[str, ...], int, int]:
    """Entries of one row each (experts lie in it one after the other), names of texts, chunks and tokens of a chunk.

    Raises FileError naming the byte and the field.
    """
    source = Source(path)
    try:
        cursor = Cursor(source)
        entries: dict[str, SquareSums] = {}
        count = cursor.u32("entry count")
        for i in range(count):
            cursor.label = f"entry {i + 1} of {count}"
            name, entry = _read_entry(cursor)
            if name in entries:
                raise cursor.fail("duplicate entry", shown(name), allowed="each name once")
            entries[name] = entry
        cursor.label = "end"
        chunks = _bounded(cursor, "chunk count", 1 << 31) if cursor.left else 0
        dataset = cursor.take(_bounded(cursor, "text name length", 1 << 16), "text name") if cursor.left else b""
    finally:
        source.close()
    return entries, (dataset.decode("utf-8", "backslashreplace"),) if dataset else (), chunks, CHUNK_SIZE


def _read_entry(cursor: Cursor) -> tuple[str, SquareSums]:
    raw = cursor.take(_bounded(cursor, "name length", _NAME_BYTES, 1), "name")
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise cursor.fail(f"not UTF-8: {raw[:40]!r}", "name", allowed="UTF-8") from None
    calls = _bounded(cursor, "calls", 1 << 31, 1)
    size = _bounded(cursor, "value count", 1 << 31, 1)
    values = np.frombuffer(cursor.take(4 * size, "values"), "<f4")
    entry = checked(values, np.array([calls], np.float32), cursor.source.path, name)
    return name, SquareSums(entry.sums * np.float32(CHUNK_SIZE), entry.counts * CHUNK_SIZE)


def _bounded(cursor: Cursor, part: str, most: int, least: int = 0) -> int:
    start = cursor.pos
    value = cursor.u32(part)
    if not least <= value <= most:
        raise cursor.fail(f"{value}", part, offset=start, allowed=f"{least} to {most}")
    return value
