"""Where memory runs out: work on rows in smaller parts, and errors that say so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from octavo.errors import DeviceMemoryError, HostMemoryError

T = TypeVar("T")


def made_in_parts(parts: Iterable[slice], make: Callable[[slice], T]) -> list[T]:
    """What `make` gives for parts of some rows, in order; where memory runs out, for each half of a part by itself.

    Raises HostMemoryError, or DeviceMemoryError, where a single row does not fit.
    """
    made, left = list[T](), list(parts)[::-1]
    while left:
        part = left.pop()
        try:
            made.append(make(part))
            continue
        except (MemoryError, RuntimeError) as error:
            told = _told(error, "a row of weights")
            if told is None:
                raise
            if part.stop - part.start < 2:
                raise told from None
        if isinstance(told, DeviceMemoryError):
            sys.modules["torch"].cuda.empty_cache()
        middle = (part.start + part.stop) // 2
        left += [slice(middle, part.stop), slice(part.start, middle)]
    return made


@contextmanager
def memory_told(what: str) -> Iterator[None]:
    """Raise HostMemoryError, or DeviceMemoryError, where memory runs out in the block; `what` takes it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        told = _told(error, what, "; --device cpu runs it on the host")
        if told is None:
            raise
        raise told from None


def _told(error: Exception, what: str, way_out: str = "") -> HostMemoryError | DeviceMemoryError | None:
    """What to raise where memory has run out, of a device with a way out of that; None for another error."""
    if isinstance(error, MemoryError):
        return HostMemoryError(f"the memory of the system does not hold what {what} takes: {error}")
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, torch.OutOfMemoryError):
        return None
    return DeviceMemoryError(f"the memory of the device does not hold what {what} takes{way_out}: {error}")
