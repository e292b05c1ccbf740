"""One file: its header, and everything in it checked before anything is handed out."""

from __future__ import annotations

import os
from dataclasses import dataclass

from octavo.errors import GGUFError
from octavo.io.foreign import HEAD, foreign
from octavo.io.gguf.cursor import Cursor
from octavo.io.gguf.header_limits import (
    ALIGNMENT_RULE,
    DEFAULT_ALIGNMENT,
    MAX_KEYS,
    MAX_TENSORS,
    alignment_is_valid,
)
from octavo.io.gguf.metadata import Metadata, read_metadata
from octavo.io.gguf.source import Source
from octavo.io.gguf.tensors import INFO_BYTES_LEAST, TensorInfo, place, read_infos

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_HEADER_BYTES = 24
_PAIR_BYTES_LEAST = 8 + 1 + 4 + 1


@dataclass(frozen=True)
class Part:
    """A single GGUF file, parsed: a whole model, or one shard of it."""

    source: Source
    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]


def read_part(path: str | os.PathLike[str]) -> Part:
    """Open and check one file. Raises GGUFError."""
    source = Source(path)
    try:
        return _parse(source)
    except BaseException:
        source.close()
        raise


def _parse(source: Source) -> Part:
    cursor = Cursor(source)
    version = _read_version(cursor)
    n_tensors = cursor.count("tensor count", INFO_BYTES_LEAST, MAX_TENSORS)
    n_keys = cursor.count("metadata count", _PAIR_BYTES_LEAST, MAX_KEYS)
    metadata = read_metadata(cursor, n_keys)
    alignment = metadata.get_int("general.alignment", DEFAULT_ALIGNMENT)
    if not alignment_is_valid(alignment):
        raise metadata.fault("general.alignment", f"alignment of {alignment}", ALIGNMENT_RULE)
    infos = read_infos(cursor, n_tensors)
    start = -(-cursor.pos // alignment) * alignment
    return Part(source, version, alignment, metadata, place(source, infos, start, alignment))


def _read_version(cursor: Cursor) -> int:
    """Check magic and version; the cursor is after them."""
    size = cursor.source.size
    magic = cursor.take(min(size, len(MAGIC)), "magic")
    if magic != MAGIC:
        what = foreign(cursor.source.read(0, min(size, HEAD), "magic"))
        if what:
            raise GGUFError(what, file=cursor.source.path)
        found = "an empty file" if not size else f"not a GGUF file: it starts with {magic!r}"
        raise cursor.fail(found, "magic", offset=0, allowed=repr(MAGIC))
    if size < _HEADER_BYTES:
        raise cursor.fail(f"the file ends after {size} bytes", "", offset=size, allowed=f"{_HEADER_BYTES} or more")
    version = cursor.u32("version")
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
    problem = f"unknown version {version}"
    if swapped < 1 << 16 and swapped != version:
        problem = f"a big-endian file (version {swapped})"
    elif version == 1:
        problem = "version 1, which is obsolete"
    raise cursor.fail(problem, "version", offset=4, allowed="little-endian versions 2 and 3")
