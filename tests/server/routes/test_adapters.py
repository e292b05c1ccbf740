"""Adapters by name per request, over HTTP: chosen, listed, scaled, loaded and unloaded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

import octavo
from octavo.backends.cpu import CpuBackend
from octavo.runtime.engine.engine_config import EngineConfig
from octavo.runtime.loading import open_model
from tests.models.adapters import factors, write_lora_gguf, write_peft
from tests.runtime import tiny
from tests.runtime.tiny import ALPHABET, N_EMBD, N_FF, N_HEAD, N_VOCAB
from tests.server.live_server import Server, running, running_model
from tests.server.thread_client import ThreadClient

LETTERS = {"a": 1, "b": 2, "c": 3}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Adapters with each of which the alphabet is said otherwise."""
    folder, found = tmp_path_factory.mktemp("adapters"), {}
    for name, seed in LETTERS.items():
        a, b = factors(N_VOCAB, N_EMBD, 4, seed)
        pairs = {"output.weight": (a, 100 * b), "blk.0.ffn_up.weight": factors(N_FF, N_EMBD, 4, seed)}
        found[name] = str(write_lora_gguf(folder / f"{name}.gguf", pairs, "qwen3"))
    modules = {"model.layers.0.self_attn.q_proj": factors(N_HEAD * tiny.HEAD_DIM, N_EMBD)}
    found["peft"] = str(write_peft(folder / "peft", modules))
    return found


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.write(tmp_path_factory.mktemp("model") / "letters.gguf", weights=tiny.alphabet(endless=True))


@pytest.fixture(scope="module")
def texts(letters: str, paths: dict[str, str]) -> dict[str, str]:
    """What the model says with each adapter, loaded with it alone."""
    found = {}
    for name in ("", *LETTERS):
        with octavo.load(letters, device="cpu", threads=2, lora=paths[name] if name else None) as model:
            found[name] = str(model.generate("hi", temperature=0.0, max_tokens=20))
    return found


@pytest.fixture(scope="module")
def server(letters: str, paths: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = EngineConfig(n_ctx=128, max_sequences=8, max_loras=5)
    with open_model(letters, [CpuBackend(threads=2)], config) as model:
        client = ThreadClient(model)
        for name in ("a", "b"):
            client.loop.adapters.load(client.loop.adapters.read(name, paths[name]))
        slots = str(tmp_path_factory.mktemp("slots"))
        with running(client, model, loads_adapters=True, slot_path=slots) as found:
            yield found


def said(server: Server, model: str | None = None, **more: Any) -> str:
    answer = server.chat("hi", temperature=0, max_tokens=20, **more, **({} if model is None else {"model": model}))
    return str(answer["choices"][0]["message"]["content"])


def test_each_request_has_its_own(server: Server, texts: dict[str, str]) -> None:
    """At once, by all ways to name one."""
    assert texts[""] == ALPHABET[:20]
    assert len(set(texts.values())) == 4
    ways: list[tuple[str, dict[str, Any]]] = [
        ("", {}), ("a", {"model": "a"}), ("b", {"model": "demo:b"}), ("a", {"lora": "a"}), ("b", {"lora": [{"id": 1}]}),
        ("", {"model": "a", "lora": []}), ("", {"model": "demo"}), ("b", {"lora": [{"name": "b", "scale": 1.0}]}),
        ("", {"lora": [{"id": 0, "scale": 0}]}), ("a", {"model": "a", "stream": False}),
    ]
    with ThreadPoolExecutor(len(ways)) as pool:
        found = list(pool.map(lambda way: said(server, **way[1]), ways * 3))
    assert found == [texts[name] for name, _ in ways] * 3


def test_no_salt_names_an_adapter(server: Server, texts: dict[str, str]) -> None:
    """Neither the base model finds an adapter's pages by one, nor others those that it left there."""
    assert said(server, "a") == texts["a"]
    client = server.service.client
    assert isinstance(client, ThreadClient)
    keys = [slot.key for slot in client.loop.adapters._slots if slot.key]
    assert keys
    for key in keys:
        assert said(server, cache_salt=f" lora {key}") == texts[""]
        status, error = server.refused(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "cache_salt": f"\0lora {key}"}
        )
        assert (status, error["param"]) == (400, "cache_salt")
    assert said(server, "a") == texts["a"]


def test_other_routes(server: Server, texts: dict[str, str]) -> None:
    written = server.post("/apply-template", messages=[{"role": "user", "content": "hi"}])["prompt"]
    one = server.post("/completion", prompt=written, n_predict=20, temperature=0, lora=[{"id": 0, "scale": 1.0}])
    assert one["content"] == texts["a"]
    assert server.post("/completion", prompt=written, n_predict=20, temperature=0, model="b")["content"] == texts["b"]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        made = client.completions.create(model="a", prompt=written, max_tokens=20, temperature=0, n=1)
        assert (made.model, made.choices[0].text) == ("a", texts["a"])
        answer = client.responses.create(model="b", input="hi", max_output_tokens=20, temperature=0)
        assert (answer.model, answer.output_text) == ("b", texts["b"])
        chunks = client.chat.completions.create(
            model="demo:b", messages=[{"role": "user", "content": "hi"}], max_tokens=20, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == texts["b"]
    said_by = server.post("/v1/messages", model="a", max_tokens=20, temperature=0,
                          messages=[{"role": "user", "content": "hi"}])
    assert said_by["content"][0]["text"] == texts["a"]


def test_slots_with_an_adapter_are_not_saved(server: Server) -> None:
    """Nor does a conversation without one go on in their slot."""
    def slot(model: str, **more: Any) -> int:
        answer = server.post("/completion", model=model, prompt="hi there", n_predict=4, temperature=0, **more)
        return int(answer["id_slot"])

    assert (slot("a", id_slot=2), slot("a")) == (2, 2)
    assert slot("demo") != 2
    for action in ("save", "erase"):
        status, error = server.refused(f"/slots/2?action={action}", {"filename": "it"})
        assert (status, error["param"]) == (400, "id_slot")
        assert error["message"] == (
            f"slot 2 was computed with the adapter 'a' (allowed to {action}: conversations without adapters)"
        )


def test_names_that_there_are_not(server: Server) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    status, error = server.refused("/v1/chat/completions", {**chat, "model": "demo:z"})
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["message"] == "there is no adapter 'z' (adapters: a, b)"
    status, error = server.refused("/v1/chat/completions", {**chat, "lora": "z"})
    assert (status, error["code"], error["param"]) == (404, "adapter_not_found", "lora")
    for lora, words in (
        ([{"id": 7}], "there is no adapter with the id 7 (ids: 0 (a), 1 (b))"), ([{"scale": 1}], "has an id or a name"),
        ([{"id": 0}, {"name": "a"}], "names the adapter 'a' twice"), ([{"id": 0, "scale": 1e9}], "lora.0.scale"),
        (3, "lora must be"), ([{"id": 0, "name": "a"}], "has an id or a name"),
    ):
        status, error = server.refused("/v1/chat/completions", {**chat, "lora": lora})
        assert (status, error["param"]) == (400, "lora")
        assert words in error["message"]


def test_models(server: Server) -> None:
    base, a, b = server.get("/v1/models")["data"]
    assert (base["id"], a["id"], b["id"]) == ("demo", "a", "b")
    assert (a["parent"], a["root"], a["object"]) == ("demo", "a.gguf", "model")
    assert server.get("/v1/models/b") == server.get("/v1/models/demo:b") == b
    assert "parent" not in base
    listed = server.get("/v1/models", **{"anthropic-version": "2023-06-01"})
    assert [one["id"] for one in listed["data"]] == ["demo", "a", "b"]


def test_scales_of_requests_that_choose_none(server: Server, texts: dict[str, str]) -> None:
    assert server.get("/lora-adapters") == [
        {"id": 0, "name": "a", "path": "a.gguf", "scale": 0.0}, {"id": 1, "name": "b", "path": "b.gguf", "scale": 0.0},
    ]
    try:
        assert server.post_list("/lora-adapters", [{"id": 1, "scale": 1.0}]) == {"success": True}
        assert [one["scale"] for one in server.get("/lora-adapters")] == [0.0, 1.0]
        assert (said(server), said(server, "a"), said(server, lora=[])) == (texts["b"], texts["a"], texts[""])
        status, error = server.refused("/lora-adapters", [{"id": 9, "scale": 1.0}])
        assert (status, "no adapter with the id 9" in error["message"]) == (400, True)
        assert said(server) == texts["b"]
    finally:
        server.post_list("/lora-adapters", [])
    assert said(server) == texts[""]


def test_load_and_unload(server: Server, paths: dict[str, str], texts: dict[str, str], tmp_path: Path) -> None:
    """While others are answered; a stream that began with an adapter ends with it."""
    body = {"lora_name": "c", "lora_path": paths["c"]}
    status, _, answer = server.send("POST", "/v1/load_lora_adapter", body)
    assert (status, answer) == (200, b"Success: LoRA adapter 'c' added successfully.")
    assert said(server, "c") == texts["c"]
    assert server.send("POST", "/v1/load_lora_adapter", body)[0] == 200
    status, error = server.refused("/v1/load_lora_adapter", {**body, "lora_path": paths["a"]})
    assert (status, error["message"]) == (400, "an adapter 'c' is loaded already: unload it first")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        chunks = client.chat.completions.create(
            model="c", messages=[{"role": "user", "content": "hi"}], max_tokens=20, temperature=0, stream=True
        )
        first = next(iter(chunks)).choices[0].delta.content or ""
        status, _, answer = server.send("POST", "/v1/unload_lora_adapter", {"lora_name": "c"})
        assert (status, answer) == (200, b"Success: LoRA adapter 'c' removed successfully.")
        assert first + "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == texts["c"]
    chat = {"messages": [{"role": "user", "content": "hi"}], "lora": "c"}
    status, error = server.refused("/v1/chat/completions", chat)
    assert (status, error["code"]) == (404, "adapter_not_found")
    status, error = server.refused("/v1/unload_lora_adapter", {"lora_name": "c"})
    assert (status, error["message"]) == (404, "there is no adapter 'c' (adapters: a, b)")
    assert server.send("POST", "/v1/load_lora_adapter", {"lora_name": "p", "lora_path": paths["peft"]})[0] == 200
    assert server.send("POST", "/v1/unload_lora_adapter", {"lora_name": "p"})[0] == 200


def test_what_can_not_be_loaded(server: Server, paths: dict[str, str], tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no adapter")
    wrong = write_lora_gguf(tmp_path / "wrong.gguf", {"blk.0.attn_q.weight": factors(8, 8)}, "qwen3")
    other = write_lora_gguf(tmp_path / "other.gguf", {"blk.0.attn_q.weight": factors(64, N_EMBD)}, "llama")
    wide = write_lora_gguf(tmp_path / "wide.gguf", {"blk.0.attn_q.weight": factors(64, N_EMBD, 40)}, "qwen3")
    bad = tmp_path / "bad.gguf"
    a, b = factors(64, N_EMBD)
    write_lora_gguf(bad, {"blk.0.attn_q.weight": (a, b * float("nan"))}, "qwen3")
    for name, path, words in (
        ("x", tmp_path / "none", "none"), ("x", text, "text.gguf"), ("x", wrong, "shape"), ("x", bad, "NaN or Inf"),
        ("x", other, "general.architecture"), ("x", wide, "has the rank 40"), ("demo", paths["c"], "own name"),
        ("a:b", paths["c"], "lora_name"), ("", paths["c"], "lora_name"),
    ):
        status, error = server.refused("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        assert (status, words in error["message"]) == (400, True), error
    assert [one["id"] for one in server.get("/v1/models")["data"]] == ["demo", "a", "b"]


def test_more_than_there_is_room_for(server: Server) -> None:
    """Scales take turns in slots that no request needs."""
    for scale in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        assert said(server, lora=[{"id": 0, "scale": scale}])
    assert said(server, lora=[{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.5}])


def test_a_server_without_them(letters: str, paths: dict[str, str]) -> None:
    with octavo.load(letters, device="reference", n_ctx=64) as model, running_model(model) as plain:
        status, error = plain.refused("/v1/load_lora_adapter", {"lora_name": "c", "lora_path": paths["c"]})
        assert (status, error["code"]) == (403, "adapters_off")
        assert plain.refused("/v1/unload_lora_adapter", {"lora_name": "c"})[0] == 403
        status, error = plain.refused("/lora-adapters", [{"id": 0, "scale": 1.0}])
        assert (status, "--lora-modules or --max-loras" in error["message"]) == (400, True)
        assert said(plain, "demo:a") == said(plain, "a") == ALPHABET[:20]
