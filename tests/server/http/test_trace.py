"""The id of a request, and what is logged of it."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import anthropic
import openai
import pytest

from octavo.runtime import Model
from octavo.server.engine.fake import FakeClient
from octavo.server.serve_options import Limits
from tests.server.live_server import Server, running, running_model
from tests.server.scripted_engine import CHAT, Played, Reader, begun, playing, request, until
from tests.server.test_front import MESSAGES, ROUTES

OWN = re.compile(r"req_[A-Za-z0-9]{24}")
HOSTILE = ["a b", "a\tb", "x" * 129, "é", "a;b", '"', "a,b"]


@pytest.fixture(scope="module")
def faked(model: Model) -> Iterator[Server]:
    with running(FakeClient([16]), model, keys=("secret",), origins=("https://page.example",)) as server:
        yield server


def ids(headers: dict[str, str]) -> str:
    """The id of a response, which has it by both names."""
    assert headers["x-request-id"] == headers["request-id"]
    return headers["request-id"]


@pytest.mark.few(4)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_every_reply_has_an_id(route: str, stream: bool, faked: Server) -> None:
    key = {"Authorization": "Bearer secret"}
    body = {"max_tokens": 2, **ROUTES[route], "stream": stream}
    status, headers, _ = faked.send("POST", route, body, key)
    assert status == 200
    assert OWN.fullmatch(ids(headers))
    for name in ("X-Request-Id", "request-id"):
        assert ids(faked.send("POST", route, body, {**key, name: "trace-7:a/b+c=@._"})[1]) == "trace-7:a/b+c=@._"


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/health", None, {}, 200), ("GET", "/", None, {}, 200), ("GET", "/metrics", None, {}, 401),
        ("GET", "/nowhere", None, {"Authorization": "Bearer secret"}, 404),
        ("GET", CHAT, None, {"Authorization": "Bearer secret"}, 405),
        ("POST", CHAT, {}, {"Authorization": "Bearer secret"}, 400), ("POST", CHAT, {}, {}, 401),
        ("POST", CHAT, {}, {"Host": "evil.example"}, 403),
    ],
)
def test_every_other_response_has_one(
    method: str, path: str, body: Any, headers: dict[str, str], status: int, faked: Server
) -> None:
    got, found, _ = faked.send(method, path, body, {**headers, "x-request-id": "mine"})
    assert (got, ids(found)) == (status, "mine")


@pytest.mark.parametrize("given", HOSTILE)
def test_an_id_that_can_not_be_written_down_is_replaced(given: str, faked: Server) -> None:
    _, headers, _ = faked.send("GET", "/health", headers={"x-request-id": given})
    assert OWN.fullmatch(ids(headers))


def test_anthropics_errors_have_the_same_one(faked: Server) -> None:
    for headers in ({}, {"x-api-key": "secret"}):
        _, found, body = faked.send("POST", "/v1/messages", {}, {**headers, "request-id": "mine"})
        assert json.loads(body)["request_id"] == ids(found) == "mine"


def test_clients_read_it(faked: Server) -> None:
    with openai.OpenAI(base_url=f"{faked.url}/v1", api_key="secret", max_retries=0) as client:
        reply = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=1)
        assert OWN.fullmatch(reply._request_id or "")
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="m", messages=[])
        assert OWN.fullmatch(bad.value.request_id or "")
    with anthropic.Anthropic(base_url=faked.url, api_key="secret", max_retries=0) as other:
        message = other.messages.create(model="m", messages=MESSAGES, max_tokens=1)
        assert OWN.fullmatch(message._request_id or "")


def test_pages_of_allowed_origins_can_read_it(faked: Server) -> None:
    _, headers, _ = faked.send("GET", "/health", headers={"Origin": "https://page.example"})
    assert {"x-request-id", "request-id"} <= {*headers["access-control-expose-headers"].split(", ")}


class Lines:
    """What is logged of requests."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.caplog = caplog
        caplog.set_level(logging.INFO, "octavo.requests")

    def found(self, n: int) -> list[dict[str, str]]:
        """The fields of this many lines."""
        until(lambda: len(self.texts) >= n)
        assert len(self.texts) == n
        heads, parts = zip(*((line.split(" request ")[0], shlex.split(line)[2:]) for line in self.texts), strict=True)
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", head) for head in heads)
        return [dict(part.split("=", 1) for part in one) for one in parts]

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.caplog.records if record.name == "octavo.requests"]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_a_line_of_each_reply(route: str, stream: bool, model: Model, lines: Lines) -> None:
    number = {"/v1/responses": "max_output_tokens"}.get(route, "max_tokens")
    with running(FakeClient([16]), model, log_requests=True) as server:
        server.send("POST", route, {**ROUTES[route], number: 3, "stream": stream}, {"x-request-id": "mine"})
        (one,) = lines.found(1)
    assert {name: one[name] for name in ("id", "method", "path", "status", "model", "cached", "reply", "finish")} == {
        "id": "mine", "method": "POST", "path": route, "status": "200", "model": "demo", "cached": "0", "reply": "3",
        "finish": "length",
    }
    assert int(one["prompt"]) > 1
    assert 0 <= float(one["first"]) <= float(one["seconds"])


def test_what_was_cached_and_computed(model: Model, lines: Lines) -> None:
    with running_model(model, log_requests=True) as server:
        for _ in range(2):
            body = {"temperature": 0, "messages": MESSAGES, "n": 2}
            counts = server.post(CHAT, **body)["usage"]
        *_, one = lines.found(2)
    assert int(one["prompt"]) == counts["prompt_tokens"]
    assert int(one["cached"]) == counts["prompt_tokens_details"]["cached_tokens"] > 0
    assert (int(one["reply"]), one["finish"]) == (counts["completion_tokens"], "stop,stop")


def test_lines_of_what_is_no_reply(model: Model, lines: Lines) -> None:
    with running(FakeClient([16]), model, log_requests=True) as server:
        server.post("/v1/embeddings", input=[[5, 6, 7], [8]])
        server.refused(CHAT, {})
        server.send("GET", "/health")
        server.send("GET", "/metrics")
        server.send("GET", "/props")
        embedded, refused, props = lines.found(3)
    assert (embedded["path"], embedded["status"], embedded["prompt"]) == ("/v1/embeddings", "200", "4")
    assert (refused["status"], props["path"]) == ("400", "/props")
    assert not {"prompt", "finish"} & {*refused, *props}


def test_nothing_of_a_client_begins_a_line_or_a_field(model: Model, lines: Lines) -> None:
    with running(FakeClient([16]), model, log_requests=True) as server, closing(server.connect()) as sock:
        path = "/a%0Aoctavo:%20x%1b[31m%22%20status=200/" + "b" * 400
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nx-request-id: a status=200\r\n\r\n".encode())
        with closing(Reader(sock)) as reader:
            assert b" 404 " in reader.head()
        (one,) = lines.found(1)
    assert (one["status"], len(one["path"]) < 300) == ("404", True)
    assert OWN.fullmatch(one["id"])
    assert lines.texts[0].isascii()
    assert lines.texts[0].isprintable()


def stream_of(played: Played, sock: Any, n: int) -> int:
    sock.sendall(request({"messages": MESSAGES, "stream": True}))
    (one,) = played.asked(n).ids
    played.say(begun(one, 16))
    return one


def test_how_streams_end_early(model: Model, lines: Lines) -> None:
    fake = FakeClient()
    with running(fake, model, limits=Limits(drain_time=0, ping=1000), log_requests=True) as server:
        played = Played(server, fake)
        with closing(server.connect()) as sock:
            stream_of(played, sock, 1)
            with closing(Reader(sock)) as reader:
                assert OWN.search(reader.head().decode())
                reader.chunk()
        assert [one["finish"] for one in lines.found(1)] == ["left"]
        with closing(server.connect()) as sock:
            stream_of(played, sock, 2)
            with closing(Reader(sock)) as reader:
                reader.head()
                reader.chunk()
                played.die()
                while reader.chunk():
                    pass
        assert [(one["status"], one["finish"], one["reply"]) for one in lines.found(2)][1] == ("200", "error", "1")


def test_nothing_is_logged_where_nobody_asked(model: Model, lines: Lines) -> None:
    with playing(model) as played:
        played.server.send("GET", "/props")
    assert lines.texts == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 70_000, 431), (b"no HTTP\r\n\r\n", 400), (b"GET /", 408)],
)
def test_what_is_no_request_has_an_id(sent: bytes, status: int, model: Model) -> None:
    with playing(model, header_time=0.2) as played, closing(played.server.connect()) as sock:
        sock.sendall(sent)
        with closing(sock.makefile("rb")) as file:
            head, _, body = file.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert OWN.fullmatch(ids(lines))
    assert json.loads(body)["error"]["message"]


def test_what_there_is_no_room_for_has_an_id_and_a_line(model: Model, lines: Lines) -> None:
    fake, limits = FakeClient(), Limits(drain_time=0, ping=1000, connections=1)
    with running(fake, model, limits=limits, log_requests=True) as server, closing(server.connect()) as sock:
        stream_of(Played(server, fake), sock, 1)
        body = {"messages": MESSAGES, "max_tokens": 1}
        status, headers, answer = server.send("POST", "/v1/messages", body, {"x-request-id": "mine"})
        assert (status, ids(headers), json.loads(answer)["request_id"]) == (529, "mine", "mine")
        (one,) = lines.found(1)
        assert (one["id"], one["status"], one["path"]) == ("mine", "529", "/v1/messages")
        status, headers, _ = server.send("GET", "/health", headers={"x-request-id": "probe"})
        assert (status, ids(headers)) == (200, "probe")


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 70_000, 431), (b"no HTTP\r\n\r\n", 400), (b"GET /", 408)],
)
def test_what_is_no_request_has_a_line(sent: bytes, status: int, model: Model, lines: Lines) -> None:
    limits = Limits(drain_time=0, ping=1000, header_time=0.2)
    with running(FakeClient(), model, limits=limits, log_requests=True) as server, closing(server.connect()) as sock:
        sock.sendall(sent)
        with closing(Reader(sock)) as reader:
            head = reader.head().decode()
        (one,) = lines.found(1)
    assert f"request-id: {one['id']}\r\n" in head
    assert (one["status"], one["method"], one["path"]) == (str(status), "-", "-")
    assert {record.name for record in lines.caplog.records if record.levelno > logging.INFO} == set()


def test_a_connection_that_asks_nothing_has_none(model: Model, lines: Lines) -> None:
    limits = Limits(drain_time=0, ping=1000, header_time=0.2)
    with running(FakeClient(), model, limits=limits, log_requests=True) as server, closing(server.connect()) as sock:
        with closing(Reader(sock)) as reader:
            assert b" 408 " in reader.head()
        assert lines.texts == []


def test_a_body_that_is_none_is_told_as_it_was_answered(model: Model, lines: Lines) -> None:
    with running(FakeClient(), model, log_requests=True) as server, closing(server.connect()) as sock:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nx-request-id: mine\r\nTransfer-Encoding: chunked\r\n\r\n"
        sock.sendall(f"{head}no number\r\n".encode())
        with closing(Reader(sock)) as reader:
            answer = reader.head()
        (one,) = lines.found(1)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"request-id: mine" in answer
    assert (one["id"], one["status"], one["path"]) == ("mine", "400", CHAT)
