"""What backends whose values are NumPy arrays have in common."""

from __future__ import annotations

from octavo.formats.spec import AnyArray


class HostMemory:
    """Writes and reads values at once; no work is under way when a call returns."""

    def write(self, value: AnyArray, data: AnyArray) -> None:
        value[...] = data

    def read(self, value: AnyArray) -> AnyArray:
        return value.copy()

    def synchronize(self) -> None:
        return
