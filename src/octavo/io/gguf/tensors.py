"""Tensor infos: the table that says what each tensor is and where its bytes lie, and the checks that it makes sense."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from octavo.errors import GGUFError, shown
from octavo.formats import rare
from octavo.io.foreign import AGAIN
from octavo.io.gguf.cursor import Cursor
from octavo.io.gguf.header_limits import MAX_DIMS, MAX_NAME_BYTES, MAX_TENSOR_BYTES
from octavo.io.gguf.source import Source

INFO_BYTES_LEAST = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as its file declares it.

    shape    NumPy order: the file's dimensions reversed, the last one contiguous
    gguf_id  number of the tensor type
    offset   of the first byte, from the start of the file
    nbytes   of the packed data
    file     path of the file, or of the shard in a split set
    """

    name: str
    shape: tuple[int, ...]
    gguf_id: int
    offset: int
    nbytes: int
    file: str

    @property
    def type_name(self) -> str:
        """Name of the tensor type, as in "Q4_K"."""
        return rare.type_name(self.gguf_id) or str(self.gguf_id)

    @property
    def size(self) -> int:
        """Values in the tensor."""
        return prod(self.shape)


class RawInfo(NamedTuple):
    """A tensor info before the start of the data is known: `offset` counts from there, and lies at byte `at`."""

    name: str
    shape: tuple[int, ...]
    gguf_id: int
    offset: int
    nbytes: int
    at: int


@lru_cache(maxsize=64)
def _layout(gguf_id: int) -> tuple[int, int] | None:
    return rare.block_layout(gguf_id)


def read_infos(cursor: Cursor, count: int) -> dict[str, RawInfo]:
    """The `count` tensor infos at the cursor, each checked by itself."""
    infos: dict[str, RawInfo] = {}
    for i in range(count):
        cursor.label, start = f"tensor {i + 1} of {count}", cursor.pos
        name = cursor.text("name", MAX_NAME_BYTES)
        cursor.label = f"tensor {shown(name)}"
        if name in infos:
            raise cursor.fail("duplicate tensor", "name", offset=start, allowed="each name once")
        infos[name] = _read_info(cursor, name)
    return infos


def _read_info(cursor: Cursor, name: str) -> RawInfo:
    start = cursor.pos
    n_dims = cursor.u32("dimension count")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.fail(f"{n_dims} dimensions", "dimension count", offset=start, allowed=f"1 to {MAX_DIMS}")
    start = cursor.pos
    dims = [cursor.u64("dimensions") for _ in range(n_dims)]
    if 0 in dims:
        raise cursor.fail(f"a size of 0 in {dims}", "dimensions", offset=start, allowed="1 or more")
    if prod(dims) > MAX_TENSOR_BYTES:
        problem = f"sizes {dims}, whose product overflows 63 bits"
        raise cursor.fail(problem, "dimensions", offset=start, allowed=f"at most {MAX_TENSOR_BYTES} values")
    type_at = cursor.pos
    gguf_id = cursor.u32("type")
    layout = _layout(gguf_id)
    if layout is None:
        raise cursor.fail(
            f"unknown tensor type {gguf_id}", "type", offset=type_at, allowed="a type listed in docs/formats.md"
        )
    block, block_bytes = layout
    if dims[0] % block:
        problem = f"a row of {dims[0]} values is not a multiple of {rare.type_name(gguf_id)} blocks"
        raise cursor.fail(problem, "dimensions", offset=start, allowed=f"multiples of {block}")
    nbytes = prod(dims) // block * block_bytes
    at = cursor.pos
    return RawInfo(name, tuple(reversed(dims)), gguf_id, cursor.u64("offset"), nbytes, at)


def place(source: Source, infos: dict[str, RawInfo], start: int, alignment: int) -> dict[str, TensorInfo]:
    """The tensors by name with absolute offsets, the data starting at byte `start`.

    Raises GGUFError where one is misaligned, reaches past the end of the file, or overlaps another.
    """
    placed: dict[str, TensorInfo] = {}
    for raw in infos.values():
        if raw.offset % alignment:
            raise _misplaced(source, raw, f"misaligned at {raw.offset}", f"multiples of {alignment}")
        if start + raw.offset + raw.nbytes > source.size:
            whole = start + max(r.offset + r.nbytes for r in infos.values())
            problem = f"the file is incomplete: {source.size:,} of {whole:,} bytes; {AGAIN}"
            raise _misplaced(source, raw, problem)
        placed[raw.name] = TensorInfo(raw.name, raw.shape, raw.gguf_id, start + raw.offset, raw.nbytes, source.path)
    end, before = 0, ""
    for raw in sorted(infos.values(), key=lambda r: r.offset):
        if raw.offset < end:
            problem = f"starts at {raw.offset} of the data and overlaps tensor {shown(before)}, which ends at {end}"
            raise _misplaced(source, raw, problem, "tensors apart from each other")
        end, before = raw.offset + raw.nbytes, raw.name
    return placed


def _misplaced(source: Source, raw: RawInfo, problem: str, allowed: str | None = None) -> GGUFError:
    return GGUFError(
        problem, file=source.path, offset=raw.at, field=f"tensor {shown(raw.name)} offset", allowed=allowed
    )
