"""The socket between front and engine: whole messages, and an end in the middle of one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from octavo.server.engine.channel import LENGTH, MOST, Channel, ChannelError, frame, length_of

Ends = tuple[socket.socket, Channel]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, Channel(theirs)


def test_messages_come_whole_however_they_are_cut(ends: Ends) -> None:
    sock, channel = ends
    for piece in (frame(b"one")[:2], frame(b"one")[2:] + frame(b""), frame(b"x" * 70_000)):
        sock.sendall(piece)
    sock.shutdown(socket.SHUT_WR)
    assert list(channel.received()) == [b"one", b"", b"x" * 70_000]
    channel.send(b"back")
    assert sock.recv(100) == frame(b"back")


@pytest.mark.parametrize(("sent", "said"), [
    (LENGTH.pack(9)[:3], "ends after 3 of 4 bytes"), (LENGTH.pack(9) + b"some", "ends after 4 of 9 bytes"),
    (LENGTH.pack(MOST + 1), f"of {MOST + 1} bytes"),
])
def test_what_is_no_message(ends: Ends, sent: bytes, said: str) -> None:
    sock, channel = ends
    sock.sendall(sent)
    sock.shutdown(socket.SHUT_WR)
    with pytest.raises(ChannelError, match=said):
        list(channel.received())


def test_what_is_too_long_is_not_sent() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return MOST + 1

    with pytest.raises(ChannelError, match=f"allowed: up to {MOST}"):
        frame(Long())
    assert length_of(LENGTH.pack(MOST)) == MOST
