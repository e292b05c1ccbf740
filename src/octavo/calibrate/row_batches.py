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
            on_device = _is_of_device(error)
            if not (on_device or isinstance(error, MemoryError)):
                raise
            if part.stop - part.start < 2:
                kind, where = (DeviceMemoryError, "device") if on_device else (HostMemoryError, "system")
                raise kind(f"the memory of the {where} does not hold what a row of weights takes: {error}") from None
        if on_device:
            sys.modules["torch"].cuda.empty_cache()
        middle = (part.start + part.stop) // 2
        left += [slice(middle, part.stop), slice(part.start, middle)]
    return made


@contextmanager
def memory_told(what: str) -> Iterator[None]:
    """Raise HostMemoryError, or DeviceMemoryError, where memory runs out in the block; `what` takes it."""
    try:
        yield
    except MemoryError as error:
        raise HostMemoryError(f"the memory of the system does not hold what {what} takes: {error}") from None
    except RuntimeError as error:
        if not _is_of_device(error):
            raise
        problem = f"the memory of the device does not hold what {what} takes; --device cpu runs it on the host"
        raise DeviceMemoryError(f"{problem}: {error}") from None


def _is_of_device(error: BaseException) -> bool:
    """Whether a device of torch's has run out of memory."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)
