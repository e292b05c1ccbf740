"""Models of the hub that are downloaded and removed while the front serves, from a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session

from octavo.data import resolve
from octavo.router.catalog import Catalog, KnownModel, in_cache
from tests.hub_server import Fault, Hub
from tests.router.live_models import served, serving
from tests.server.live_server import Server
from tests.server.scripted_engine import until

NAME = "org/demo-GGUF:Q4_K_M"


def cached() -> Catalog:
    """What `octavo serve` without models finds."""
    return Catalog([KnownModel(one.engine, one.server, found.source) for found in in_cache()
                    for one in [served(found.name, found.path)]])


class Listener:
    """Events of /models/sse."""

    def __init__(self, server: Server) -> None:
        self._socket = server.connect()
        self._socket.sendall(b"GET /models/sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self._data = self._socket.recv(1 << 16)

    def until(self, what: str) -> list[dict[str, Any]]:
        """All events up to the first one of a kind."""
        while not (found := self._found()) or found[-1]["event"] != what:
            self._data += self._socket.recv(1 << 16)
        return found

    def _found(self) -> list[dict[str, Any]]:
        lines = self._data.replace(b"\r\n", b"\n").split(b"\n")
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ") and line.endswith(b"}")]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server(hub: Hub) -> Iterator[Server]:
    hub.repository("org/demo-GGUF", {"demo-Q4_K_M.gguf": Path(resolve("demo")).read_bytes()})
    with serving(cached, deletes=True) as (server, _):
        yield server
    close_session()  # its connections are to a hub that ends


def test_a_model_is_pulled_served_and_removed(server: Server) -> None:
    assert server.get("/models")["data"] == []
    status, error = server.refused("/v1/completions", {"model": NAME, "prompt": "a"})
    assert (status, error["code"]) == (404, "model_not_found")
    with closing(Listener(server)) as listener:
        assert server.post("/models", model=NAME) == {"success": True}
        told = listener.until("download_finished")
    assert told[0] == {"model": NAME, "event": "model_status", "data": {"status": "downloading"}}
    progress = [one["data"][NAME] for one in told if one["event"] == "download_progress"]
    assert progress
    assert all(0 <= one["done"] <= one["total"] for one in progress)
    (row,) = server.get("/models")["data"]
    assert (row["id"], row["source"], row["can_remove"]) == (NAME, "cache", True)
    assert server.refused("/models", {"model": NAME})[1]["message"] == f"model '{NAME}' is there already"
    assert server.chat("What is 12 times 7?", model=NAME, temperature=0)["model"] == NAME
    status, _, body = server.send("DELETE", f"/models?model={NAME}")
    assert (status, json.loads(body)["error"]["message"]) == (409, f"{NAME} is loaded: unload it first")
    server.post("/models/unload", model=NAME)
    until(lambda: server.get("/models")["data"][0]["status"]["value"] == "unloaded")
    status, _, body = server.send("DELETE", f"/models?model={NAME}")
    assert (status, json.loads(body)) == (200, {"success": True})
    assert server.get("/models")["data"] == []
    assert list(in_cache()) == []


def test_a_pull_that_can_not_be_is_refused_or_told(server: Server, hub: Hub) -> None:
    for name, words in (
        ("nonsense", "'nonsense' is not a hub name (allowed: ORG/REPO"),
        ("org/none", "org/none can't be downloaded: "),
        ("org/demo-GGUF:Q8", "org/demo-GGUF:Q8 can't be downloaded: org/demo-GGUF has no model Q8 (choices: Q4_K_M)"),
    ):
        status, error = server.refused("/models", {"model": name})
        assert (status, error["param"]) == (400, "model")
        assert error["message"].startswith(words)
    hub.faults += [Fault("/cdn/", wrong=True)] * 10
    with closing(Listener(server)) as listener:
        server.post("/models", model=NAME)
        assert listener.until("download_failed")[-1]["data"]["why"]
    until(lambda: server.get("/models")["data"] == [])
    assert server.get("/models")["can_pull"] is True


def test_models_of_a_command_line_are_neither_pulled_nor_removed() -> None:
    with serving([served("a"), served("b")], pulls=False) as (server, _):
        assert server.get("/v1/models")["can_pull"] is False
        status, error = server.refused("/models", {"model": NAME})
        assert status == 400
        assert error["message"].startswith("models were named on the command line, so none is downloaded here")
        assert server.send("DELETE", "/models?model=a")[0] == 400
