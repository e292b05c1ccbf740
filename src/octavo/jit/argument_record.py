"""The arguments of a kernel by name: a record in memory, which the kernel reads as fields.

    SCALE = record("x y k factor:f4")           # int64 where no type is given: a size, a stride or an address

    @kernels(SCALE)
    def scale_kernel():
        def scale(a, task):
            y = f32_pointer(a.y + task * a.k * 4)
            ...
        return scale

    KernelCall(scale_kernel(), tasks, x=x, y=y, k=k, factor=0.5)

A wrong or missing name is a TypeError.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from octavo.formats.spec import AnyArray

_CODES = {"i8": "q", "f4": "f"}


def addresses(values: Mapping[str, Any]) -> dict[str, int | float]:
    """Values as a record takes them: of arrays, where they begin."""
    return {n: v.ctypes.data if isinstance(v, np.ndarray) else v for n, v in values.items()}


class Record:
    """Named fields, each an int64 or a float32, as C lays them out."""

    def __init__(self, fields: str) -> None:
        kinds = {name: kind or "i8" for name, _, kind in (field.partition(":") for field in fields.split())}
        self.names = tuple(kinds)
        self.dtype = np.dtype(list(kinds.items()), align=True)
        self.nbytes = self.dtype.itemsize
        self._pack = struct.Struct("".join(_CODES[kind] for kind in kinds.values())).pack_into
        self._pick: Any = itemgetter(*self.names) if len(kinds) > 1 else lambda values: (values[self.names[0]],)

    def new(self, **values: int | float | AnyArray) -> AnyArray:
        """A record in memory of its own; of arrays their addresses are in it. Raises TypeError as `fill` does."""
        made = self.empty()
        self.fill(made, addresses(values))
        return made

    def empty(self) -> AnyArray:
        """Memory for a record, zeros: int64, since others take longer to fill."""
        return np.zeros(-(-self.nbytes // 8), np.int64)

    def fill(self, memory: Any, values: Mapping[str, int | float]) -> None:
        """Set all fields of what `new` or `empty` made. Raises TypeError where a name is missing or unknown."""
        try:
            self._pack(memory, 0, *self._pick(values))
        except KeyError:
            raise TypeError(f"arguments without a value: {', '.join(self.names - values.keys())}") from None
        if len(values) > len(self.names):
            raise TypeError(f"no such arguments: {', '.join(values.keys() - self.names)} (allowed: {self.names})")

    @cached_property
    def type(self) -> Any:
        """The record as Numba's type."""
        import numba

        return numba.from_dtype(self.dtype)

    @cached_property
    def at(self) -> Any:
        """What makes an address the record that lies there, for kernels to call."""
        from numba import types
        from numba.extending import intrinsic

        @intrinsic
        def at(ty: Any, address: Any) -> Any:
            return self.type(types.intp), lambda c, b, s, a: b.inttoptr(a[0], c.get_value_type(self.type))

        return at

    @cached_property
    def copy(self) -> Any:
        """What copies the record at an address to another address, and returns it, for kernels to call."""
        from numba import types
        from numba.core import cgutils
        from numba.extending import intrinsic

        raw_memcpy: Any = cgutils.raw_memcpy

        @intrinsic
        def copy(ty: Any, to: Any, source: Any) -> Any:
            def gen(c: Any, b: Any, s: Any, a: Any) -> Any:
                made, found = (b.inttoptr(address, c.get_value_type(self.type)) for address in a)
                raw_memcpy(b, made, found, c.get_constant(types.intp, self.nbytes), 1, 8)
                return made

            return self.type(types.intp, types.intp), gen

        return copy


def record(*fields: str) -> Record:
    """A record of fields `name` or `name:type`, with spaces between them; several lists one after the other."""
    return Record(" ".join(fields))
