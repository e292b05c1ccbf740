"""Reads a file's header forward, every step checked against the bytes that are left."""

from __future__ import annotations

import struct

from octavo.errors import GGUFError
from octavo.io.gguf.header_limits import MAX_INNER_ARRAYS, MAX_STRINGS
from octavo.io.gguf.source import Source

_WINDOW = 1 << 20
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Cursor:
    """A position in the header. `label` says which part of the file is being read, for errors."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.pos = 0
        self.label = "header"
        self._strings = self._inner_arrays = 0
        self._window = b""
        self._base = 0

    @property
    def left(self) -> int:
        return self.source.size - self.pos

    def fail(self, problem: str, part: str, *, offset: int | None = None, allowed: str | None = None) -> GGUFError:
        """The error to raise for `part` of what `label` names, at `offset` (default: here)."""
        field = f"{self.label} {part}".strip()
        at = self.pos if offset is None else offset
        return GGUFError(problem, file=self.source.path, offset=at, field=field, allowed=allowed)

    def _need(self, n: int, part: str) -> int:
        """Have `n` bytes from `pos` in the window; their index in it."""
        at = self.pos - self._base
        if at + n > len(self._window):
            if n > self.left:
                raise self.fail(f"needs {n} bytes, but the file ends after {max(self.left, 0)}", part)
            size = min(max(n, _WINDOW), self.left)
            self._window = self.source.read(self.pos, size, f"{self.label} {part}")
            self._base, at = self.pos, 0
        return at

    def take(self, n: int, part: str) -> bytes:
        """The next `n` bytes; the caller has bounded `n`."""
        at = self._need(n, part)
        self.pos += n
        return self._window[at : at + n]

    def u32(self, part: str) -> int:
        at = self._need(4, part)
        self.pos += 4
        value: int = _U32.unpack_from(self._window, at)[0]
        return value

    def u64(self, part: str) -> int:
        at = self._need(8, part)
        self.pos += 8
        value: int = _U64.unpack_from(self._window, at)[0]
        return value

    def count(self, part: str, item_bytes: int, limit: int) -> int:
        """A count of items that take at least `item_bytes` each: no more than `limit`, nor than there is room for."""
        start = self.pos
        n = self.u64(part)
        most = min(limit, self.left // item_bytes)
        if n > most:
            raise self.fail(
                f"{n}, with {self.left} bytes left in the file",
                part,
                offset=start,
                allowed=f"at most {most}",
            )
        return n

    def text(self, part: str, limit: int) -> str:
        """A name: 1 to `limit` bytes of UTF-8 after their length."""
        start = self.pos
        n = self.count(f"{part} length", 1, limit)
        if n == 0:
            raise self.fail("empty", part, offset=start, allowed=f"1 to {limit} bytes")
        raw = self.take(n, part)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise self.fail(f"not UTF-8: {raw[:40]!r}", part, offset=start + 8 + e.start) from None

    def skip(self, n: int, part: str) -> None:
        """Step over `n` bytes."""
        if n > self.left:
            raise self.fail(f"needs {n} bytes, but the file ends after {self.left}", part)
        self.pos += n

    def spend(self, part: str, offset: int, *, strings: int = 0, inner_arrays: int = 0) -> None:
        """Count what has to be walked one by one against the limits of a file."""
        self._strings += strings
        self._inner_arrays += inner_arrays
        for found, most, what in (
            (self._strings, MAX_STRINGS, "strings"),
            (self._inner_arrays, MAX_INNER_ARRAYS, "inner arrays"),
        ):
            if found > most:
                problem = f"{found} {what} in the arrays so far"
                raise self.fail(problem, part, offset=offset, allowed=f"at most {most} in a file")

    def skip_strings(self, count: int, part: str) -> None:
        """Step over `count` strings, checking that each lies within the file."""
        unpack = _U64.unpack_from
        while count:
            at = start = self._need(8, part)
            window, last = self._window, len(self._window) - 8
            while at <= last and count:
                start = at
                at += 8 + unpack(window, at)[0]
                count -= 1
            if self._base + at > self.source.size:
                self.pos = self._base + start
                n = at - start - 8
                raise self.fail(f"a string of {n} bytes, with {self.left - 8} bytes left in the file", part)
            self.pos = self._base + at
