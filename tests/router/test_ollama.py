"""Ollama's routes of several models: lists, names, how long models stay, and those of the hub that come and go."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session

from octavo.data import resolve
from octavo.router.catalog import in_cache
from octavo.router.front import ModelsFront
from tests.hub_server import Fault, Hub
from tests.router.live_models import served, serving
from tests.router.test_front import states
from tests.router.test_pulls import NAME, cached
from tests.server.live_server import Server
from tests.server.scripted_engine import until

ASK = {"messages": [{"role": "user", "content": "What is 12 times 7?"}], "options": {"temperature": 0}}
ANSWER = "12 times 7 is 84."


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, ModelsFront]]:
    other = shutil.copy(resolve("demo"), tmp_path_factory.mktemp("models") / "other.gguf")
    with serving([served("first", aliases=("default",)), served("second", str(other))], deletes=True) as found:
        yield found


def names(server: Server) -> list[str]:
    return [one["name"] for one in server.get("/api/tags")["models"]]


def told(server: Server, method: str, path: str, **body: Any) -> tuple[int, Any]:
    """Status of a response and what its body says, of several lines all."""
    status, _, data = server.send(method, path, body)
    return status, [json.loads(line) for line in data.splitlines()]


def test_models_are_listed_and_shown_without_being_loaded(front: tuple[Server, ModelsFront]) -> None:
    server, _ = front
    assert names(server) == ["first:latest", "default:latest", "second:latest"]
    shown = server.post("/api/show", model="second:latest")
    assert (shown["capabilities"], shown["details"]["family"]) == (["completion", "tools"], "qwen3")
    assert states(server)["second"] == "unloaded"
    assert server.get("/api/version")["version"].count(".") == 2
    assert told(server, "POST", "/api/show", model="third") == (
        404, [{"error": "model not found: unknown model 'third' (choices: first, second)"}])
    assert told(server, "POST", "/api/show") == (400, [{"error": 'no model is named: {"model": NAME}'}])


def test_a_chat_loads_its_model(front: tuple[Server, ModelsFront]) -> None:
    server, _ = front
    status, headers, data = server.send("POST", "/api/chat", {"model": "default:latest", **ASK})
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    *pieces, last = map(json.loads, data.splitlines())
    assert "".join(one["message"]["content"] for one in pieces) == ANSWER
    assert (last["model"], last["done"]) == ("first", True)
    rows = {one["name"]: one for one in server.get("/api/ps")["models"]}
    assert (rows["first:latest"]["size"] > 1 << 20, rows["first:latest"]["context_length"]) == (True, 1024)
    assert rows["first:latest"]["expires_at"].startswith("2318")
    assert told(server, "POST", "/api/generate", model="first", prompt="x", options={"no": 1}) == (
        400, [{"error": "options.no is not an option here"}])


def test_how_long_a_model_stays_is_of_the_last_request(front: tuple[Server, ModelsFront]) -> None:
    server, models = front
    model = models.models.models["first"]
    server.post("/api/chat", model="first", **ASK, keep_alive=0, stream=False)
    until(lambda: model.state == "sleeping")
    server.chat("Hi", model="first", max_tokens=1)
    assert (model.state, model.keep) == ("loaded", None)
    server.post("/api/chat", model="first", **ASK, keep_alive=0, stream=False)
    until(lambda: model.state == "sleeping")
    server.post("/models/load", model="first")
    until(lambda: model.state == "loaded")
    assert model.keep is None


@pytest.mark.slow
def test_how_long_a_model_stays(front: tuple[Server, ModelsFront]) -> None:
    server, models = front
    server.post("/api/chat", model="first", **ASK, keep_alive="1h", stream=False)
    (row,) = (one for one in server.get("/api/ps")["models"] if one["name"] == "first:latest")
    left = datetime.fromisoformat(row["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < left <= timedelta(hours=1)
    server.post("/api/chat", model="first", **ASK, keep_alive=0, stream=False)
    until(lambda: states(server)["first"] == "sleeping")
    loads = models.models.models["first"].loads
    for wrong in ("soon", True, [5]):
        status, (answer,) = told(server, "POST", "/api/chat", model="first", keep_alive=wrong)
        assert (status, answer["error"][:10]) == (400, "keep_alive")
    assert server.post("/api/generate", model="first", keep_alive=-1)["done_reason"] == "load"
    assert (states(server)["first"], models.models.models["first"].loads) == ("loaded", loads + 1)
    for path in ("/api/chat", "/api/generate"):
        assert server.post(path, model="first:latest", keep_alive="0s")["done_reason"] == "unload"
        until(lambda: states(server)["first"] == "unloaded")
    assert models.models.models["first"].loads == loads + 1


def test_a_copy_is_another_name(front: tuple[Server, ModelsFront]) -> None:
    server, _ = front
    assert server.send("POST", "/api/copy", {"source": "second", "destination": "me/mine:latest"})[0] == 200
    assert names(server)[-1] == "me/mine:latest"
    assert server.post("/api/chat", model="me/mine", **ASK, stream=False)["message"]["content"] == ANSWER
    assert server.chat("What is 12 times 7?", model="me/mine", temperature=0)["model"] == "second"
    assert told(server, "POST", "/api/copy", source="x", destination="y")[0] == 404
    assert told(server, "POST", "/api/copy", source="first", destination="second") == (
        400, [{"error": "'second' is a model already"}])
    assert told(server, "POST", "/api/copy", source="first", destination="a b")[0] == 400
    assert server.send("DELETE", "/api/delete", {"model": "me/mine"})[0] == 200
    assert names(server)[-1] == "second:latest"
    assert told(server, "POST", "/api/chat", model="me/mine", **ASK)[0] == 404


def test_models_that_are_not_of_the_cache_stay(front: tuple[Server, ModelsFront]) -> None:
    server, models = front
    path = Path(models.models.models["second"].known.engine.path)
    assert told(server, "DELETE", "/api/delete", model="second") == (400, [{
        "error": "second was named on the command line and is not in the hub's cache: it can't be removed here"}])
    assert path.exists()


@pytest.fixture
def hub_front(hub: Hub) -> Iterator[Server]:
    hub.repository("org/demo-GGUF", {"demo-Q4_K_M.gguf": Path(resolve("demo")).read_bytes()})
    with serving(cached, deletes=True) as (server, _):
        yield server
    close_session()  # its connections are to a hub that ends


def test_a_model_is_pulled_asked_and_deleted(hub_front: Server) -> None:
    server = hub_front
    status, lines = told(server, "POST", "/api/pull", name=f"hf.co/{NAME}")
    assert (status, lines[0], lines[-1]) == (200, {"status": "pulling manifest"}, {"status": "success"})
    assert all(one["digest"] == NAME and 0 <= one["completed"] <= one["total"] for one in lines[1:-1])
    (row,) = server.get("/api/tags")["models"]
    assert (row["name"], row["details"]["quantization_level"]) == (NAME, "F16")
    assert told(server, "POST", "/api/pull", model=NAME) == (200, [{"status": "success"}])
    assert server.post("/api/pull", model=NAME, stream=False) == {"status": "success"}
    assert server.post("/api/chat", model=f"hf.co/{NAME}", **ASK, stream=False)["message"]["content"] == ANSWER
    assert server.send("DELETE", "/api/delete", {"name": NAME})[0] == 200, "though it is loaded"
    assert (names(server), list(in_cache())) == ([], [])
    assert told(server, "DELETE", "/api/delete", model=NAME)[0] == 404


def test_a_pull_that_fails_says_so(hub_front: Server, hub: Hub) -> None:
    server = hub_front
    status, (error,) = told(server, "POST", "/api/pull", model="llama3.2")
    assert (status, error["error"][:31]) == (400, "'llama3.2' is not a hub name (a")
    hub.faults += [Fault("/cdn/", wrong=True)] * 10
    status, lines = told(server, "POST", "/api/pull", model=NAME)
    assert (status, [*lines[-1]]) == (200, ["error"])
    hub.faults += [Fault("/cdn/", wrong=True)] * 10
    status, (error,) = told(server, "POST", "/api/pull", model=NAME, stream=False)
    assert (status, error["error"].startswith(f"{NAME} can't be downloaded: ")) == (500, True)


def test_nothing_is_deleted_unless_the_server_allows_it(hub: Hub) -> None:
    hub.repository("org/demo-GGUF", {"demo-Q4_K_M.gguf": Path(resolve("demo")).read_bytes()})
    with serving(cached) as (server, _):
        assert server.post("/api/pull", model=NAME, stream=False) == {"status": "success"}
        want = "no model is removed here: start `octavo serve` with --allow-delete for that"
        assert told(server, "DELETE", "/api/delete", model=NAME) == (403, [{"error": want}])
        status, _, body = server.send("DELETE", f"/models?model={NAME}")
        assert (status, json.loads(body)["error"]["message"]) == (403, want)
        (row,) = server.get("/models")["data"]
        assert row["can_remove"] is False
        assert len(list(in_cache())) == 1
    close_session()
