"""Through a front of models: responses by their ids, batches of lines for several models, and what is not served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import openai
import pytest

from octavo.router.front import ModelsFront
from tests.batch.served.test_batches import CHAT, ended, jsonl, line, lines_of, made
from tests.router.live_models import OPTIONS, served, serving
from tests.server.live_server import Server
from tests.server.scripted_engine import until


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, ModelsFront]]:
    """The demo model under two names, with room for both."""
    options = replace(OPTIONS, data_dir=str(tmp_path_factory.mktemp("data")))
    with serving([served("first"), served("second")], memory=2 << 30, options=options) as found:
        yield found


@pytest.fixture(scope="module")
def client(front: tuple[Server, ModelsFront]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{front[0].url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.mark.slow
def test_a_conversation_goes_on_with_another_model_and_after_an_unload(
    front: tuple[Server, ModelsFront], client: openai.OpenAI
) -> None:
    server, _ = front
    first = client.responses.create(model="first", input="What is 3 plus 4?", temperature=0)
    second = client.responses.create(
        model="second", input="What is 12 times 7?", previous_response_id=first.id, temperature=0
    )
    assert (first.model, second.model, second.previous_response_id) == ("first", "second", first.id)
    server.post("/models/unload", model="second")
    until(lambda: all(one["status"]["value"] == "unloaded" for one in server.get("/models")["data"]
                      if one["id"] == "second"))
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert len(client.responses.input_items.list(second.id).data) == 3
    later = client.responses.create(
        model="first", input="Thanks", previous_response_id=second.id, temperature=0, stream=True
    )
    last = list(later)[-1]
    assert last.type == "response.completed"
    assert client.responses.retrieve(last.response.id).output_text == last.response.output_text
    queued = client.responses.create(model="first", input="What is 3 plus 4?", background=True, temperature=0)
    until(lambda: client.responses.retrieve(queued.id).status == "completed")
    assert client.responses.retrieve(queued.id).output_text == first.output_text


def test_a_batch_of_lines_for_two_models(front: tuple[Server, ModelsFront], client: openai.OpenAI) -> None:
    asked = [line(i, f"What is {i} plus {i}?", model=("first", "second")[i % 2]) for i in range(6)]
    done = ended(client, made(client, jsonl(*asked, line(6, model="third"))).id)
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 6, 1)
    found = lines_of(client, done.output_file_id)
    assert [found[f"r{i}"]["response"]["body"]["model"] for i in range(6)] == ["first", "second"] * 3
    alone = front[0].post(CHAT, **asked[4]["body"])
    assert found["r4"]["response"]["body"]["choices"][0]["message"] == alone["choices"][0]["message"]
    failed = lines_of(client, done.error_file_id)["r6"]["response"]
    assert (failed["status_code"], failed["body"]["error"]["code"]) == (404, "model_not_found")


def test_what_is_not_served(front: tuple[Server, ModelsFront]) -> None:
    server, _ = front
    for path, code in (("/v1/audio/speech", "not_served"), ("/v1/fim/completions", "infill_not_supported")):
        status, error = server.refused(path, {"model": "first", "prompt": "x", "input": "x"})
        assert (status, error["code"]) == (501, code)
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    assert server.send("POST", "/v1/images/edits", b"--b--", form)[0] == 501
    status, error = server.refused("/infill", {"model": "second", "input_prefix": "x", "input_suffix": "y"})
    assert (status, error["code"]) == (501, 501)
    assert "second can't fill in the middle" in error["message"]
    assert json.loads(server.send("GET", "/v1/responses/resp_none")[2])["error"]["message"].endswith("not found.")
