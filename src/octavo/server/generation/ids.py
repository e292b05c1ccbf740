"""Identifiers of replies and of requests, as OpenAI's and Anthropic's clients know them."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Iterable
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID")
"""The id of the request that is answered."""
ID_NAMES = (b"x-request-id", b"request-id")
"""Headers that have it: OpenAI's, and Anthropic's."""
TAKEN = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
"""Ids of clients that are taken as they are; nothing in one can begin a line, a header or a field."""
LETTERS = string.ascii_letters + string.digits


def new_id(prefix: str) -> str:
    """A prefix and 24 letters and digits."""
    return prefix + "".join(secrets.choice(LETTERS) for _ in range(24))


def request_id(headers: Iterable[tuple[bytes, bytes]] = ()) -> str:
    """The id that a request has in its headers, where it can be written down, or a new one."""
    found = dict(headers)
    given = (found.get(name, b"") for name in ID_NAMES)
    return next((one.decode() for one in given if TAKEN.fullmatch(one)), None) or new_id("req_")


def id_headers(one: str) -> list[tuple[bytes, bytes]]:
    """The headers of a response to the request of this id."""
    return [(name, one.encode()) for name in ID_NAMES]
