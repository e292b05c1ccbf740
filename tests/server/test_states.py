"""Models whose layers have states, over HTTP: texts together are those alone, whatever is kept or given up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.runtime import Model
from octavo.runtime.cache.page_pool import page_bytes, state_bytes
from octavo.runtime.cache.state_pool import slots_for
from tests.limits import HANG_S
from tests.runtime.stateful import SMALL, write_with_tokenizer
from tests.sampling import some
from tests.server.generation.test_handover import SECRET, asked, by_choice, pieces
from tests.server.live_server import Server, running_model
from tests.server.routes.test_llama_server import metrics

SEQUENCES = 3


@pytest.fixture(scope="module", params=some(SMALL, 3))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_tokenizer(request.param, tmp_path_factory.mktemp("states") / "small.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with octavo.load(path, device="cpu", max_sequences=SEQUENCES, n_ctx=512) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[Server]:
    with running_model(model, embeddings=True, secret=SECRET) as found:
        yield found


def body(i: int, *more: str) -> dict[str, Any]:
    """A request that begins as others do; `more` are replies and what is asked after them."""
    said = [
        "All begin with these words, which are more than two pages of bytes. " * 2 + f"Then comes {i}." * (i + 1),
        *more,
    ]
    turns = [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(said)]
    sampling = {"temperature": 0} if i % 2 else {"temperature": 1.0, "seed": i}
    return {"messages": turns, "max_tokens": 12, "ignore_eos": True, **sampling}


def text(server: Server, asked: dict[str, Any]) -> str:
    content: str = server.post("/v1/chat/completions", **asked)["choices"][0]["message"]["content"]
    return content


def together(server: Server, asked: list[dict[str, Any]]) -> list[str]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda one: text(server, one), asked))


def free(model: Model) -> tuple[int, int]:
    """Pages and slots that nothing holds or keeps, when the server has let go of its requests."""
    pool, end = model.engine.pool, time.monotonic() + HANG_S
    while pool.held and time.monotonic() < end:
        time.sleep(0.01)
    with model.engine.lock:
        model.engine.prefixes.clear()
    assert pool.states is not None
    return pool.empty, pool.states.free


def all_of(model: Model) -> tuple[int, int]:
    assert model.engine.pool.states is not None
    return model.engine.pool.n_pages, model.engine.pool.states.n_slots


@pytest.mark.few(1)
def test_conversations_together(server: Server, model: Model) -> None:
    asked = [body(i) for i in range(8)]
    first = together(server, asked)
    asked += [body(i, reply[: len(reply) // 2], "And then?") for i, reply in enumerate(first)]
    found = together(server, asked)
    assert found[:8] == first
    for one, reply in zip(asked, found, strict=True):
        free(model)
        assert text(server, one) == reply
    assert free(model) == all_of(model)


def test_the_next_turn_finds_a_state(server: Server, model: Model) -> None:
    free(model)
    first = text(server, body(1))
    answer = server.post("/v1/chat/completions", **body(1, "Something else" + first, "And?"))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


def test_clients_that_leave(server: Server, model: Model) -> None:
    for i in range(5):
        sock = server.connect()
        data = json.dumps({**body(i), "max_tokens": 300, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        sock.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
        if i % 2:
            sock.recv(100)
        sock.close()
    alone = text(server, body(9))
    assert free(model) == all_of(model)
    assert text(server, body(9)) == alone


@pytest.mark.few(1)
def test_too_few_pages_for_all(path: Path, server: Server, model: Model) -> None:
    if not page_bytes(model.engine.graph):
        pytest.skip("no layer attends, so that pages take no memory")
    memory = 8 * page_bytes(model.engine.graph) + slots_for(SEQUENCES) * state_bytes(model.engine.graph)
    asked = [{**body(i), "max_tokens": 120} for i in range(6)]
    with octavo.load(path, device="cpu", max_sequences=SEQUENCES, n_ctx=512, kv_memory=memory) as small:
        assert small.engine.pool.n_pages == 8
        with running_model(small) as few:
            found = together(few, asked)
            assert metrics(few)["octavo:num_preemptions_total"] > 0
    for one, reply in zip(asked, found, strict=True):
        free(model)
        assert text(server, one) == reply


def test_embeddings_beside_replies(server: Server, model: Model) -> None:
    texts = ["one", "a longer text " * 12, "x"]
    want = [np.array(v) for v in model.embed(texts, pooling="mean")]
    with ThreadPoolExecutor(4) as pool:
        replies = pool.map(lambda i: text(server, body(i)), range(3))
        found = server.post("/v1/embeddings", input=texts, pooling="mean")["data"]
        list(replies)
    for row, vector in zip(found, want, strict=True):
        np.testing.assert_allclose(row["embedding"], vector, rtol=1e-4, atol=1e-5)


def test_a_reply_goes_on_in_another_servers_hands(server: Server) -> None:
    for i in range(2):
        said = {**body(i), "n": 2, "stream": True}
        asked(server, "/v1/chat/completions", said)  # now the prompt is in the cache
        shown, told = pieces(asked(server, "/v1/chat/completions", said)[1])
        for at in range(1, len(told) + 1, 3):
            rest = pieces(asked(server, "/v1/chat/completions", said, begun=True, pieces=told[:at])[1])[0]
            assert by_choice(b"".join(rest)) == by_choice(b"".join(shown[at:]))
