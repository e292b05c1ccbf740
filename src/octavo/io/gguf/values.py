"""Metadata values: their types, how one is checked and stepped over, and how its bytes become a Python value."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from octavo.io.gguf.cursor import Cursor
from octavo.io.gguf.header_limits import MAX_DEPTH, MAX_VALUE_BYTES


class ValueType(IntEnum):
    """The type of a metadata value, by its number in the file."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


DTYPES: dict[ValueType, np.dtype[Any]] = {
    ValueType.U8: np.dtype("u1"),
    ValueType.I8: np.dtype("i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}

FLOATS = frozenset({ValueType.F32, ValueType.F64})
INTEGERS = frozenset(DTYPES) - FLOATS - {ValueType.BOOL}
_BOOLS_AT_ONCE = 1 << 16

_ALLOWED_TYPES = f"0 ({ValueType.U8.name}) to {max(ValueType).value} ({max(ValueType).name})"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a value lies in its file.

    type     of the value; for an array, `element` is the type of its elements and `count` their number
    offset   of the value's first byte: for a string and an array that is the length, or the element type
    nbytes   from `offset` on
    scalar   the value itself where it is neither a string nor an array
    """

    type: ValueType
    offset: int
    nbytes: int
    element: ValueType | None = None
    count: int = 0
    scalar: int | float | bool | None = None

    def describe(self) -> str:
        """The type in words, as in "U32" or "array of 5 STRING"."""
        return self.type.name if self.element is None else f"array of {self.count} {self.element.name}"


@dataclass(frozen=True)
class TypedValue:
    """A value together with the type that it has, or shall have, in a file. Strings may be given as bytes."""

    type: ValueType
    value: Any
    element: ValueType | None = None


def read_entry(cursor: Cursor) -> Entry:
    """Check the value at the cursor, type number first, and step over it."""
    kind = _read_type(cursor, "value type")
    start = cursor.pos
    if kind is ValueType.ARRAY:
        element, count = _skip_array(cursor, 1)
        entry = Entry(kind, start, cursor.pos - start, element, count)
    elif kind is ValueType.STRING:
        cursor.skip(cursor.count("string length", 1, MAX_VALUE_BYTES), "string")
        entry = Entry(kind, start, cursor.pos - start)
    else:
        dtype = DTYPES[kind]
        raw = cursor.take(dtype.itemsize, "value")
        if kind is ValueType.BOOL:
            _check_bools(cursor, raw, start)
        entry = Entry(kind, start, len(raw), scalar=np.frombuffer(raw, dtype)[0].item())
    if entry.nbytes > MAX_VALUE_BYTES:
        raise cursor.fail(f"{entry.nbytes} bytes", "value", offset=start, allowed=f"at most {MAX_VALUE_BYTES} bytes")
    return entry


def _read_type(cursor: Cursor, part: str) -> ValueType:
    start = cursor.pos
    number = cursor.u32(part)
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.fail(f"unknown type {number}", part, offset=start, allowed=_ALLOWED_TYPES) from None


def _check_bools(cursor: Cursor, raw: bytes, offset: int) -> None:
    """Bools are bytes of 0 or 1; `raw` lies at `offset`."""
    odd = raw.translate(None, b"\0\1")
    if odd:
        raise cursor.fail(f"a bool of {odd[0]}", "value", offset=offset + raw.index(odd[0]), allowed="0 or 1")


def _skip_bools(cursor: Cursor, count: int) -> None:
    """Step over `count` bools, checking each."""
    while count:
        start, n = cursor.pos, min(count, _BOOLS_AT_ONCE)
        _check_bools(cursor, cursor.take(n, "array"), start)
        count -= n


def _skip_array(cursor: Cursor, depth: int) -> tuple[ValueType, int]:
    """Check an array and step over it; its element type and length."""
    start = cursor.pos
    if depth > MAX_DEPTH:
        raise cursor.fail(f"arrays nested more than {MAX_DEPTH} deep", "array", allowed=f"at most {MAX_DEPTH} deep")
    element = _read_type(cursor, "array element type")
    if element is ValueType.STRING:
        count = cursor.count("array length", 8, MAX_VALUE_BYTES)
        cursor.spend("array length", start + 4, strings=count)
        cursor.skip_strings(count, "array element")
    elif element is ValueType.ARRAY:
        count = cursor.count("array length", 12, MAX_VALUE_BYTES)
        cursor.spend("array length", start + 4, inner_arrays=count)
        for _ in range(count):
            _skip_array(cursor, depth + 1)
    else:
        itemsize = DTYPES[element].itemsize
        count = cursor.count("array length", itemsize, MAX_VALUE_BYTES)
        if element is ValueType.BOOL:
            _skip_bools(cursor, count)
        else:
            cursor.skip(count * itemsize, "array")
    return element, count


def decode_string(raw: bytes) -> str:
    """Text of a value; bytes that are not UTF-8 become escapes such as \\xff, which print and encode anywhere."""
    return raw.decode("utf-8", "backslashreplace")


def split_strings(raw: bytes, pos: int, count: int) -> tuple[list[bytes], int]:
    """`count` strings, each after its length, from `pos` on; and where they end. The bytes were checked before."""
    unpack = struct.Struct("<Q").unpack_from
    strings = []
    for _ in range(count):
        start = pos + 8
        pos = start + unpack(raw, pos)[0]
        strings.append(raw[start:pos])
    return strings, pos


def decode_strings(raw: bytes) -> list[str]:
    """An array of strings as text, see `decode_string`; all at once where none is long, empty or odd."""
    (_, count), pos = struct.unpack_from("<IQ", raw), 12
    data = np.frombuffer(raw, np.uint8, offset=pos)
    zero = data == 0
    seven = zero[1:-6] & zero[2:-5] & zero[3:-4] & zero[4:-3] & zero[5:-2] & zero[6:-1] & zero[7:]
    starts = np.flatnonzero(seven)  # a length below 256, if no text has a NUL
    if len(starts) == count and count:
        ends = starts + 8 + data[starts]
        if starts[0] == 0 and (ends[:-1] == starts[1:]).all():
            kept = np.ones(ends[-1], bool)
            kept[starts[:, None] + np.arange(1, 8)] = False
            marked = data[: ends[-1]].copy()
            marked[starts] = 0
            with suppress(UnicodeDecodeError):
                texts = marked[kept].tobytes().decode()[1:].split("\0")
                if len(texts) == count:
                    return texts
    return [decode_string(text) for text in split_strings(raw, pos, count)[0]]


def decode_array(raw: bytes, pos: int = 0) -> tuple[Any, int]:
    """The array at `pos`, element type first, and where it ends.

    Numbers give a NumPy array of the stored type (bools: of bool), strings a list of bytes, arrays a list.
    """
    number, count = struct.unpack_from("<IQ", raw, pos)
    element, pos = ValueType(number), pos + 12
    if element is ValueType.STRING:
        return split_strings(raw, pos, count)
    if element is ValueType.ARRAY:
        items = []
        for _ in range(count):
            item, pos = decode_array(raw, pos)
            items.append(item)
        return items, pos
    dtype = DTYPES[element]
    if element is ValueType.BOOL:
        return np.frombuffer(raw, np.uint8, count, pos) != 0, pos + count
    return np.frombuffer(raw, dtype, count, pos), pos + count * dtype.itemsize
