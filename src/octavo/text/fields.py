"""Typed access to GGUF metadata for the tokenizer: every fault names the file and the key."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import TokenizerError


class Fields:
    """GGUF keys and plain values (str, int, float, bool, list of str, array of numbers), checked on reading.

    `file` is named in errors; None where the metadata did not come from a file.
    """

    def __init__(self, metadata: Mapping[str, Any], file: str | os.PathLike[str] | None = None) -> None:
        self._metadata = metadata
        self.file = file

    def __contains__(self, key: str) -> bool:
        return key in self._metadata

    def __iter__(self) -> Iterator[str]:
        return iter(self._metadata)

    def taken(self) -> dict[str, Any]:
        """The keys of a tokenizer with their values, but for chat templates."""
        return {key: self._metadata[key] for key in self if key.startswith(("tokenizer.ggml.", "general."))}

    def fault(self, key: str, problem: str, allowed: str | None = None) -> TokenizerError:
        """The error to raise for the value at `key`."""
        return TokenizerError(problem, file=self.file, field=key, allowed=allowed)

    def text(self, key: str) -> str | None:
        """The text at `key`, None where it is absent."""
        value = self._metadata.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong_type(key, value, "text")
        return value

    def integer(self, key: str) -> int | None:
        """The integer at `key`, None where it is absent."""
        value = self._metadata.get(key)
        if value is None:
            return None
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise self._wrong_type(key, value, "an integer")
        return int(value)

    def flag(self, key: str) -> bool | None:
        """The bool at `key`, None where it is absent."""
        value = self._metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, bool | np.bool_):
            raise self._wrong_type(key, value, "a bool")
        return bool(value)

    def texts(self, key: str) -> list[str] | None:
        """The array of texts at `key`, None where it is absent."""
        value = self._metadata.get(key)
        if value is None:
            return None
        if isinstance(value, np.ndarray) and not value.size:
            return []  # an empty array is one of texts, too
        if not isinstance(value, list | tuple) or not set(map(type, value)) <= {str}:
            raise self._wrong_type(key, value, "an array of texts")
        return list(value)

    def integers(self, key: str) -> list[int]:
        """The array of integers at `key`, empty where it is absent."""
        found = self.numbers(key, None, "iu")
        return [] if found is None else [int(i) for i in found.tolist()]

    def numbers(self, key: str, count: int | None, kinds: str) -> npt.NDArray[Any] | None:
        """The array of `count` numbers at `key`, or of any, None where it is absent; `kinds`: NumPy's, as "if"."""
        value = self._metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray | list | tuple):
            raise self._wrong_type(key, value, "an array of numbers")
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError):
            raise self._wrong_type(key, value, "an array of numbers") from None
        if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
            raise self._wrong_type(key, value, "an array of " + ("integers" if "f" not in kinds else "numbers"))
        if count is not None and array.size != count:
            raise self.fault(key, f"has {array.size} values for {count} tokens", "one a token")
        return array

    def octets(self, key: str) -> bytes | None:
        """The array of bytes at `key`, None where it is absent."""
        value = self._metadata.get(key)
        if value is None or isinstance(value, bytes):
            return value
        if not isinstance(value, np.ndarray | list | tuple):
            raise self._wrong_type(key, value, "an array of bytes")
        try:
            array = np.asarray(value, None if isinstance(value, np.ndarray) else np.uint8)
        except (ValueError, OverflowError, TypeError):
            raise self._wrong_type(key, value, "an array of bytes") from None
        if array.ndim != 1 or (array.size and (array.dtype.kind not in "iu" or array.dtype.itemsize != 1)):
            raise self._wrong_type(key, value, "an array of bytes")
        return array.tobytes()

    def _wrong_type(self, key: str, value: object, wanted: str) -> TokenizerError:
        return self.fault(key, f"is {type(value).__name__}", wanted)
