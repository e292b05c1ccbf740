"""Importance matrices: how large the activations are that each input channel of a weight meets.

For each channel of a product, the mean of its squared activation over a text, per expert where there are experts. An
encoder that weights its error by it spends a block's codes where they count. The file is llama.cpp's (tools/imatrix): a
GGUF of general.type "imatrix" with two F32 tensors a weight, NAME.in_sum2 [K] or [experts, K] and NAME.counts, and the
keys imatrix.datasets, imatrix.chunk_count and imatrix.chunk_size.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from octavo.errors import FileError, shown
from octavo.formats.spec import F32, AnyArray
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.io.gguf.cursor import Cursor
from octavo.io.gguf.source import Source

I64 = npt.NDArray[np.int64]

SUMS, COUNTS = ".in_sum2", ".counts"
CHUNK_SIZE = 512
"""Tokens of a call: the file does not say, and this is what llama.cpp assumes."""
_ENTRY_BYTES_LEAST = 4 + 1 + 4 + 4 + 4
_NAME_BYTES = 1 << 10
RUN = "imatrix.octavo_run"


@dataclass(frozen=True, eq=False)
class SquareSums:
    """What a weight's activations come to.

    sums    float32 [rows, K]: squared activations of each channel, added up; a row for each expert, or one
    counts  int64 [rows]: activations that were added
    """

    sums: F32
    counts: I64

    def __add__(self, other: SquareSums) -> SquareSums:
        return SquareSums(self.sums + other.sums, self.counts + other.counts)

    def mean(self) -> F32:
        """Mean squares, float32 [rows, K]; 1 for an expert that met no token, as llama.cpp takes it."""
        counts = self.counts[:, None].astype(np.float32)
        return np.where(counts > 0, self.sums / np.maximum(counts, 1), np.float32(1))


def checked(sums: F32, counts: F32, path: str, name: str) -> SquareSums:
    """Sums [K] or [rows, K] and counts [rows] of a file as an entry.

    One count goes for all rows. Raises FileError for numbers that can't be sums of squares over that many activations.
    """
    rows = sums.reshape(-1, sums.shape[-1]) if sums.ndim > 1 else sums.reshape(1, -1)
    if len(counts) not in (1, len(rows)):
        raise _wrong(f"{len(counts)} counts", path, name + COUNTS, f"1 or {len(rows)}, as the sums have rows")
    for end, values in ((SUMS, rows), (COUNTS, counts)):
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            raise _wrong(f"holds {values[bad][0]}", path, name + end, "finite numbers, 0 or more")
    counts = np.broadcast_to(np.rint(counts), len(rows))
    if (rows.any(axis=1) & (counts == 0)).any():
        raise _wrong("a count of 0 for sums that are not 0", path, name + COUNTS, "1 or more")
    return SquareSums(rows, counts.astype(np.int64))


def _wrong(problem: str, path: str, tensor: str, allowed: str) -> FileError:
    return FileError(problem, file=path, field=f"tensor {shown(tensor)}", allowed=allowed)


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


@dataclass(eq=False)
class Imatrix:
    """Squared activations by weight name.

    entries      by the weight's name, as in "blk.0.attn_q.weight"
    datasets     what was read: names of texts
    chunk_count  chunks of the text that were run
    chunk_size   tokens of a chunk, 0 where a file does not say
    run          names the run that makes it, so that one can go on from its file; "" where there is nothing to go on
    path         of the file it was read from
    """

    entries: dict[str, SquareSums] = field(default_factory=dict)
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0
    run: str = ""
    path: str | None = None

    def importance(self, name: str, shape: tuple[int, ...] | None = None) -> F32 | None:
        """Mean squared activation of each input channel of the weight `name`; None where no activation was seen.

        With the weight's `shape`, [N, K] or [E, N, K], it is float32 [K] or [E, K], and a FileError is raised where the
        entry does not fit; without, [K] for an entry of one row, else [rows, K]. An expert that met no token has 1.
        """
        entry = self.entries.get(name)
        if entry is None or not entry.counts.any():
            return None
        mean = entry.mean()
        if shape is None:
            return mean[0] if len(mean) == 1 else mean
        wanted = (*shape[:-2], shape[-1])
        if len(shape) < 2 or mean.size != np.prod(wanted):
            problem = f"{mean.shape[0]} x {mean.shape[1]} importances do not fit a weight {list(shape)}"
            raise FileError(problem, file=self.path, field=f"tensor {shown(name)}", allowed=f"shape {list(wanted)}")
        return mean.reshape(wanted)

    def add(self, name: str, sums: AnyArray, counts: AnyArray | int) -> None:
        """Count squared activations, [K] or [rows, K] summed over `counts` of them, to the weight `name`."""
        new = SquareSums(np.atleast_2d(sums).astype(np.float32), np.atleast_1d(counts).astype(np.int64))
        old = self.entries.get(name)
        if old is not None and old.sums.shape != new.sums.shape:
            problem = f"{list(new.sums.shape)} sums added to {list(old.sums.shape)}"
            raise FileError(problem, file=self.path, field=f"tensor {shown(name)}", allowed="those of one model")
        self.entries[name] = new if old is None else old + new

    def merge(self, other: Imatrix) -> Imatrix:
        """Both texts together. Raises FileError where the two are of different models."""
        merged = Imatrix(
            dict(self.entries), self.datasets + tuple(d for d in other.datasets if d not in self.datasets),
            self.chunk_count + other.chunk_count, max(self.chunk_size, other.chunk_size),
            self.run if self.run == other.run else "",
        )
        for name, entry in other.entries.items():
            merged.add(name, entry.sums, entry.counts)
        return merged

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an importance matrix, also of the form before GGUF (.dat), which has one row for all experts together.

        Raises FileError (GGUFError where the file's structure is at fault) naming the file and the tensor.
        """
        if is_legacy(path):
            entries, datasets, chunks, size = read_legacy(path)
            return cls(entries, datasets, chunks, size, path=os.fsdecode(path))
        with GGUFFile.open(path) as file:
            kind = file.metadata.get_str("general.type", "imatrix")
            if kind != "imatrix":
                raise FileError(f"holds a {kind}", file=path, field="key 'general.type'", allowed="imatrix")
            entries = dict(_entries(file))
            if not entries:
                raise FileError("has no importances", file=path, allowed=f"tensors NAME{SUMS} and NAME{COUNTS}")
            datasets = tuple(file.metadata.get_strs("imatrix.datasets", []))
            chunks, size = (_natural(file, f"imatrix.chunk_{key}") for key in ("count", "size"))
            run = file.metadata.get_str(RUN, "")
        return cls(entries, datasets, chunks, size, run, os.fsdecode(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all; llama.cpp reads it. Raises GGUFError."""
        metadata: Mapping[str, Any] = {
            "general.type": "imatrix", "imatrix.datasets": list(self.datasets) or [""],
            "imatrix.chunk_count": self.chunk_count, "imatrix.chunk_size": self.chunk_size,
            **({RUN: self.run} if self.run else {}),
        }
        tensors: dict[str, AnyArray] = {}
        for name, entry in sorted(self.entries.items()):
            one = len(entry.counts) == 1
            tensors[name + SUMS] = entry.sums[0] if one else entry.sums
            tensors[name + COUNTS] = (entry.counts if one else entry.counts[:, None]).astype(np.float32)
        write_gguf(path, "imatrix", metadata, tensors)


def _natural(file: GGUFFile, key: str) -> int:
    value = file.metadata.get_int(key, 0)
    if value < 0:
        raise file.metadata.fault(key, f"{value}", "0 or more")
    return value


def _entries(file: GGUFFile) -> Iterator[tuple[str, SquareSums]]:
    """The weights of a file and their sums, checked. Tensors of other names are for other programs."""
    names = {name.removesuffix(end) for name in file.tensors for end in (SUMS, COUNTS) if name.endswith(end)}
    for name in sorted(names):
        sums, counts = (_numbers(file, name + end) for end in (SUMS, COUNTS))
        yield name, checked(sums, counts.reshape(-1), file.path, name)


def _numbers(file: GGUFFile, name: str) -> F32:
    """An F32 tensor's values in its shape."""
    if name not in file.tensors:
        raise FileError("is missing", file=file.path, field=f"tensor {shown(name)}")
    info = file.tensors[name]
    if info.type_name != "F32":
        raise FileError(
            f"stored as {info.type_name}", file=file.path, offset=info.offset, field=f"tensor {shown(name)}",
            allowed="F32",
        )
    return file.tensor(name, copy=True).data.view(np.float32).reshape(info.shape)
