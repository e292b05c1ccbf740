"""What replies of OpenAI's two kinds of completions share: how a chunk begins and ends, and how a stream does."""

from __future__ import annotations

from typing import Any

from octavo.server.engine.engine_protocol import Prefill
from octavo.server.generation.handle import ChoiceState, RequestHandle
from octavo.server.generation.handover import created
from octavo.server.generation.ids import new_id
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import ApiError
from octavo.server.http.sse import DONE, event, to_json
from octavo.server.routes.schema import ChatRequest, CompletionRequest


class ChunkedReply:
    """Writes a request's reply in chunks, each of which has one choice.

    prefix  of the reply's id
    kind    what a chunk says that it is, under `object`
    """

    def __init__(
        self, service: Service, body: ChatRequest | CompletionRequest, name: str, handle: RequestHandle,
        prefix: str, kind: str,
    ) -> None:
        self.service, self.name, self.handle = service, name, handle
        self.usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self.common: dict[str, Any] = {
            "id": new_id(prefix), "object": kind, "created": created(), "model": name,
            "system_fingerprint": service.fingerprint,
        }
        self._head = b"data: " + to_json(self.common)[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if self.usage else b"}\n\n"
        self._times = bool(body.timings_per_token)

    def chunk(self, choice: bytes, more: bytes = b"") -> bytes:
        """A chunk with a choice, which is JSON, and what `more` says."""
        return b"".join((self._head, choice, b"]", more, self._tail))

    def why(self, i: int) -> bytes:
        """What a choice has behind its `finish_reason`."""
        found = self.handle.choices[i].why()
        return b"," + to_json(found)[1:-1] if found else b""

    def more(self, choice: ChoiceState, at: Prefill | None = None) -> bytes:
        """Times and how far the prompt is read, of a chunk, where these are asked for."""
        times = b',"timings":%b' % to_json(choice.timings(at)) if self._times else b""
        return times if at is None else b',"prompt_progress":%b%b' % (to_json(choice.progress(at)), times)

    def end(self) -> bytes:
        if not self.usage:
            return DONE
        numbers = to_json(self.handle.usage()), to_json(self.handle.choices[0].timings())
        return self._head + b'],"usage":%b,"timings":%b}\n\n' % numbers + DONE

    def error(self, error: ApiError) -> bytes:
        return event(to_json(error.body()))
