"""What replies of OpenAI's two kinds of completions share: how a chunk begins and ends, and how a stream does."""

from __future__ import annotations

import time
from typing import Any

from octavo.server.errors import ApiError
from octavo.server.names import new_id
from octavo.server.schema import ChatRequest, CompletionRequest
from octavo.server.service import Service
from octavo.server.stream import DONE, event, to_json
from octavo.server.usage import timings, usage
from octavo.server.work import Work


class ChunkedReply:
    """Writes a job in chunks, each of which has one choice.

    prefix  of the reply's id
    kind    what a chunk says that it is, under `object`
    """

    def __init__(
        self, service: Service, body: ChatRequest | CompletionRequest, name: str, work: Work, prefix: str, kind: str
    ) -> None:
        self.service, self.name, self.work = service, name, work
        self.usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self.common: dict[str, Any] = {
            "id": new_id(prefix), "object": kind, "created": int(time.time()), "model": name,
            "system_fingerprint": service.fingerprint,
        }  # fmt: skip
        self._head = b"data: " + to_json(self.common)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self.usage else b"]}\n\n"

    def chunk(self, choice: bytes) -> bytes:
        """A chunk with a choice, which is JSON."""
        return b"".join((self._head, choice, self._tail))

    def end(self) -> bytes:
        if not self.usage:
            return DONE
        numbers = to_json(usage(self.work)), to_json(timings(self.work.choices[0]))
        return self._head + b'],"usage":%b,"timings":%b}\n\n' % numbers + DONE

    def error(self, error: ApiError) -> bytes:
        return event(to_json(error.body()))
