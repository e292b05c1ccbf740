"""A replica on this machine: the server's own answers, and what becomes of them where its engine ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from octavo.batch import replica as module
from octavo.batch.replica import LIMITS, LocalReplica, ReplicaDiedError
from octavo.batch.request_line import CHAT, COMPLETIONS
from octavo.server.engine.client import EngineDiedError
from octavo.server.engine.engine_protocol import Ready
from octavo.server.engine.fake import INFO, FakeClient
from octavo.server.generation.service import Service
from octavo.server.http.inner_call import Answer
from octavo.server.serve_options import EngineOptions, ServerOptions

BODY = b'{"prompt": "a", "max_tokens": 3}'
Use = Callable[[LocalReplica, FakeClient], Coroutine[Any, Any, Any]]


def used(use: Use, tokens: range = range(300, 400)) -> Any:
    """What `use` gives of a replica whose engine computes nothing."""
    client = FakeClient(tokens)
    replica = LocalReplica(EngineOptions("demo"), ServerOptions("demo", limits=LIMITS), make=lambda: client)

    async def main() -> Any:
        await replica.start()
        try:
            return await use(replica, client)
        finally:
            await replica.close()

    return asyncio.run(main())


def test_an_answer_is_the_servers() -> None:
    found: Answer = used(lambda replica, client: replica.answer(COMPLETIONS, BODY, "req_7"))
    assert (found.status, found.request_id) == (200, "req_7")
    assert json.loads(found.body)["usage"]["completion_tokens"] == 3
    found = used(lambda replica, client: replica.answer(CHAT, b'{"messages": 1}', "req_8"))
    assert (found.status, json.loads(found.body)["error"]["param"]) == (400, "messages")


def test_an_engine_that_ends_takes_its_answers_along() -> None:
    async def use(replica: LocalReplica, client: FakeClient) -> None:
        asking = asyncio.ensure_future(replica.answer(COMPLETIONS, BODY, "req_1"))
        while not client.under_way:
            await asyncio.sleep(0)
        client.died("it was killed")
        await asking

    with pytest.raises(ReplicaDiedError, match="it was killed"):
        used(use, tokens=range(0))


def test_what_is_asked_before_an_engine_is_back_waits_for_it() -> None:
    async def use(replica: LocalReplica, client: FakeClient) -> Answer:
        client.died("it was killed")
        asking = asyncio.ensure_future(replica.answer(COMPLETIONS, BODY, "req_1"))
        await asyncio.sleep(0.01)
        assert not asking.done()
        client.deliver(Ready(INFO))
        return await asking

    assert used(use).status == 200


def test_an_engine_that_does_not_come_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.001)

    async def use(replica: LocalReplica, client: FakeClient) -> Answer:
        client.died("no memory")
        return await replica.answer(COMPLETIONS, BODY, "req_1")

    with pytest.raises(EngineDiedError, match="no memory"):
        used(use)


def test_a_fault_of_ours_is_one_requests(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*given: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Service, "require_model", broken)
    found: Answer = used(lambda replica, client: replica.answer(COMPLETIONS, BODY, "req_1"))
    assert (found.status, json.loads(found.body)["error"]["message"]) == (500, "internal error: RuntimeError")
    assert "a bug" in caplog.text
