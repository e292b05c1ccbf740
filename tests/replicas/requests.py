"""Requests of all kinds whose replies are compared byte for byte, and a client that keeps the bytes."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from starlette.types import Scope

from octavo.bench.serving.http import Address, exchange
from tests.server.calls import TOOLS
from tests.server.generation.test_handover import REQUESTS, TIMES, by_choice

CACHED = re.compile(rb'"(cached_tokens|cache_read_input_tokens|input_tokens)":\d+')
PING = b": ping\n\n"
MOST = {"/completion": "n_predict", "/v1/responses": "max_output_tokens"}
TEXTS = ("What is 12 times 7?", "What is 8 plus 9?", "Write a story.", "What is 100 minus 1, and why?")


class Asked(NamedTuple):
    """A request by its number, which its id is made of."""

    number: int
    path: str
    body: dict[str, Any]

    @property
    def data(self) -> bytes:
        data = json.dumps(self.body).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"X-Request-Id: r-{self.number}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data


def requests(n: int, tokens: int, seed: int = 0) -> list[Asked]:
    """Of all kinds, some greedy, some with a seed, some with none, most of them streams, of up to this many tokens."""
    rng, kinds, found = Random(seed), list(REQUESTS.values()), []
    for i in range(n):
        path, body = kinds[i % len(kinds)]
        body = {**body, "stream": True}
        if rng.random() < 0.15:
            body = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        if rng.random() < 0.5 and path != "/v1/messages":
            body["seed"] = rng.randrange(1 << 32)
        body[MOST.get(path, "max_tokens")] = rng.randrange(tokens // 2, tokens)
        text = f"{rng.choice(TEXTS)} {i}"
        for name in ("messages", "prompt", "input"):
            if name in body and not isinstance(body[name], list):
                body[name] = text
        if "messages" in body:
            body["messages"] = [{"role": "user", "content": text}]
        found.append(Asked(i, path, body))
    assert any(one.body.get("tools") == TOOLS for one in found)
    return found


def chance_and_time(scope: Scope) -> tuple[int, int]:
    """The same for each run of a request."""
    return crc32(scope["state"]["id"].encode()), 1_700_000_000


async def answer(to: Address, asked: Asked) -> tuple[int, bytes]:
    """Status and body, without what depends on time or on what else a replica computes, as how choices take turns."""
    parts: list[bytes] = []
    done = await exchange(to, asked.data, parts.append)
    body = b"".join(parts).replace(PING, b"")
    if asked.body.get("stream"):
        body = by_choice(body)
    return done.status, CACHED.sub(rb'"\1":0', TIMES.sub(b'"timings":{}', body))
