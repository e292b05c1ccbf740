"""Entries: what is kept of a prefix, addressed by the tokens that lead to it.

The key of a page is the SHA-256 of the key of the page before it and of its tokens, as int32, little-endian. Before the
first page stands the key of a root: of all else that keys and values depend on, and of the salt of the requests.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from octavo.graph.node import PAGE_SIZE

Kind = Literal["page", "state", "window"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def root_key(fingerprint: bytes, salt: str) -> bytes:
    """What stands before the first page: 32 bytes."""
    return hashlib.sha256(b"octavo prefix\0" + fingerprint + b"\0" + salt.encode()).digest()


def page_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a page of up to PAGE_SIZE tokens after `parent`: 32 bytes."""
    return hashlib.sha256(parent + struct.pack(f"<{len(tokens)}i", *tokens)).digest()


@dataclass(frozen=True)
class Entry:
    """Keys and values of some tokens after the page of key `parent`, or what layers keep after these.

    tokens  1 to PAGE_SIZE
    kind    "page": keys and values; "state": the states after the last token; "window": the pages that the window of
            the next token reaches, of layers that have pages of their own
    """

    parent: bytes
    tokens: tuple[int, ...]
    kind: Kind = "page"

    @cached_property
    def key(self) -> bytes:
        return page_key(self.parent, self.tokens)

    @property
    def name(self) -> str:
        """Among what follows the same page."""
        return f"{len(self.tokens)}-{self.key.hex()[:32]}.{self.kind}"

    def of(self, kind: Kind) -> Entry:
        """What else may be kept after the same tokens."""
        return Entry(self.parent, self.tokens, kind)


def page_entry(parent: bytes, tokens: Sequence[int], at: int) -> Entry:
    """The entry of the `at`-th page of a sequence."""
    return Entry(parent, tuple(tokens[at * PAGE_SIZE : (at + 1) * PAGE_SIZE]))
