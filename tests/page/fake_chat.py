"""A server for the chat page: it serves the page, and answers by what the last message says."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

from octavo.server.http.page import page

MARKDOWN = """\
# Sorting

Quicksort picks a **pivot** and *splits* the list, see [the article](https://example.org/quick) or `sorted(xs)`:

```python
def quicksort(xs):
    # an empty list is sorted
    if len(xs) < 2:
        return xs
    pivot, rest = xs[0], xs[1:]
    return quicksort([x for x in rest if x < pivot]) + [pivot] + quicksort([x for x in rest if x >= pivot])
```

1. Pick a pivot
2. Split
   - smaller ones
   - larger ones
3. Sort both

> It takes n log n steps on average, ~~always~~ not in the worst case.

| case | steps |
|------|-------|
| average | n log n |
| worst | n^2 |

---
Done with a_snake_name and 2 * 3 * 4.
"""

HOSTILE = """\
<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>
[click](javascript:window.hacked=1) ![pixel](https://evil.example/p.png) <b>bold</b>

```html
<script>window.hacked=1</script>
```

`<svg onload=window.hacked=1>` | <iframe src="javascript:window.hacked=1">
"""


def called(*calls: str) -> Iterator[dict[str, Any]]:
    """The deltas of calls, given as names and arguments in turn."""
    for i, (name, arguments) in enumerate(zip(calls[::2], calls[1::2], strict=True)):
        first = {"name": name, "arguments": ""}
        yield {"tool_calls": [{"index": i, "id": f"call_{i}", "type": "function", "function": first}]}
        for piece in (arguments[:7], arguments[7:]):
            yield {"tool_calls": [{"index": i, "function": {"arguments": piece}}]}


USUAL = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0}


@dataclass
class Chat:
    """What the server does, and what it was asked.

    key     wanted of each request, if any
    left    replies that ended because the page left
    models  how each of several models is, by their names; {} for a server of one
    told    events that those who listen are sent, once each
    pulls   whether it downloads models
    empty   whether it is one of several models that has none yet
    listened, looked  how often somebody began to listen, and asked for the models
    """

    key: str | None = None
    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    pulls: bool = True
    told: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    empty: bool = False
    listened: int = 0
    looked: int = 0

    def rows(self) -> list[dict[str, Any]]:
        """What /v1/models says."""
        self.looked += 1
        if not self.models and not self.empty:
            return [{"id": "demo-model", "meta": {"n_ctx": 4096}}]
        return [{"id": name, "status": status, **({"meta": {"n_ctx": 512}} if status["value"] == "loaded" else {})}
                for name, status in self.models.items()]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def pieces(self, messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The deltas of a reply."""
        said = messages[-1]["content"].split("\n")[-1]
        if said == "call":
            yield from called("weather", '{"city": "Ulm <b>", "days": 2}', "note", "not JSON")
            return
        if said == "think":
            yield {"reasoning_content": "Let me "}
            yield {"reasoning_content": "see."}
        while said == "never":
            time.sleep(0.01)
            yield {"content": ""}
        if said == "endless":
            while True:
                time.sleep(0.01)
                yield {"content": "on and "}
        text = {"markdown": MARKDOWN, "hostile": HOSTILE}.get(said, f"You said {said}, reply {len(self.asked)}.")
        for i in range(0, len(text), 5):
            yield {"content": text[i : i + 5]}


class Handler(BaseHTTPRequestHandler):
    chat: Chat
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def answer(self, status: int, value: Any, **headers: str) -> None:
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})

    def send(self, status: int, text: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(text))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(text)

    def refused(self) -> bool:
        if self.chat.key and self.headers.get("Authorization") != f"Bearer {self.chat.key}":
            self.answer(401, {"error": {"message": "a key is needed"}})
            return True
        return False

    def do_GET(self) -> None:
        if self.path == "/":
            self.send(200, *page())
        elif not self.refused():
            found = {"/v1/models": {"data": self.chat.rows(), "can_pull": self.chat.pulls},
                     "/props": {"default_generation_settings": {"params": USUAL}}}
            if self.path == "/models/sse":
                self.tell()
                return
            self.answer(200, found[self.path.partition("?")[0]])

    def tell(self) -> None:
        """Send events as they come."""
        self.chat.listened += 1
        self.begin_stream()
        with suppress(OSError):
            while (event := self.chat.told.get()) is not None:
                self.event(event)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        if self.path.startswith("/models"):
            if request["model"] == "taken":
                self.answer(400, {"error": {"message": "taken is not a hub name"}})
                return
            if self.path == "/models":
                self.chat.models[request["model"]] = {"value": "downloading", "progress": {}}
            self.chat.asked.append({"path": self.path, **request})
            self.answer(200, {"success": True})
            return
        assert self.path == "/v1/chat/completions"
        self.chat.asked.append(request)
        said = request["messages"][-1]["content"]
        if said == "busy":
            self.answer(429, {"error": {"message": "the queue is full"}}, Retry_After="7")
            return
        self.begin_stream()
        try:
            self.stream(request, said)
        except OSError:
            self.chat.left += 1

    def stream(self, request: dict[str, Any], said: str) -> None:
        self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]})
        count = 0
        for delta in self.chat.pieces(request["messages"]):
            count += 1
            self.event({"choices": [{"index": 0, "delta": delta}]})
            if said == "break" and count == 2:
                self.event({"error": {"message": "the engine has gone"}})
                return
            if said == "cut off" and count == 2:
                return
        finish = "tool_calls" if said == "call" else "stop"
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        usage = {"prompt_tokens": 4092 if said == "full" else 100, "completion_tokens": count,
                 "prompt_tokens_details": {"cached_tokens": 76}}
        self.event({"choices": [], "usage": usage, "timings": {"predicted_per_second": 42.25}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value: Any) -> None:
        self.wfile.write(b": ping\n\ndata: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a browser that leaves
            super().handle_error(request, client_address)


@contextmanager
def serving(chat: Chat) -> Iterator[Chat]:
    """Runs the server in threads of its own."""
    handler = type("Bound", (Handler,), {"chat": chat})
    with Server(("127.0.0.1", chat.port), handler) as server:
        server.daemon_threads = True
        chat.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield chat
        finally:
            chat.told.put(None)
            server.shutdown()
            thread.join()
