"""How much work something is: calls, so that no clock is read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Token(int):
    """A token that calls Python where it is compared or hashed, so that this counts."""

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other)  # type: ignore[arg-type, no-any-return]

    def __lt__(self, other: int) -> bool:
        return int.__lt__(self, other)

    def __hash__(self) -> int:
        return int.__hash__(self)


def calls(work: Callable[[], Any]) -> int:
    """Calls that `work` makes, of functions in Python and in C; what a generator gives counts too."""
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
