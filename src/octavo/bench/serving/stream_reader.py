"""A reply that is streamed: when each piece of its text arrived, and how many tokens it had."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from octavo.bench.serving.http import Address, ReplyError, exchange, request_bytes


@dataclass
class StreamedReply:
    """One request and what came back; times are seconds of `perf_counter`.

    sent      when the request was written, 0 before
    arrivals  when each event with text came
    ended     when the stream ended, 0 before
    tokens    of the reply, as the server's usage says; else one for each piece
    accepted, rejected  tokens of drafts, by the same
    error     what went wrong, or None
    """

    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int = 0
    accepted: int = 0
    rejected: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first text."""
        return self.arrivals[0] - self.sent

    @property
    def e2e(self) -> float:
        """Seconds to the last text."""
        return self.arrivals[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first."""
        return (self.e2e - self.ttft) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces of text that follow each other."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def good(self) -> bool:
        """Whether it came to its end, with text."""
        return self.error is None and bool(self.arrivals) and self.ended > 0


class Events:
    """Server-sent events from parts of a body that are cut anywhere: the data of each."""

    def __init__(self) -> None:
        self._line, self._data = bytearray(), list[bytes]()

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The data of the events that end in `part`. Comments and other fields are passed over."""
        self._line += part
        *lines, rest = bytes(self._line).split(b"\n")
        self._line = bytearray(rest)
        for line in (line.removesuffix(b"\r") for line in lines):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data.clear()


async def stream(
    to: Address, path: str, body: dict[str, Any], reply: StreamedReply, clock: Callable[[], float] = perf_counter
) -> None:
    """Send a request with `"stream": true` and note in `reply` what comes, and when.

    What goes wrong with this one request is in `reply.error`; a task that is cancelled leaves what had come.
    """
    events, parts, finished = Events(), list[bytes](), False

    def take(part: bytes) -> None:
        nonlocal finished
        now = clock()
        if not finished and len(parts) < 64:
            parts.append(part)
        for data in events.feed(part):
            if data == b"[DONE]":
                finished = True
            else:
                _note(reply, data, now)

    def sent() -> None:
        reply.sent = clock()

    full = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        done = await exchange(to, request_bytes(to, "POST", path, full), take, sent)
    except (ReplyError, OSError) as error:
        reply.error = str(error)
        return
    reply.ended = clock()
    if done.status != 200:
        reply.error = f"status {done.status}: {b''.join(parts)[:200].decode(errors='replace')}"
    elif not finished and reply.error is None:
        reply.error = "the stream ended without [DONE]"
    reply.tokens = reply.tokens or len(reply.arrivals)


def _note(reply: StreamedReply, data: bytes, now: float) -> None:
    try:
        event = json.loads(data)
        usage = event.get("usage")
        if usage:
            reply.prompt_tokens, reply.tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
            reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            details = usage.get("completion_tokens_details") or {}
            reply.accepted, reply.rejected = (
                int(details.get(f"{name}_prediction_tokens") or 0) for name in ("accepted", "rejected")
            )
        text = "".join(map(_text, event.get("choices") or ()))
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ReplyError(f"an event is {data[:120]!r} (allowed: a chunk of a completion)") from None
    if "error" in event:
        reply.error = f"an error in the stream: {json.dumps(event['error'])[:200]}"
    elif text:
        reply.arrivals.append(now)
        reply.text += text


def _text(choice: dict[str, Any]) -> str:
    """The text of a choice of either route, thoughts and calls included."""
    if "delta" not in choice:
        return choice.get("text") or ""
    delta = choice["delta"]
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    calls = "".join((call.get("function") or {}).get("arguments") or "" for call in delta.get("tool_calls") or ())
    return thought + (delta.get("content") or "") + calls
