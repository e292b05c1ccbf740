"""Identifiers of replies, as OpenAI's clients know them."""

from __future__ import annotations

import secrets
import string
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID")
"""The id of the request that is answered."""
LETTERS = string.ascii_letters + string.digits


def new_id(prefix: str) -> str:
    """A prefix and 24 letters and digits."""
    return prefix + "".join(secrets.choice(LETTERS) for _ in range(24))
