"""How pools copy what they number: with a method of the engine, which has the memory."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakMethod


class Copier:
    """Copies what one number stands for to another, with the method that `copy_with` was given."""

    def __init__(self) -> None:
        self._method: WeakMethod[Callable[[int, int], None]] | None = None

    def copy_with(self, method: Callable[[int, int], None]) -> None:
        """Have a method called, with the number to copy to and then the one to copy from.

        This does not keep the method's object, which holds the engine and its memory, alive.
        """
        self._method = WeakMethod(method)

    def copy(self, target: int, source: int) -> None:
        method = None if self._method is None else self._method()
        assert method is not None, "sequences share and fork where what they have can be copied"
        method(target, source)
