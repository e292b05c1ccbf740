"""Several models behind one socket, each in processes of its own: routes, names, kills, errors."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from octavo.data import resolve
from octavo.router.front import ModelsFront
from octavo.router.models import SPARE
from tests.limits import HANG_S
from tests.router.live_models import OPTIONS, children_of, engine_of, kill, pid_of, served, serving
from tests.server.live_server import Server, events
from tests.server.scripted_engine import until

QUESTION = {"messages": [{"role": "user", "content": "What is 12 times 7?"}], "temperature": 0}
ANSWER = "12 times 7 is 84."


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, ModelsFront]]:
    """The demo model under two names, one with an alias; a model that is too large; and a file that is none."""
    folder = tmp_path_factory.mktemp("models")
    broken = folder / "broken.gguf"
    broken.write_bytes(b"GGUF but no more")
    other = shutil.copy(resolve("demo"), folder / "other.gguf")
    known = [
        served("first", aliases=("default",)), served("second", str(other)),
        served("large", kv_memory=8 << 30), served("broken", str(broken)),
    ]
    with serving(known, memory=2 << 30) as found:
        yield found


def states(server: Server) -> dict[str, str]:
    return {one["id"]: one["status"]["value"] for one in server.get("/models")["data"]}


def test_a_request_names_its_model_which_is_loaded_for_it(front: tuple[Server, ModelsFront]) -> None:
    server, _ = front
    for name, shown in (("first", "first"), ("second", "second"), ("default", "first")):
        reply = server.chat("What is 12 times 7?", model=name, temperature=0)
        assert (reply["model"], reply["choices"][0]["message"]["content"]) == (shown, ANSWER)
    body = {**QUESTION, "model": "second", "stream": True}
    status, _, stream = server.send("POST", "/v1/chat/completions", body)
    pieces = [one["choices"][0]["delta"].get("content") or "" for one in events(stream)[:-1] if one["choices"]]
    assert (status, "".join(pieces)) == (200, ANSWER)
    assert server.post("/tokenize", model="first", content="12")["tokens"]
    assert server.get("/slots?model=first")
    assert server.get("/props?model=second")["model_alias"] == "second"


def test_models_are_told_of_before_and_after_they_are_loaded(front: tuple[Server, ModelsFront]) -> None:
    server, _ = front
    server.chat("Hi", model="first", max_tokens=1)
    rows = {one["id"]: one for one in server.get("/v1/models")["data"]}
    assert [*rows] == ["first", "second", "large", "broken"]
    assert rows["first"]["aliases"] == ["default", "first"]
    assert rows["first"]["meta"]["n_ctx"] == rows["first"]["max_model_len"] > 0
    assert rows["first"]["memory"]["caches"] <= 16 << 20
    assert rows["large"]["status"] == {"value": "unloaded", "args": []}
    assert server.get("/v1/models/default")["id"] == "first"
    assert server.get("/props")["role"] == "router"
    anthropic = server.get("/v1/models", **{"anthropic-version": "2023-06-01"})
    assert (anthropic["first_id"], anthropic["last_id"], anthropic["data"][0]["type"]) == ("first", "broken", "model")
    assert server.get("/health") == {"status": "ok"}
    status, headers, page = server.send("GET", "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<select" in page
    assert "/v1/chat/completions" in server.get("/openapi.json")["paths"]


@pytest.mark.parametrize(("body", "status", "code", "words"), [
    ({"model": "secnd"}, 404, "model_not_found", "unknown model 'secnd'; did you mean 'second'?"),
    ({"model": "gpt-4o"}, 404, "model_not_found", "unknown model 'gpt-4o' (choices: broken, first, large, second)"),
    ({}, 400, None, "no model is named: set the field `model` to one of: broken, first, large, second"),
    ({"model": 5}, 400, None, "the body is not an object whose `model` is a string: Expected `str | null`, got `int` - "
                              "at `$.model`"),
    (b"[1]", 400, None, "the body is not an object whose `model` is a string: Expected `object`, got `array`"),
    (b'{"model": "first", ', 400, None, "the body is not valid JSON: "),
    ({"model": "large"}, 400, "model_too_large", "large needs at least 8."),
    ({"model": "broken"}, 500, "model_not_loaded", "broken can't be loaded: "),
])
def test_what_is_refused(front: tuple[Server, ModelsFront], body: Any, status: int, code: str, words: str) -> None:
    server, _ = front
    body = {**QUESTION, **body} if isinstance(body, dict) else body
    found, error = server.refused("/v1/chat/completions", body)
    assert (found, error["code"]) == (status, code)
    assert error["message"].startswith(words), error
    assert code != "model_too_large" or "; --memory is 2G: a smaller --kv-memory" in error["message"]


def test_a_route_that_is_not_there_loads_nothing(front: tuple[Server, ModelsFront]) -> None:
    server, models = front
    loads = models.models.models["second"].loads
    if states(server)["second"] != "unloaded":
        server.post("/models/unload", model="second")
    until(lambda: states(server)["second"] == "unloaded")
    assert server.refused("/nosuch", {"model": "second"})[1]["message"] == "no route /nosuch"
    assert models.models.models["second"].loads == loads


def test_a_method_that_a_route_does_not_know_is_told_with_those_that_it_knows(
    front: tuple[Server, ModelsFront]
) -> None:
    server, _ = front
    for method, path, allowed in (
        ("GET", "/v1/chat/completions", "POST"), ("GET", "/api/chat?model=second", "POST"),
        ("DELETE", "/lora-adapters", "GET, HEAD, POST"), ("POST", "/tokenizer_info", "GET, HEAD"),
    ):
        status, headers, body = server.send(method, path, {} if method == "POST" else None)
        assert (status, headers["allow"]) == (405, allowed), path
        assert f"{method} is not allowed for {path.partition('?')[0]}" in body.decode()


def test_errors_are_of_the_routes_api(front: tuple[Server, ModelsFront]) -> None:
    server, _ = front
    status, _, body = server.send("POST", "/v1/messages", {**QUESTION, "model": "no", "max_tokens": 5})
    assert (status, json.loads(body)["error"]["type"]) == (404, "not_found_error")
    assert server.refused("/tokenize", {"model": "no", "content": "x"})[1]["code"] == 404
    status, error = server.refused("/v1/chat/completions", {"model": "first", "messages": []})
    assert (status, error["param"]) == (400, "messages"), "the model's server says so"


def test_loading_and_unloading_by_route(front: tuple[Server, ModelsFront]) -> None:
    server, _ = front
    if states(server)["first"] != "unloaded":
        assert server.post("/models/unload", model="first") == {"success": True}
    until(lambda: states(server)["first"] == "unloaded")
    error = server.refused("/models/unload", {"model": "first"})[1]
    assert (error["message"], error["code"]) == ("model is not running", "model_not_loaded")
    status, _, body = server.send("DELETE", "/models?model=first")
    assert (status, json.loads(body)["error"]["message"]) == (
        400, "first was named on the command line and is not in the hub's cache: it can't be removed here")
    status, error = server.refused("/v1/chat/completions?autoload=false", {**QUESTION, "model": "first"})
    assert (status, error["code"]) == (400, "model_not_loaded")
    assert server.post("/models/load", model="first") == {"success": True}
    assert server.refused("/models/load", {"model": "first"})[1]["message"] == "model is already running"
    until(lambda: states(server)["first"] == "loaded")
    for path in ("load", "unload"):
        assert server.refused(f"/models/{path}", {"model": "x"})[0] == 404
        assert server.refused(f"/models/{path}", {})[1]["param"] == "model"


def test_events_are_a_stream(front: tuple[Server, ModelsFront]) -> None:
    server, _ = front
    found: list[Any] = []
    with server.connect() as listening:
        listening.sendall(b"GET /models/sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"text/event-stream" in listening.recv(1 << 16)
        if states(server)["second"] == "loaded":
            server.post("/models/unload", model="second")
            until(lambda: states(server)["second"] == "unloaded")
        server.chat("Hi", model="second", max_tokens=1)
        data = b""
        while not (found and found[-1]["data"].get("status") == "loaded" and found[-1]["model"] == "second"):
            data += listening.recv(1 << 16)
            lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ") and line.endswith(b"}")]
            found = [json.loads(line) for line in lines]
    mine = [one for one in found if one["model"] == "second"]
    assert all(one["event"] == "model_status" for one in mine)
    progress = [one["data"]["progress"] for one in mine if "progress" in one["data"]]
    assert all(0 <= one["value"] <= 1 for one in progress)
    assert mine[-1]["data"]["info"]["id"] == "second"


def test_an_engine_that_is_killed_takes_no_other_with_it(front: tuple[Server, ModelsFront]) -> None:
    server, models = front
    for name in ("first", "second"):
        server.chat("Hi", model=name, max_tokens=1)
    other = pid_of(models, "second")
    kill(engine_of(pid_of(models, "first")))
    assert server.chat("What is 12 times 7?", model="second", temperature=0)["model"] == "second"
    reply = server.chat("What is 12 times 7?", model="first", temperature=0)
    assert reply["choices"][0]["message"]["content"] == ANSWER
    assert pid_of(models, "second") == other


def test_a_server_that_is_killed_is_started_again_by_the_next_request(front: tuple[Server, ModelsFront]) -> None:
    server, models = front
    for name in ("first", "second"):
        server.chat("Hi", model=name, max_tokens=1)
    other, failures = pid_of(models, "second"), models.models.models["first"].failures
    kill(pid_of(models, "first"))
    until(lambda: states(server)["first"] == "unloaded")
    row = server.get("/v1/models/first")
    assert (row["failures"], row["status"]["failed"]) == (failures + 1, True)
    assert row["status"]["why"] == "its process was killed by SIGKILL"
    assert server.chat("Hi", model="first", max_tokens=1)["model"] == "first"
    assert pid_of(models, "second") == other


@pytest.mark.few(1)
@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate"])
def test_a_stream_goes_on_when_its_server_is_killed(front: tuple[Server, ModelsFront], path: str) -> None:
    server, models = front
    body = {"model": "first", "prompt": "Tell me a story.", "stream": True}
    options = {"temperature": 0, "ignore_eos": True}
    is_ollamas = path == "/api/generate"
    body |= {"raw": True, "options": {**options, "num_predict": 60}} if is_ollamas else {**options, "max_tokens": 60}

    def text(data: bytes) -> str:
        if is_ollamas:
            return "".join(json.loads(line)["response"] for line in data.splitlines())
        return "".join(one["choices"][0]["text"] for one in events(data)[:-1])

    wanted = text(server.send("POST", path, body)[2])
    found = list[bytes]()
    asking = Thread(target=lambda: found.append(server.send("POST", path, body)[2]))
    asking.start()
    until(lambda: models.models.models["first"].answering > 0)
    kill(pid_of(models, "first"))
    asking.join(HANG_S)
    assert text(found[0]) == wanted


def test_metrics_of_all(front: tuple[Server, ModelsFront]) -> None:
    server, _ = front
    server.chat("Hi", model="first", max_tokens=1)
    text = server.send("GET", "/metrics")[2].decode()
    assert 'octavo:model_loaded{model="first"} 1.0' in text
    assert 'octavo:model_loaded{model="broken"} 0.0' in text
    assert "octavo:memory_limit_bytes 2.147483648e+09" in text
    assert 'octavo:prefix_cache_queries_total{model="first"}' in text


def taken_by(pid: int) -> int:
    """The proportional size of a process."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:"))


def test_what_is_held_is_what_its_processes_take(front: tuple[Server, ModelsFront]) -> None:
    """Proportional sizes of all processes of a model, as the system counts them, are within what it asked for."""
    server, models = front
    server.chat("Tell me a story. " * 20, model="first", max_tokens=20)
    pid = pid_of(models, "first")
    assert 0 < sum(map(taken_by, (pid, *children_of(pid)))) <= models.models.models["first"].held


def test_a_model_is_loaded_by_a_process_that_waits() -> None:
    with serving([served("first"), served("second")], memory=1 << 30) as (server, front):
        until(lambda: front.models._spare is not None)
        waiting = front.models._spare
        assert waiting is not None
        pid, sizes = waiting.process.pid, [0]
        while sizes[-1] == 0 or len(sizes) < 4 or sizes[-1] > sizes[-4]:  # until it and its engine have imported all
            time.sleep(0.1)
            sizes.append(sum(map(taken_by, (pid, *children_of(pid)))))
        assert sizes[-1] <= SPARE
        said = server.post("/v1/chat/completions", **QUESTION, model="first")
        assert said["choices"][0]["message"]["content"] == ANSWER
        assert pid_of(front, "first") == pid
        until(lambda: front.models._spare is not None)
        assert front.models._spare is not waiting


def test_keys_are_needed_for_all_but_health() -> None:
    keyed = replace(OPTIONS, keys=("secret",))
    known = [served("first"), served("second")]
    known = [replace(one, server=replace(one.server, keys=("secret",))) for one in known]
    with serving(known, options=keyed) as (server, _):
        for path in ("/models", "/models/sse", "/metrics", "/props"):
            assert server.send("GET", path)[0] == 401
        for path in ("/models/load", "/models/unload", "/v1/chat/completions"):
            assert server.refused(path, {"model": "first"})[0] == 401
        assert server.get("/health") == {"status": "ok"}
        key = {"Authorization": "Bearer secret"}
        status, _, body = server.send("POST", "/v1/chat/completions", {**QUESTION, "model": "first"}, key)
        assert (status, json.loads(body)["model"]) == (200, "first")
        assert server.get("/models", **key)["data"][0]["meta"]["n_vocab"] > 0


def test_one_model_needs_no_name_and_sleeps() -> None:
    with serving([served("only")], idle=0.3) as (server, models):
        assert server.chat("What is 12 times 7?", temperature=0)["choices"][0]["message"]["content"] == ANSWER
        pid = pid_of(models, "only")
        until(lambda: states(server)["only"] == "sleeping")
        assert not os.path.exists(f"/proc/{pid}")
        assert server.get("/slots?autoload=true"), "it wakes"


@pytest.mark.slow
def test_conversations_go_on_from_disk_after_sleep_and_swap(tmp_path: Path) -> None:
    known = [served(name, cache_disk=1 << 30, cache_dir=str(tmp_path)) for name in ("first", "second")]

    def ask(server: Server, prompt: str) -> tuple[str, int]:
        reply = server.post("/completion", model="first", prompt=prompt, n_predict=6, temperature=0)
        return reply["content"], reply["timings"]["cache_n"]

    slept, swapped = ("".join(f"{word} {i} times 7 is {7 * i}. " for i in range(40)) for word in ("So", "But"))
    with serving(known[:1], idle=0.3) as (server, models):
        text, _ = ask(server, slept)
        need = models.models.models["first"].held
        until(lambda: states(server)["first"] == "sleeping")
        again, cached = ask(server, slept)
        assert (again, cached >= 64) == (text, True)
    with serving(known, memory=need * 3 // 2) as (server, models):
        text, _ = ask(server, swapped)
        server.chat("Hi", model="second", max_tokens=1)
        assert states(server) == {"first": "unloaded", "second": "loaded"}
        again, cached = ask(server, swapped)
        assert (again, cached >= 64) == (text, True)


def test_the_log_has_names_and_what_clients_ask_for(capfd: pytest.CaptureFixture[str]) -> None:
    logged = replace(OPTIONS, log_requests=True)
    with serving([replace(one, server=replace(logged, name=one.name)) for one in (served("50%"),)]) as (server, _):
        server.chat("Hi", max_tokens=1)
    lines = [line for line in capfd.readouterr().err.splitlines() if " request " in line]
    assert [line.startswith("octavo: INFO: 50%: ") for line in lines] == [True]
    assert "/v1/chat/completions" in lines[0]
