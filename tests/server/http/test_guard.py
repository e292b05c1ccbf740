"""Who may ask: keys, Host, Origin."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from octavo.runtime import Model
from octavo.server.engine.fake import FakeClient
from tests.server.live_server import Server, running

KEYS = ("correct-horse", "battery-staple")
PAGE = "https://chat.example"


@pytest.fixture(scope="module")
def guarded(model: Model) -> Iterator[Server]:
    with running(FakeClient([300, 301]), model, keys=KEYS, origins=(PAGE,), hosts=("llm.example",)) as server:
        yield server


def status(server: Server, path: str = "/v1/models", method: str = "GET", **headers: str) -> int:
    return server.send(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})[0]


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/props", "/slots", "/metrics", "/nothing", "/v1/nothing"])
def test_every_route_wants_a_key(guarded: Server, path: str) -> None:
    code, headers, body = guarded.send("GET", path)
    error = json.loads(body)["error"]
    assert (code, headers["www-authenticate"]) == (401, "Bearer")
    assert error["type"] == "authentication_error"
    assert status(guarded, path, Authorization="Bearer wrong") == 401
    assert status(guarded, path, Authorization="Basic correct-horse") == 401
    assert status(guarded, path, Authorization="Bearer correct-horse") != 401


def test_health_and_the_page_want_none(guarded: Server) -> None:
    assert [status(guarded, path) for path in ("/health", "/v1/health", "/")] == [200, 200, 200]


def test_both_headers_and_all_keys(guarded: Server) -> None:
    for key in KEYS:
        assert status(guarded, Authorization=f"Bearer {key}") == 200
        assert status(guarded, Authorization=f"bearer  {key} ") == 200
        assert status(guarded, X_Api_Key=key) == 200
    for key in ("", "correct-hors", "correct-horse2", "x" * 10_000):
        assert status(guarded, X_Api_Key=key) == 401


@pytest.mark.parametrize(("request_", "wanted"), [
    (b"GET /health HTTP/1.0\r\n\r\n", 200), (b"HEAD /v1/health HTTP/1.0\r\n\r\n", 200),
    (b"GET /health HTTP/1.0\r\nHost: evil.example\r\n\r\n", 403), (b"GET /health HTTP/1.0\r\nHost: \r\n\r\n", 403),
    (b"GET /health HTTP/1.0\r\nOrigin: https://evil.example\r\n\r\n", 403), (b"GET /health HTTP/1.1\r\n\r\n", 403),
    (b"GET /v1/models HTTP/1.0\r\n\r\n", 403), (b"GET / HTTP/1.0\r\n\r\n", 403),
    (b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}", 403),
])
def test_balancers_ask_in_http_1_0(guarded: Server, request_: bytes, wanted: int) -> None:
    with guarded.connect() as sock:
        sock.sendall(request_)
        assert int(sock.recv(1000).split(b" ")[1]) == wanted


def test_what_openais_client_raises(guarded: Server) -> None:
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"
        assert client.with_options(api_key=KEYS[0]).models.list().data[0].id == "demo"


def test_hosts(server: Server, guarded: Server) -> None:
    for host in ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "10.1.2.3", "app.localhost", "LOCALHOST."):
        assert status(server, "/health", Host=host) == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80", "llm.example"):
        assert status(server, "/health", Host=host) == 403, host
    assert status(guarded, "/health", Host="llm.example:443") == 200


def test_origins(server: Server, guarded: Server) -> None:
    own = f"http://127.0.0.1:{server.port}"
    assert status(server, Origin=own) == 200
    for origin in ("https://evil.example", "null", f"http://localhost:{server.port}", PAGE):
        assert status(server, Origin=origin) == 403, origin
    code, headers, _ = guarded.send("GET", "/v1/models", headers={"Origin": PAGE, "X-Api-Key": KEYS[0]})
    assert (code, headers["access-control-allow-origin"], headers["vary"]) == (200, PAGE, "Origin")
    assert "access-control-allow-credentials" not in headers


def test_preflight(server: Server, guarded: Server) -> None:
    assert status(server, method="OPTIONS") == 405
    assert status(server, method="OPTIONS", Origin="https://evil.example") == 403
    code, headers, _ = guarded.send("OPTIONS", "/v1/chat/completions", headers={"Origin": PAGE})
    assert (code, headers["access-control-allow-origin"]) == (204, PAGE)
    assert "authorization" in headers["access-control-allow-headers"]


SENT = "authorization,content-type,x-stainless-arch,x-stainless-os,anthropic-dangerous-direct-browser-access"
"""What clients in JavaScript say that they will send."""


def preflight(server: Server, wanted: str) -> str:
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    code, headers, _ = server.send("OPTIONS", "/v1/messages", headers=asked)
    assert (code, headers["access-control-allow-origin"]) == (204, PAGE)
    assert "Access-Control-Request-Headers" in headers["vary"]
    return headers["access-control-allow-headers"]


def test_headers_that_pages_of_allowed_origins_send(guarded: Server) -> None:
    assert preflight(guarded, SENT) == SENT
    assert "authorization" in preflight(guarded, 'x-a: "1"')
    assert "authorization" in preflight(guarded, "x" * 5000)


def test_pages_of_allowed_origins_can_read_errors(guarded: Server) -> None:
    key = {"X-Api-Key": KEYS[0]}
    for more, wanted in (({}, 401), (key, 400), (key | {"Host": "evil.example"}, 403)):
        code, headers, body = guarded.send("POST", "/v1/completions", {}, {"Origin": PAGE, **more})
        assert (code, headers["access-control-allow-origin"], headers["vary"]) == (wanted, PAGE, "Origin")
        assert json.loads(body)["error"]["message"]
        assert "retry-after" in headers["access-control-expose-headers"]
    _, headers, _ = guarded.send("POST", "/v1/completions", {}, {"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in headers


def test_keys_share_no_prompts(model: Model) -> None:
    fake = FakeClient([300])
    with running(fake, model, keys=KEYS) as server:
        for key, salt in ((KEYS[0], None), (KEYS[1], None), (KEYS[0], "a"), (KEYS[0], None)):
            body = {"prompt": "12", "max_tokens": 1, "cache_salt": salt}
            assert server.send("POST", "/v1/completions", body, {"X-Api-Key": key})[0] == 200
    first, second, salted, again = (message.cache_salt for message in fake.sent if hasattr(message, "cache_salt"))
    assert len({first, second, salted}) == 3
    assert first == again
    with running(shared := FakeClient([300]), model, keys=KEYS, share_cache=True) as server:
        for key in KEYS:
            for salt in (None, "a salt"):
                body = {"prompt": "12", "max_tokens": 1, "cache_salt": salt}
                assert server.send("POST", "/v1/completions", body, {"X-Api-Key": key})[0] == 200
    assert {message.cache_salt for message in shared.sent if hasattr(message, "cache_salt")} == {"", "a salt"}


@pytest.mark.parametrize("lines", [
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
])
def test_a_transfer_coding_that_nobody_decodes_is_refused(guarded: Server, lines: bytes) -> None:
    with guarded.connect() as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer correct-horse\r\n"
                     b"Content-Type: application/json\r\n" + lines + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 501 ")
    assert b"the Transfer-Encoding is 'gzip" in answer
    assert b"\r\nconnection: close\r\n" in answer
