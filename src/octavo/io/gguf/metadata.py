"""Metadata: the key-value pairs of a file, with accessors that check the type."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.errors import GGUFError, shown
from octavo.io.gguf.cursor import Cursor
from octavo.io.gguf.header_limits import MAX_KEY_BYTES
from octavo.io.gguf.source import Source
from octavo.io.gguf.values import (
    FLOATS,
    INTEGERS,
    Entry,
    TypedValue,
    ValueType,
    decode_array,
    decode_string,
    decode_strings,
    read_entry,
)

T = TypeVar("T")


class _Required(Enum):
    TOKEN = 0


_REQUIRED: Final = _Required.TOKEN


class Metadata(Mapping[str, Any]):
    """The key-value pairs of a GGUF file in file order.

    `metadata[key]` is an int, float, bool or str; for an array, a NumPy array of the stored type (numbers, bools), a
    list of str, or a list of arrays. Strings and arrays are read from the file each time they are asked for, so the
    file must be open, and a caller that needs a large one twice keeps it. Bytes of a string that are not UTF-8 read as
    escapes such as \\xff; `get_bytes` and `get_bytes_list` give them as they are.

    Accessors such as `get_int` raise GGUFError, with file, offset and key, where the stored type is another one
    and where the key is missing and no default is given. They never convert: an integer is not a float.
    """

    def __init__(self, source: Source, entries: dict[str, Entry]) -> None:
        self._source, self._entries = source, entries

    def __getitem__(self, key: str) -> Any:
        entry = self._entries[key]
        if entry.type is ValueType.STRING:
            return decode_string(self._string(key, entry))
        return self._array(key, entry) if entry.type is ValueType.ARRAY else entry.scalar

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        return f"Metadata({self._source.path!r}, {len(self)} keys)"

    def get_int(self, key: str, default: int | T | _Required = _REQUIRED) -> int | T:
        """The integer, of any width, at `key`."""
        return self._get(key, default, INTEGERS, "an integer")

    def get_float(self, key: str, default: float | T | _Required = _REQUIRED) -> float | T:
        """The floating-point number at `key`."""
        return self._get(key, default, FLOATS, "a float")

    def get_bool(self, key: str, default: bool | T | _Required = _REQUIRED) -> bool | T:
        """The bool at `key`."""
        return self._get(key, default, {ValueType.BOOL}, "a bool")

    def get_str(self, key: str, default: str | T | _Required = _REQUIRED) -> str | T:
        """The text at `key`, with escapes for bytes that are not UTF-8."""
        return self._get(key, default, {ValueType.STRING}, "a string")

    def get_bytes(self, key: str, default: bytes | T | _Required = _REQUIRED) -> bytes | T:
        """The bytes of the string at `key`."""
        return self._get(key, default, {ValueType.STRING}, "a string", raw=True)

    def get_ints(self, key: str, default: T | _Required = _REQUIRED) -> npt.NDArray[Any] | T:
        """The array of integers at `key`, [count], in the stored width."""
        return self._get(key, default, INTEGERS, "an array of integers", array=True)

    def get_floats(self, key: str, default: T | _Required = _REQUIRED) -> npt.NDArray[Any] | T:
        """The array of floating-point numbers at `key`, [count], in the stored width."""
        return self._get(key, default, FLOATS, "an array of floats", array=True)

    def get_bools(self, key: str, default: T | _Required = _REQUIRED) -> npt.NDArray[np.bool_] | T:
        """The array of bools at `key`, [count]."""
        return self._get(key, default, {ValueType.BOOL}, "an array of bools", array=True)

    def get_strs(self, key: str, default: T | _Required = _REQUIRED) -> list[str] | T:
        """The array of strings at `key`, with escapes for bytes that are not UTF-8."""
        return self._get(key, default, {ValueType.STRING}, "an array of strings", array=True)

    def get_bytes_list(self, key: str, default: T | _Required = _REQUIRED) -> list[bytes] | T:
        """The array of strings at `key`, each as its bytes."""
        wanted = "an array of strings"
        return self._get(key, default, {ValueType.STRING}, wanted, array=True, raw=True)

    def describe(self, key: str) -> str:
        """The stored type of `key` in words, as in "U32" or "array of 5 STRING", without reading the value."""
        return self._entries[key].describe()

    def typed(self, key: str) -> TypedValue:
        """The value at `key` with its stored type and its strings as bytes: what `write_gguf` takes to copy it."""
        entry = self._entries[key]
        if entry.type is ValueType.STRING:
            return TypedValue(entry.type, self._string(key, entry))
        if entry.type is ValueType.ARRAY:
            return TypedValue(entry.type, self._array(key, entry, raw=True), entry.element)
        return TypedValue(entry.type, entry.scalar)

    def fault(self, key: str, problem: str, allowed: str | None = None) -> GGUFError:
        """The error to raise for a value that is well-formed but makes no sense, placed at its key."""
        entry = self._entries.get(key)
        offset = None if entry is None else entry.offset
        return GGUFError(problem, file=self._source.path, offset=offset, field=f"key {shown(key)}", allowed=allowed)

    def _get(
        self,
        key: str,
        default: T | _Required,
        kinds: AbstractSet[ValueType],
        wanted: str,
        *,
        array: bool = False,
        raw: bool = False,
    ) -> Any | T:
        entry = self._entries.get(key)
        if entry is None:
            if isinstance(default, _Required):
                raise self.fault(key, "missing from the metadata", wanted)
            return default
        found = entry.element if array else entry.type
        if found not in kinds or array is not (entry.type is ValueType.ARRAY):
            raise self.fault(key, f"stored as {entry.describe()}", wanted)
        if array:
            return self._array(key, entry, raw=raw)
        if entry.type is ValueType.STRING:
            text = self._string(key, entry)
            return text if raw else decode_string(text)
        return entry.scalar

    def _string(self, key: str, entry: Entry) -> bytes:
        return self._source.read(entry.offset + 8, entry.nbytes - 8, f"key {shown(key)}")

    def _array(self, key: str, entry: Entry, *, raw: bool = False) -> Any:
        data = self._source.read(entry.offset, entry.nbytes, f"key {shown(key)}")
        try:
            if entry.element is ValueType.STRING and not raw:
                return decode_strings(data)
            values, _ = decode_array(data)
        except (struct.error, ValueError, OverflowError):  # it was checked when the file was opened
            raise self.fault(key, "the file was changed while it was open") from None
        return values if raw else _with_text(values)


def _with_text(values: Any) -> Any:
    """Strings in an array, at any depth, as text."""
    if isinstance(values, list):
        return [decode_string(v) if isinstance(v, bytes) else _with_text(v) for v in values]
    return values


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """The `count` key-value pairs at the cursor, checked."""
    entries: dict[str, Entry] = {}
    for i in range(count):
        cursor.label, start = f"key {i + 1} of {count}", cursor.pos
        key = cursor.text("name", MAX_KEY_BYTES)
        cursor.label = f"key {shown(key)}"
        if key in entries:
            raise cursor.fail("duplicate key", "name", offset=start, allowed="each key once")
        entries[key] = read_entry(cursor)
    return Metadata(cursor.source, entries)
