"""Identifiers of replies and of requests, as OpenAI's and Anthropic's clients know them."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from contextvars import ContextVar
from random import Random, SystemRandom

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID")
"""The id of the request that is answered."""
CHANCE: ContextVar[Random] = ContextVar("CHANCE", default=SystemRandom())  # noqa: B039 (it has no state)
"""What ids of its reply, and its seed, are made of."""
ID_NAMES = (b"x-request-id", b"request-id")
"""Headers that have it: OpenAI's, and Anthropic's."""
TAKEN = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
"""Ids of clients that are taken as they are; nothing in one can begin a line, a header or a field."""
LETTERS = string.ascii_letters + string.digits


def new_id(prefix: str) -> str:
    """A prefix and 24 letters and digits."""
    return prefix + random_letters(24)


def random_letters(n: int) -> str:
    """Letters and digits."""
    return "".join(CHANCE.get().choices(LETTERS, k=n))


def random_seed() -> int:
    """63 bits."""
    return CHANCE.get().getrandbits(63)


def request_id(headers: Iterable[tuple[bytes, bytes]] = ()) -> str:
    """The id that a request has in its headers, where it can be written down, or a new one."""
    found = dict(headers)
    given = (found.get(name, b"") for name in ID_NAMES)
    return next((one.decode() for one in given if TAKEN.fullmatch(one)), None) or new_id("req_")


def id_headers(one: str) -> list[tuple[bytes, bytes]]:
    """The headers of a response to the request of this id."""
    return [(name, one.encode()) for name in ID_NAMES]
