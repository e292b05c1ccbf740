"""Whether somebody listens at an address, before a library is told to go there."""

from __future__ import annotations

import os
import socket
import stat

CONNECT_S = 10.0


def require_listener(address: str) -> None:
    """Raise OSError where nobody listens at a HOST:PORT, as of Ray, which would try for ten minutes.

    Names of other kinds ("auto", "local") are left alone.
    """
    host, sign, port = address.removeprefix("ray://").rpartition(":")
    if sign and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()


def require_free_path(path: str) -> None:
    """Raise OSError unless a socket may be bound at `path`: nothing is there, or a socket that nobody listens at."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError("a file that is not a socket is there, and would be deleted")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
    raise FileExistsError("another process listens there")
