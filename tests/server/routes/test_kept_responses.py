"""Responses that are kept: chains, ids, pages of items, the background, keys, restarts, and what is damaged."""

from __future__ import annotations

import json
import logging
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.errors import FileError
from octavo.runtime import Model
from octavo.server.engine.fake import FakeClient
from octavo.server.routes import response_store
from octavo.server.routes.response_store import Kept, ResponseStore
from tests.server.live_server import Server, running, running_model
from tests.server.routes.test_anthropic import events
from tests.server.scripted_engine import until

ASK: dict[str, Any] = {"temperature": 0, "max_output_tokens": 8}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def test_a_conversation_goes_on(client: openai.OpenAI, server: Server) -> None:
    first = client.responses.create(model="x", input="What is 3 plus 4?", **ASK)
    assert first.id.startswith("resp_")
    second = client.responses.create(model="x", input="And 12 times 7?", previous_response_id=first.id, **ASK)
    whole = [said("What is 3 plus 4?"), said(first.output_text, "assistant"), said("And 12 times 7?")]
    alone = server.post("/v1/responses", input=whole, **ASK)
    assert second.previous_response_id == first.id
    assert second.output_text == alone["output"][0]["content"][0]["text"]
    assert second.usage is not None
    assert second.usage.input_tokens == alone["usage"]["input_tokens"]
    third = client.responses.create(
        model="x", input=[{"role": "user", "content": [{"type": "input_text", "text": "Thanks"}]}],
        previous_response_id=second.id, instructions="Be kind.", **ASK,
    )
    items = client.responses.input_items.list(third.id, order="asc").data
    texts = [item.content[0].text for item in items]  # type: ignore[union-attr]
    assert texts == ["What is 3 plus 4?", first.output_text, "And 12 times 7?", second.output_text, "Thanks"]
    assert len({item.id for item in items}) == 5
    counted = server.post("/v1/responses/input_tokens", input="Thanks", previous_response_id=second.id,
                          instructions="Be kind.")
    assert third.usage is not None
    assert counted["input_tokens"] == third.usage.input_tokens


@pytest.mark.parametrize("given", [5, {}, None, [5], [None], [[[]]]])
def test_input_that_is_none_is_refused_in_a_conversation_too(
    client: openai.OpenAI, server: Server, given: object
) -> None:
    first = client.responses.create(model="x", input="What is 3 plus 4?", **ASK)
    for more in ({}, {"background": True}):
        body = {"model": "x", "input": given, "previous_response_id": first.id, **more}
        status, _, answer = server.send("POST", "/v1/responses", body)
        assert status == 400, answer
        assert b"input" in answer


def test_a_stream_is_kept_before_its_end_is_sent(client: openai.OpenAI, server: Server) -> None:
    with client.responses.stream(model="x", input="What is 3 plus 4?", temperature=0) as stream:
        first = next(event.response.id for event in stream if event.type == "response.created")
        final = stream.get_final_response()
    assert final.id == first
    assert client.responses.retrieve(first).output_text == final.output_text
    body = {"input": "And 1 plus 1?", "previous_response_id": first, "stream": True, **ASK}
    last = events(server.send("POST", "/v1/responses", body)[2])[-1][1]["response"]
    assert (last["previous_response_id"], last["store"]) == (first, True)
    assert client.responses.retrieve(last["id"]).model_dump(mode="json")["output"][0]["id"] == last["output"][0]["id"]


def test_retrieve_and_delete(client: openai.OpenAI, server: Server) -> None:
    made = client.responses.create(model="x", input="Hello", **ASK)
    assert made.store is True  # type: ignore[attr-defined]
    assert server.get(f"/responses/{made.id}") == json.loads(made.model_dump_json(exclude_unset=True))
    client.responses.delete(made.id)
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{made.id}' not found") as found:
            ask(made.id)
        assert (found.value.type, found.value.code) == ("invalid_request_error", None)
    with pytest.raises(openai.BadRequestError, match="Previous response with id") as wrong:
        client.responses.create(model="x", input="a", previous_response_id=made.id)
    assert (wrong.value.code, wrong.value.param) == ("previous_response_not_found", "previous_response_id")


def test_what_is_not_to_be_kept(client: openai.OpenAI) -> None:
    made = client.responses.create(model="x", input="Hello", store=False, **ASK)
    assert made.store is False  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_pages_of_items(server: Server, client: openai.OpenAI) -> None:
    made = client.responses.create(model="x", input=[said(str(i)) for i in range(5)], **ASK)  # type: ignore[misc]
    path = f"/v1/responses/{made.id}/input_items"
    page = server.get(f"{path}?limit=2")
    assert [one["content"][0]["text"] for one in page["data"]] == ["4", "3"]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, page["data"][0]["id"], page["data"][1]["id"])
    rest = server.get(f"{path}?limit=100&after={page['last_id']}")
    assert [one["content"][0]["text"] for one in rest["data"]] == ["2", "1", "0"]
    assert not rest["has_more"]
    assert len([*client.responses.input_items.list(made.id, limit=2)]) == 5
    for wrong in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_none"):
        status, _, answer = server.send("GET", f"{path}?{wrong}")
        assert status == 400
        assert json.loads(answer)["error"]["param"] == wrong.partition("=")[0]


def test_the_background(client: openai.OpenAI, server: Server) -> None:
    made = client.responses.create(model="x", input="What is 3 plus 4?", background=True, temperature=0)
    assert (made.status, made.output, made.background) == ("queued", [], True)
    until(lambda: client.responses.retrieve(made.id).status == "completed")
    found = client.responses.retrieve(made.id)
    plain = client.responses.create(model="x", input="What is 3 plus 4?", temperature=0)
    assert (found.output_text, found.usage) == (plain.output_text, plain.usage)
    after = client.responses.create(model="x", input="And?", previous_response_id=made.id, **ASK)
    assert after.previous_response_id == made.id
    assert client.responses.cancel(made.id).status == "completed"
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(plain.id)
    for more, param in (({"stream": True}, "background"), ({"store": False}, "background"), ({"input": []}, "input")):
        status, error = server.refused("/v1/responses", {"input": "x", "background": True, **more})
        assert (status, error["param"]) == (400, param)


def test_a_response_in_the_background_is_cancelled(model: Model) -> None:
    fake = FakeClient()
    with running(fake, model) as server:
        made = server.post("/v1/responses", input="x", background=True)
        until(lambda: server.service.metrics.replies == 1)
        status, _, answer = server.send("POST", f"/v1/responses/{made['id']}/cancel")
        assert (status, json.loads(answer)["status"]) == (200, "cancelled")
        until(lambda: server.service.metrics.replies == 0)
        status, error = server.refused("/v1/responses", {"input": "y", "previous_response_id": made["id"]})
        assert (status, error["message"]) == (400, f"Previous response with id '{made['id']}' is cancelled.")
        second = server.post("/v1/responses", input="x", background=True)
        until(lambda: server.service.metrics.replies == 1)
        assert server.send("DELETE", f"/v1/responses/{second['id']}")[0] == 200
        until(lambda: server.service.metrics.replies == 0)
        assert server.send("GET", f"/v1/responses/{second['id']}")[0] == 404


def test_a_response_in_the_background_that_fails(model: Model) -> None:
    with running(FakeClient([300]), model) as server:
        made = server.post("/v1/responses", input="x " * 9000, background=True)
        until(lambda: server.get(f"/v1/responses/{made['id']}")["status"] == "failed")
        error = server.get(f"/v1/responses/{made['id']}")["error"]
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length" in error["message"]


def test_keys_see_their_own(model: Model) -> None:
    with running(FakeClient([300]), model, keys=("one", "two")) as server:
        headers = {key: {"Authorization": f"Bearer {key}"} for key in ("one", "two")}
        made = json.loads(server.send("POST", "/v1/responses", {"input": "x", **ASK}, headers["one"])[2])
        place = f"/v1/responses/{made['id']}"
        for method, path in (("GET", place), ("DELETE", place), ("GET", f"{place}/input_items"),
                             ("POST", f"{place}/cancel")):
            assert server.send(method, path, headers=headers["two"])[0] == 404
        body = {"input": "x", "previous_response_id": made["id"]}
        assert server.refused("/v1/responses", body, **headers["two"])[0] == 400
        assert server.send("GET", place)[0] == 401
        assert server.send("GET", place, headers=headers["one"])[0] == 200
        assert server.send("DELETE", place, headers=headers["one"])[0] == 200


def test_a_file_is_there_after_a_restart(model: Model, tmp_path: Path) -> None:
    options = {"data_dir": str(tmp_path)}
    with running_model(model, **options) as server:
        made = server.post("/v1/responses", input="What is 3 plus 4?", **ASK)
        wanted = server.post("/v1/responses", input="And?", previous_response_id=made["id"], **ASK)["output"]
    with running(FakeClient(), model, **options) as server:
        assert server.get(f"/v1/responses/{made['id']}") == made
        lost = server.post("/v1/responses", input="x", background=True)
    with running_model(model, **options) as server:
        got = server.post("/v1/responses", input="And?", previous_response_id=made["id"], **ASK)["output"]
        assert got[0]["content"] == wanted[0]["content"]
        found = server.get(f"/v1/responses/{lost['id']}")
        assert (found["status"], found["error"]["code"]) == ("failed", "server_ending")


def test_a_killed_server_leaves_no_response_in_progress(tmp_path: Path) -> None:
    store = ResponseStore(str(tmp_path))
    store.put("resp_1", "", Kept(b'{"id": "resp_1", "status": "in_progress"}', b"[]"), running=True)
    store.close()
    again = ResponseStore(str(tmp_path))
    kept = again.get("resp_1", "")
    assert kept is not None
    assert json.loads(kept.response)["status"] == "failed"
    again.close()


def test_a_folder_is_one_servers(tmp_path: Path) -> None:
    store = ResponseStore(str(tmp_path / "new" / "folder"))
    with pytest.raises(FileError, match="another server keeps its data there"):
        ResponseStore(str(tmp_path / "new" / "folder"))
    store.close()
    ResponseStore(str(tmp_path / "new" / "folder")).close()
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="can't be written"):
        ResponseStore(str(tmp_path / "file"))


def test_what_is_kept_is_the_users_alone(tmp_path: Path) -> None:
    old = tmp_path / response_store.NAME
    old.touch(0o644)
    store = ResponseStore(str(tmp_path))
    store._base.execute("pragma journal_mode = wal")
    store.put("resp_1", "", Kept(b"{}", b"[]"))
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    store.close()
    assert set(modes) == {"lock", old.name, f"{old.name}-wal", f"{old.name}-shm"}
    assert set(modes.values()) == {0o600}


def test_a_damaged_file_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / response_store.NAME).write_bytes(b"no base of this kind" * 1000)
    with caplog.at_level(logging.WARNING, "octavo"):
        store = ResponseStore(str(tmp_path))
    assert "is damaged" in caplog.text
    store.put("resp_1", "", Kept(b"{}", b"[]"))
    store.close()
    again = ResponseStore(str(tmp_path))
    assert again.get("resp_1", "") == Kept(b"{}", b"[]")
    again.close()
    assert len([*tmp_path.glob("responses.sqlite*")]) == 2


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResponseStore(most=3, most_bytes=100)
    for i in range(5):
        store.put(f"resp_{i}", "", Kept(b"{}", b"[]"))
    assert [store.get(f"resp_{i}", "") is not None for i in range(5)] == [False, False, True, True, True]
    store.put("resp_large", "", Kept(b"x" * 95, b"[]"))
    assert store.get("resp_4", "") is None
    assert store.get("resp_large", "") is not None
    store.put("resp_larger", "", Kept(b"x" * 101, b"[]"))
    assert store.get("resp_larger", "") is None
    assert store.get("resp_large", "") is not None
    later = time.time() + response_store.KEPT_S + 1
    monkeypatch.setattr(response_store.time, "time", lambda: later)
    assert store.get("resp_large", "") is None
    store.put("resp_new", "", Kept(b"x" * 50, b"[]"))
    assert store.get("resp_new", "") is not None
    store.close()
