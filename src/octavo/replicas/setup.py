"""What a replica's process is told to serve."""

from __future__ import annotations

import logging

import msgspec

from octavo.server.serve_options import EngineOptions, ServerOptions


class Setup(msgspec.Struct):
    """What a replica serves.

    number        of the replica
    host          it listens at; "" for the address of its Ray node
    level         how much it logs
    environment   variables beside those of the front
    called        what the log calls it; "" for its number
    """

    number: int
    engine: EngineOptions
    server: ServerOptions
    host: str = "127.0.0.1"
    level: int = logging.WARNING
    environment: dict[str, str] = {}
    called: str = ""

    @property
    def of_engine(self) -> EngineOptions:
        """What its engine loads: its KV events have addresses of their own, as those of vLLM's ranks."""
        events = self.engine.kv_events
        return msgspec.structs.replace(self.engine, kv_events=None if events is None else events.of_rank(self.number))


ALIVE = b""
"""A message that asks a process for a sign of life, and the answer to it."""
encode = msgspec.msgpack.Encoder().encode
