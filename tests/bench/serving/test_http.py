"""The client: bytes that are cut anywhere, answers that break rules, times of arrival."""

from __future__ import annotations

import asyncio

import pytest

from octavo.bench.serving.http import Address, Exchange, ReplyError, address, get_json, request_bytes
from octavo.bench.serving.stream_reader import Events, StreamedReply, stream
from octavo.errors import UsageError
from tests.bench.serving.fake_server import Fake, serving

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n"
LONG = b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\nabc0123456789"
UNTIL_THE_END = b"HTTP/1.0 200 OK\r\n\r\nabc0123456789"


def answer(parts: list[bytes]) -> tuple[bytes, Exchange]:
    """What an exchange passes on of an answer that comes in parts, after which the connection ends."""

    async def feed() -> tuple[bytes, Exchange]:
        got: list[bytes] = []
        one = Exchange(got.append)
        for part in parts:
            one.data_received(part)
        one.connection_lost(None)
        await one.done
        return b"".join(got), one

    return asyncio.run(feed())


@pytest.mark.parametrize("whole", [CHUNKED, LONG, UNTIL_THE_END], ids=["chunked", "length", "end"])
def test_an_answer_may_be_cut_anywhere(whole: bytes) -> None:
    for size in (1, 2, 3, 7, len(whole)):
        text, done = answer([whole[i : i + size] for i in range(0, len(whole), size)])
        assert text == b"abc0123456789"
        assert done.status == 200


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        (b"SSH-2.0\r\n\r\n", "the answer is not HTTP/1.1"),
        (CHUNKED[:-8], "ended before the answer"),
        (LONG[:-1], "ended before the answer"),
        (b"", "ended before the answer"),
        (CHUNKED.replace(b"A;x", b"xyz"), "the answer is not HTTP/1.1: .*chunk size"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 16), "headers are longer than 65536 bytes"),
    ],
)
def test_answers_that_break_the_rules(whole: bytes, message: str) -> None:
    with pytest.raises(ReplyError, match=message):
        answer([whole])


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_events_may_be_cut_anywhere(size: int) -> None:
    text = b": ping\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: three\n\n\n\ndata: cut"
    events = Events()
    assert [d for i in range(0, len(text), size) for d in events.feed(text[i : i + size])] == [b"one", b"two\nthree"]


def test_addresses() -> None:
    assert address("http://localhost:8080") == address("http://localhost:8080/v1/") == Address("localhost", 8080)
    assert address("https://a.b/llm", "k") == Address("a.b", 443, True, "/llm", "k")
    assert address("https://a.b/llm").url == "https://a.b:443/llm"
    for wrong in ("localhost:80", "ftp://a", "http://", "http://a:b", "http://a?x=1", "http://u@a"):
        with pytest.raises(UsageError):
            address(wrong)


def test_a_request_has_key_and_path() -> None:
    text = request_bytes(address("http://h:1/x", "k"), "POST", "/v1/completions", {"a": 1}).decode()
    head, _, body = text.partition("\r\n\r\n")
    assert head.startswith("POST /x/v1/completions HTTP/1.1\r\nHost: h:1\r\n")
    assert "Authorization: Bearer k" in head
    assert f"Content-Length: {len(body)}" in head


def reply_of(fake: Fake, reply: StreamedReply) -> StreamedReply:
    """A reply, filled."""
    with serving(fake):
        asyncio.run(stream(address(fake.url), "/v1/completions", {"prompt": [1, 2], "max_tokens": 4}, reply))
    return reply


def test_times_are_those_of_the_server() -> None:
    """The server writes a text when the one before has come, the first when it is known when the request was sent."""
    reply = StreamedReply()
    fake = Fake(first=0.1, gap=0.03, holds=lambda request, i: len(reply.arrivals) < i or not reply.sent)
    reply_of(fake, reply)
    assert reply.error is None
    assert (reply.text, reply.tokens, reply.prompt_tokens, reply.cached_tokens) == ("w0 w1 w2 w3 ", 4, 2, 5)
    assert len(fake.written) == len(reply.arrivals) == 4
    times = [t for pair in zip(fake.written, reply.arrivals, strict=True) for t in pair]
    assert [reply.sent, *times, reply.ended] == sorted([reply.sent, *times, reply.ended])
    assert fake.written[-1] - fake.written[0] >= 3 * fake.gap
    assert reply.tpot == pytest.approx(sum(reply.gaps) / 3)
    assert reply.e2e == pytest.approx(reply.ttft + sum(reply.gaps))


@pytest.mark.parametrize(
    ("fake", "message", "pieces"),
    [
        (Fake(status=503), "status 503: no room", 0),
        (Fake(broken="cut"), "ended before the answer", 2),
        (Fake(broken="error"), "engine gone", 2),
        (Fake(broken="text"), "an event is b'hello'", 2),
    ],
    ids=["status", "cut", "error", "text"],
)
def test_what_fails_is_kept(fake: Fake, message: str, pieces: int) -> None:
    reply = reply_of(fake, StreamedReply())
    assert message in (reply.error or "")
    assert len(reply.arrivals) == pieces
    assert not reply.good


def test_nobody_listens() -> None:
    reply = StreamedReply()
    asyncio.run(stream(Address("127.0.0.1", 9), "/v1/completions", {}, reply))
    assert "http://127.0.0.1:9 can't be reached" in (reply.error or "")


def test_a_status_is_told() -> None:
    with serving(Fake(key="secret")) as fake, pytest.raises(ReplyError, match="/v1/models answered 401"):
        asyncio.run(get_json(address(fake.url), "/v1/models"))
