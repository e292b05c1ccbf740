"""Messages over a socket: four bytes of length, little-endian, then as many bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from threading import Lock

from octavo.errors import OctavoError

LENGTH = struct.Struct("<I")
MOST = 1 << 30
"""Bytes of a message at most."""


class ChannelError(OctavoError):
    """Bytes that are not a message, or a socket that ends in the middle of one."""


def frame(payload: bytes) -> bytes:
    """A payload with its length."""
    if len(payload) > MOST:
        raise ChannelError(f"a message of {len(payload)} bytes (allowed: up to {MOST})")
    return LENGTH.pack(len(payload)) + payload


def length_of(header: bytes) -> int:
    """The bytes that come after a header. Raises ChannelError for more than there may be."""
    n = int(LENGTH.unpack(header)[0])
    if n > MOST:
        raise ChannelError(f"a message of {n} bytes (allowed: up to {MOST})")
    return n


class Channel:
    """The engine's end, for threads: any may `send`, one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._lock = sock, Lock()

    def send(self, payload: bytes) -> None:
        data = frame(payload)
        with self._lock:
            self._socket.sendall(data)

    def received(self) -> Iterator[bytes]:
        """Payloads as they come, until the other end closes. Raises ChannelError where that cuts one off."""
        while header := self._exactly(LENGTH.size, maybe_none=True):
            yield self._exactly(length_of(header))

    def _exactly(self, n: int, *, maybe_none: bool = False) -> bytes:
        data = bytearray()
        while len(data) < n:
            piece = self._socket.recv(n - len(data))
            if not piece:
                if maybe_none and not data:
                    return b""
                raise ChannelError(f"a message ends after {len(data)} of {n} bytes")
            data += piece
        return bytes(data)
