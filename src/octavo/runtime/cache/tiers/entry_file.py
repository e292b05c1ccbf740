"""The bytes of an entry: a header, its tokens, its data. A saved slot is several of them, one after the other.

    magic "octavoKV" | version u32 | kind u32 | tokens u32 | given back u32 | bytes of data u64 | parent 32 | CRC u32
    tokens i32 ... | data ...

Little-endian. The CRC-32 is of all bytes but its own. It finds what a disk or a crash has damaged; nobody else than the
user whose files these are can write them. `given back` is for windows: pages before the first one that is there.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from typing import IO

import numpy as np

from octavo.errors import FileError
from octavo.formats.spec import U8
from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.tiers.entry import KINDS, Entry

MAGIC, VERSION = b"octavoKV", 1
HEADER = struct.Struct("<8sIIIIQ32s")
CRC = struct.Struct("<I")


@dataclass(frozen=True)
class Found:
    """An entry as it was read: its data, uint8, and the pages that its window had given back."""

    entry: Entry
    data: U8
    given_back: int = 0


def written_bytes(entry: Entry, nbytes: int) -> int:
    """Bytes of an entry with `nbytes` of data."""
    return HEADER.size + CRC.size + 4 * len(entry.tokens) + nbytes


def write_entry(file: IO[bytes], entry: Entry, data: U8, given_back: int = 0) -> None:
    """Append an entry to a file. Raises OSError."""
    kind = KINDS.index(entry.kind)
    head = HEADER.pack(MAGIC, VERSION, kind, len(entry.tokens), given_back, data.nbytes, entry.parent)
    tokens = np.array(entry.tokens, "<i4").tobytes()
    crc = zlib.crc32(data.data, zlib.crc32(tokens, zlib.crc32(head)))
    file.write(head + CRC.pack(crc) + tokens)
    file.write(data.data)


def read_entry(file: IO[bytes], path: str, into: U8 | None = None) -> Found | None:
    """The next entry of an open file; None at its end. Raises FileError for what is none, or damaged, and OSError.

    into  memory for its data, if it has their size
    """
    head = file.read(HEADER.size + CRC.size)
    if not head:
        return None
    entry, nbytes, given_back = _header(head, file, path)
    if nbytes > os.fstat(file.fileno()).st_size - file.tell():
        raise FileError("ends before its data does", file=path)
    data = np.empty(nbytes, np.uint8) if into is None or into.nbytes != nbytes else into
    if file.readinto(data.data) != nbytes:  # type: ignore[attr-defined]
        raise FileError("was cut while it was read", file=path)
    tokens = np.array(entry.tokens, "<i4").tobytes()
    crc = zlib.crc32(data.data, zlib.crc32(tokens, zlib.crc32(head[: HEADER.size])))
    if crc != CRC.unpack_from(head, HEADER.size)[0]:
        raise FileError("its checksum is wrong", file=path)
    return Found(entry, data, given_back)


def read_tokens(file: IO[bytes], path: str) -> tuple[int, ...]:
    """The tokens of an entry, unchecked. Raises FileError, OSError."""
    return _header(file.read(HEADER.size + CRC.size), file, path)[0].tokens


def _header(head: bytes, file: IO[bytes], path: str) -> tuple[Entry, int, int]:
    """The entry that begins with these bytes, of which the data come next; their number, and the pages given back."""
    if len(head) < HEADER.size + CRC.size:
        raise FileError("ends before its header does", file=path)
    magic, version, kind, n, given_back, nbytes, parent = HEADER.unpack_from(head)
    if magic != MAGIC:
        raise FileError("is not a kept prefix", file=path)
    if version != VERSION:
        raise FileError(f"has version {version}", file=path, allowed=str(VERSION))
    raw = file.read(4 * n) if 1 <= n <= PAGE_SIZE else b""
    if kind >= len(KINDS) or len(raw) != 4 * n or not raw:
        raise FileError("its header is damaged", file=path)
    return Entry(parent, tuple(np.frombuffer(raw, "<i4").tolist()), KINDS[kind]), nbytes, given_back
