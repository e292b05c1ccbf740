"""Samplers, banned strings and budgets for thinking, as requests of all routes have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from octavo.runtime import Model
from tests.server.generation.test_turns import ASK, BODIES
from tests.server.live_server import Server, events, running_model

SETTINGS: dict[str, Any] = {
    "typical_p": 0.7, "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.05, "dry_multiplier": 0.8,
    "dry_base": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": 64, "dry_sequence_breakers": ["x"],
}
HOT: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "min_p": 0, "top_p": 1, "ignore_eos": True, "seed": 4}
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# </think> #}"
)


@pytest.fixture(scope="module")
def thinker(model: Model) -> Iterator[Server]:
    with running_model(model, template_text=THINKS) as found:
        yield found


def text_of(answer: Any) -> str:
    first = (answer.get("choices") or [answer])[0]
    if "output" in answer:
        return "".join(part["text"] for item in answer["output"] for part in item.get("content") or ())
    content = first.get("message", first).get("content", first.get("text"))
    return "".join(block["text"] for block in content) if isinstance(content, list) else content


@pytest.mark.parametrize("path", BODIES)
def test_all_routes_have_the_samplers(server: Server, path: str) -> None:
    """Each makes a difference to a reply of the same seed, and the same one again."""
    most = {"/v1/responses": "max_output_tokens", "/completion": "n_predict"}.get(path, "max_tokens")
    body = {**BODIES[path], **HOT, most: 40}
    plain = text_of(server.post(path, **body))
    for name in ("typical_p", "top_n_sigma", "xtc_probability", "dry_multiplier"):
        more = {key: value for key, value in SETTINGS.items() if key.partition("_")[0] == name.partition("_")[0]}
        more = {"top_n_sigma": 1.5} if name == "top_n_sigma" else more
        more |= {"dry_multiplier": 50, "dry_allowed_length": 1} if name == "dry_multiplier" else {}
        found = text_of(server.post(path, **body, **more))
        assert found != plain, name
    assert text_of(server.post(path, **body, typical_p=1, top_n_sigma=0, xtc_probability=0, dry_multiplier=0)) == plain
    banned = plain[5:9]
    assert banned.lower() not in text_of(server.post(path, **body, banned_strings=[banned])).lower()


def test_settings_are_told_by_llama_servers_names(server: Server) -> None:
    told = server.post("/completion", prompt="x", n_predict=1, **SETTINGS)["generation_settings"]
    assert {name: told[name] for name in SETTINGS} == SETTINGS
    usual = server.get("/props")["default_generation_settings"]["params"]
    assert (usual["dry_multiplier"], usual["dry_sequence_breakers"]) == (0.0, ["\n", ":", '"', "*"])
    off = server.post("/completion", prompt="x", n_predict=1, **SETTINGS, samplers=["top_k"])["generation_settings"]
    assert (off["dry_multiplier"], off["typical_p"], off["top_n_sigma"], off["xtc_probability"]) == (0, 1, -1, 0)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("name", "value"), [
    ("typical_p", 0), ("typical_p", 2), ("top_n_sigma", "1"), ("xtc_probability", 1.5), ("xtc_threshold", -1),
    ("dry_multiplier", -0.5), ("dry_base", 0), ("dry_allowed_length", 0.5), ("dry_penalty_last_n", -2),
    ("dry_sequence_breakers", "x"), ("dry_sequence_breakers", [""]), ("dry_sequence_breakers", ["x" * 300]),
    ("banned_strings", ["x"] * 65), ("banned_strings", [None]), ("banned_strings", ["é" * 200]),
    ("reasoning_budget", -2), ("reasoning_budget", "5"), ("reasoning_budget_message", 5),
])
def test_wrong_values_are_refused_by_name(server: Server, path: str, name: str, value: Any) -> None:
    status, error = server.refused(path, {**BODIES[path], name: value})
    assert status == 400
    assert name in error["message"]


def test_a_stream_never_shows_a_part_of_a_banned_string(server: Server) -> None:
    body = {"messages": ASK, "max_tokens": 60, **HOT}
    plain = text_of(server.post("/v1/chat/completions", **body))
    banned = [text for text in (plain[8:13], plain[20:24], plain[31:33]) if text.strip()]
    body |= {"banned_strings": banned, "logprobs": True}
    parts = events(server.send("POST", "/v1/chat/completions", {**body, "stream": True})[2])[:-1]
    shown = "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)
    for n in range(len(shown)):
        assert not any(text.lower() in shown[:n].lower() for text in banned)
    whole = server.post("/v1/chat/completions", **body)
    assert whole["choices"][0]["message"]["content"] == shown
    assert whole["usage"]["completion_tokens"] == 60
    entries = [one for part in parts for one in (part["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert len(entries) == len(whole["choices"][0]["logprobs"]["content"]) == 60


@pytest.mark.parametrize("more", [{"response_format": {"type": "json_object"}}, {"grammar": 'root ::= "a"'}])
def test_a_form_and_banned_strings_are_refused(server: Server, more: dict[str, Any]) -> None:
    status, error = server.refused("/v1/chat/completions", {"messages": ASK, "banned_strings": ["x"], **more})
    assert status == 400
    assert "banned_strings can't be used with response_format, a grammar or tools" in error["message"]


@pytest.mark.parametrize("name", ["reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens"])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_thinking_is_closed_after_its_budget(thinker: Server, name: str, budget: int) -> None:
    message = "\nThat is enough."
    body = {"messages": ASK, **HOT, "max_tokens": 60, name: budget, "reasoning_budget_message": message}
    answer = thinker.post("/v1/chat/completions", **body)
    found, tokenizer = answer["choices"][0]["message"], thinker.service.tokenizer
    closing = len(tokenizer.encode(message, add_special=False, continued=True))
    assert found["reasoning_content"].endswith(message.strip())
    thoughts = found["reasoning_content"].removesuffix(message.strip())
    assert len(tokenizer.encode(thoughts, add_special=False, continued=True)) <= max(2 * budget, 1)
    assert found["content"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= budget + closing + 10
    parts = events(thinker.send("POST", "/v1/chat/completions", {**body, "stream": True})[2])[:-1]
    for key in ("content", "reasoning_content"):
        assert "".join(part["choices"][0]["delta"].get(key) or "" for part in parts) == found[key]


def test_an_answer_in_a_form_follows_closed_thinking(thinker: Server) -> None:
    import json

    answer = thinker.post("/v1/chat/completions", messages=ASK, **{**HOT, "ignore_eos": False}, max_tokens=300,
                          reasoning_budget=3, reasoning_budget_message="Enough.",
                          response_format={"type": "json_schema", "json_schema": {"schema": {"type": "boolean"}}})
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"].endswith("Enough.")
    assert json.loads(message["content"]) in (True, False)


def test_other_doors_to_the_budget(thinker: Server) -> None:
    answer = thinker.post("/v1/messages", messages=ASK, **HOT, max_tokens=60, reasoning_budget=2)
    assert [block["type"] for block in answer["content"]][:2] in (["thinking", "text"], ["text"])
    answer = thinker.post("/v1/responses", input="Hello", **HOT, max_output_tokens=60, reasoning_budget=2)
    assert "message" in [item["type"] for item in answer["output"]]


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_texts_have_no_thinking_to_limit(server: Server, path: str) -> None:
    status, error = server.refused(path, {**BODIES[path], "reasoning_budget": 5})
    assert status == 400
    assert "reasoning_budget is for replies to messages: use /v1/chat/completions" in error["message"]
    server.post(path, **BODIES[path], reasoning_budget=-1, max_tokens=1)
