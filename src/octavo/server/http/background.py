"""Background: work of the front that would hold up streams, in another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
LONG = 4096
"""Characters of a text that is rendered and taken apart in another thread."""


def size_of(given: int | str | Sequence[Any]) -> int:
    """Characters and tokens of a text, of tokens, or of several of both; of more than LONG of them their number."""
    if isinstance(given, int):
        return 1
    if isinstance(given, str) or len(given) > LONG:
        return len(given)
    return sum(map(size_of, given))


async def in_thread_if_long(size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that looks at this many characters."""
    if size > LONG:
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)
