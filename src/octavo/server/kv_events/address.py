"""Addresses of KV events: which side connects, and whether one can be used."""

from __future__ import annotations

import socket

from octavo.errors import UsageError
from octavo.io.listener import require_free_path

IPC = "ipc://"


def binds(endpoint: str) -> bool:
    """Whether readers connect to an address, as vLLM has it: to one with `*` or `::`, and to a socket file."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(IPC)


def require_free(endpoint: str) -> None:
    """Raise UsageError for a socket file whose path is taken: ZeroMQ would delete what is there."""
    path = endpoint.removeprefix(IPC)
    if path in (endpoint, "*") or path.startswith("@"):
        return
    try:
        require_free_path(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"KV events can't be published at {endpoint}: {why} (allowed: a path where nothing is, or a "
                         "socket that nobody listens at)", argument="kv_events") from None


def require_free_port(endpoint: str) -> None:
    """Raise UsageError for a TCP address to bind to whose port another process of this machine listens at."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not binds(endpoint) or endpoint.startswith(IPC):
        return
    host = "" if host == "*" else host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            problem = f"KV events can't be published at {endpoint}: {error.strerror}"
            raise UsageError(problem, argument="kv_events") from None


def require_host(endpoint: str) -> None:
    """Raise UsageError for a TCP address to connect to whose host has no address: ZeroMQ would try for ever."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if binds(endpoint):
        return
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"KV events can't be sent to {endpoint}: {host} is not known ({why})",
                         argument="kv_events") from None
