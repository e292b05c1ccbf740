"""Metadata that lies in no GGUF file: values worked out from other files, read through the same accessors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import GGUFError, shown
from octavo.io.gguf.metadata import Metadata
from octavo.io.gguf.pairs import typed_pair
from octavo.io.gguf.values import DTYPES, Entry, TypedValue, ValueType, decode_string


class PlainMetadata(Metadata):
    """Key-value pairs in memory, each of the type that `write_gguf` would give it; `path` is named in errors."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self._path = path
        self._pairs = {key: self._typed(key, value) for key, value in values.items()}
        self._entries = {key: _entry(pair) for key, pair in self._pairs.items()}

    def _typed(self, key: str, value: Any) -> TypedValue:
        try:
            return typed_pair(key, value)
        except GGUFError as error:  # the error names the key
            raise GGUFError(error.problem, file=self._path, field=error.field, allowed=error.allowed) from None

    def __repr__(self) -> str:
        return f"PlainMetadata({self._path!r}, {len(self)} keys)"

    def fault(self, key: str, problem: str, allowed: str | None = None) -> GGUFError:
        return GGUFError(problem, file=self._path, field=f"key {shown(key)}", allowed=allowed)

    def _string(self, key: str, entry: Entry) -> bytes:
        text: bytes = self._pairs[key].value
        return text

    def _array(self, key: str, entry: Entry, *, raw: bool = False) -> Any:
        values = self._pairs[key].value
        assert entry.element is not None
        if entry.element is ValueType.STRING:
            return list(values) if raw else [decode_string(value) for value in values]
        return np.array(values, DTYPES[entry.element])


def _entry(pair: TypedValue) -> Entry:
    scalar = None if pair.type in (ValueType.STRING, ValueType.ARRAY) else pair.value
    if pair.type is ValueType.F32:
        scalar = float(np.float32(pair.value))  # as a file would give it back
    count = len(pair.value) if pair.type is ValueType.ARRAY else 0
    return Entry(pair.type, 0, 0, pair.element, count, scalar)
