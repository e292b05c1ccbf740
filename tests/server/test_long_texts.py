"""Long texts in requests: they hold up nobody, and those that can't fit are refused before their tokens are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Thread
from typing import Any, NoReturn

import pytest
from msgspec import structs

from octavo.runtime import Model
from octavo.server.engine.fake import INFO, FakeClient
from octavo.server.http import background as threads
from tests.server.live_server import Server, running

LONG = "The quick brown fox jumps. " * 600
"""More bytes than 1,024 tokens of the demo model's can stand for."""
MESSAGES = [{"role": "user", "content": LONG}]
GOES_ON = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": LONG}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/chat/completions": {"messages": GOES_ON},
    "/v1/completions": {"prompt": ["a", LONG]},
    "/completion": {"prompt": LONG},
    "/v1/embeddings": {"input": ["a", LONG]},
    "/v1/responses": {"input": LONG},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": GOES_ON},
    "/tokenize": {"content": LONG},
}


@pytest.fixture(scope="module")
def small(model: Model) -> Iterator[Server]:
    """A front whose engine has a context of 1,024 tokens."""
    fake = FakeClient([300], info=structs.replace(INFO, n_ctx=1024))
    with running(fake, model) as server:
        yield server


@pytest.mark.parametrize("path", BODIES)
def test_what_can_not_fit_is_not_encoded(small: Server, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small.service.tokenizer

    def encode(text: str) -> NoReturn:
        raise AssertionError(f"{len(text)} characters are encoded")

    monkeypatch.setattr(tokenizer, "_encoder", replace(tokenizer._encoder, encode=encode))
    status, error = small.refused(path, BODIES[path])
    assert status == 400
    if path.startswith("/v1/messages"):
        assert error["message"].startswith("prompt is too long: 12")
    else:
        assert error["n_prompt_tokens"] == pytest.approx(len(LONG) / 13, rel=0.02)
        assert "has at least 12" in error["message"]


def test_texts_that_might_have_fitted_are_counted(small: Server) -> None:
    """As clients need it that cut them to fit."""
    text = LONG[: 12 * 1024]
    assert small.post("/tokenize", prompt=text)["count"] > 1024
    messages = [{"role": "user", "content": text}]
    assert small.post("/v1/messages/count_tokens", messages=messages)["input_tokens"] > 1024


@pytest.mark.parametrize(("n_ctx", "size"), [(1024, 16 << 20), (1 << 20, 16 << 20), (5 << 18, 20 << 20)])
def test_a_body_may_have_what_the_context_takes(model: Model, n_ctx: int, size: int) -> None:
    """16 bytes for each token, as texts in escapes and lists of tokens may have; 16 MiB in any case."""
    fake = FakeClient([300], info=structs.replace(INFO, n_ctx=n_ctx, n_pages=n_ctx))
    with running(fake, model) as server:
        assert server.send("POST", "/tokenize", b'{"content": "hi"}'.ljust(size))[0] == 200
        with server.connect() as sock:
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (size + 1))
            assert sock.recv(1000).startswith(b"HTTP/1.1 413")


@pytest.mark.few(1)
@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions"])
def test_others_are_answered_while_a_text_is_encoded(model: Model, path: str) -> None:
    fake = FakeClient([300])
    text = LONG * 150
    body = {"content": text, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    with running(fake, model) as server:
        tokenizer = server.service.tokenizer
        tokenizer._encoder = replace(tokenizer._encoder, longest=None)
        sending, answered = Thread(target=server.send, args=("POST", path, body)), 0
        sending.start()
        while sending.is_alive():
            server.get("/health")
            answered += 1
    assert answered > 5  # two at most where nothing is answered meanwhile: one before it, one behind it


@pytest.mark.parametrize(("given", "size"), [
    ("abc", 3), ([1, 2], 2), (["abc", "d"], 4), ([[1, 2], [3]], 3), ([1, "abc"], 4), ([[1, "abc"], "d"], 5),
    (["a"] * 5000, 5000),
])
def test_sizes(given: Any, size: int) -> None:
    assert threads.size_of(given) == size
