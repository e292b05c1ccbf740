"""llama-server's own routes, and what tells of the model and the server."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from octavo.runtime import Model
from octavo.runtime.speculation.draft_lengths import StepCosts
from tests.server.live_server import Server, events, running_model

TEXT = "What is 12 times 7?"
GREEDY: dict[str, Any] = {"temperature": 0, "n_predict": 6, "ignore_eos": True}


def test_a_completion(server: Server, model: Model) -> None:
    reply = server.post("/completion", prompt=TEXT, return_tokens=True, **GREEDY)
    generated = model.generate(TEXT, raw=True, temperature=0, max_tokens=6, ignore_eos=True)
    assert reply["content"] == "".join(generated)
    assert reply["tokens"] == generated.tokens
    assert (reply["stop"], reply["stop_type"], reply["truncated"]) == (True, "limit", False)
    assert (reply["tokens_predicted"], reply["tokens_evaluated"]) == (6, len(model.tokenizer.encode(TEXT)))
    assert reply["generation_settings"]["temperature"] == 0
    assert reply["prompt"] == TEXT
    timings = reply["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == reply["tokens_evaluated"]
    assert timings["predicted_n"] == 6
    assert timings["predicted_per_second"] > 0


def test_why_a_completion_ends(server: Server) -> None:
    prompt = server.post("/apply-template", messages=[{"role": "user", "content": TEXT}])["prompt"]
    assert server.post("/completion", prompt=prompt, temperature=0)["stop_type"] == "eos"
    stopped = server.post("/completion", prompt=prompt, temperature=0, stop=["is", "times"])
    assert (stopped["stop_type"], stopped["content"]) == ("word", "12 ")
    assert stopped["stopping_word"] in ("is", "times")


@pytest.mark.parametrize("name", ["n_predict", "max_tokens"])
def test_nothing_after_a_prompt(server: Server, name: str) -> None:
    """It is read, so that it is in the cache of the next request."""
    prompt = f"What is 9 times {name}? " * 12
    body = {"prompt": prompt, name: 0, "n_probs": 1, "temperature": 0}
    reply = server.post("/completion", **body)
    assert (reply["content"], reply["tokens_predicted"], reply["stop_type"]) == ("", 0, "limit")
    assert (reply["completion_probabilities"], reply["generation_settings"]["n_predict"]) == ([], 0)
    assert reply["timings"]["predicted_ms"] == 0
    (last,) = events(server.send("POST", "/completion", {**body, "stream": True})[2])
    assert (last["content"], last["tokens_predicted"], last["stop"]) == ("", 0, True)
    assert last["timings"]["cache_n"] > 64


@pytest.mark.parametrize("most", [-1, -2])
def test_as_many_tokens_as_the_context_holds(server: Server, model: Model, most: int) -> None:
    prompt = [16] * (model.n_ctx - 20)
    reply = server.post("/completion", prompt=prompt, n_predict=most, ignore_eos=True, repeat_last_n=-1)
    assert (reply["tokens_predicted"], reply["truncated"]) == (20, True)
    assert reply["generation_settings"]["repeat_last_n"] == model.n_ctx


def test_prompts_of_texts_and_tokens(server: Server, model: Model) -> None:
    encode = model.tokenizer.encode
    mixed = [TEXT, 16, " times ", "7", 17]
    tokens = [*encode(TEXT), 16, *encode(" times ", add_special=False), *encode("7", add_special=False), 17]
    one = server.post("/completion", prompt=mixed, **GREEDY)
    assert one["prompt"] == model.tokenizer.decode(tokens)
    assert one["content"] == server.post("/completion", prompt=tokens, **GREEDY)["content"]
    several = server.post("/completion", prompt=[mixed, TEXT, tokens, [TEXT]], **GREEDY)
    assert [reply["content"] for reply in several[:3:2]] == [one["content"]] * 2
    assert several[1]["content"] == several[3]["content"]
    status, error = server.refused("/completion", {"prompt": ["a"] * 2049})
    assert (status, error["message"]) == (400, "there are 2049 prompts (allowed: up to 2048)")


def test_a_stream_of_completions(server: Server) -> None:
    body = {"prompt": TEXT, "stream": True, "n_probs": 2, **GREEDY}
    parts = events(server.send("POST", "/completion", body)[2])
    whole = server.post("/completion", prompt=TEXT, n_probs=2, **GREEDY)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    told = [one for part in parts for one in part.get("completion_probabilities", [])]
    assert [one["token"] for one in told] == [one["token"] for one in whole["completion_probabilities"]]
    assert all(one["top_logprobs"][0]["logprob"] >= one["logprob"] for one in told)


def test_several_prompts(server: Server) -> None:
    found = server.post("/completion", prompt=[TEXT, [1, 2, 3]], **GREEDY)
    assert [one["index"] for one in found] == [0, 1]
    assert found[0]["content"] == server.post("/completion", prompt=TEXT, **GREEDY)["content"]


@pytest.mark.parametrize("bias", [[[16, False]], {"16": False}, [["12", -100]]])
def test_biases(server: Server, model: Model, bias: Any) -> None:
    prompt = server.post("/apply-template", messages=[{"role": "user", "content": TEXT}])["prompt"]
    plain = server.post("/completion", prompt=prompt, return_tokens=True, **GREEDY)["tokens"]
    assert 16 in plain
    assert 16 not in server.post("/completion", prompt=prompt, return_tokens=True, logit_bias=bias, **GREEDY)["tokens"]


@pytest.mark.parametrize("fields", [
    {"logit_bias": [[1]]}, {"logit_bias": [[1, True]]}, {"logit_bias": [[1.5, 1]]}, {"n_probs": 100}, {"prompt": None},
    {"n_predict": -3}, {"repeat_last_n": -2}, {"temperature": -1},
], ids=str)
def test_errors_have_llama_servers_shape(server: Server, fields: dict[str, Any]) -> None:
    status, error = server.refused("/completion", {"prompt": TEXT, **fields})
    assert (status, error["code"], error["type"]) == (400, 400, "invalid_request_error")
    assert next(iter(fields)) in error["message"]


def test_tokens(server: Server, model: Model) -> None:
    tokenizer = model.tokenizer
    text = "12 <|im_end|> 🦀"
    plain = tokenizer.encode(text, add_special=False)
    assert server.post("/tokenize", content=text)["tokens"] == plain
    assert server.post("/tokenize", content=text, add_special=True)["tokens"] == tokenizer.encode(text)
    unparsed = server.post("/tokenize", content=text, parse_special=False)["tokens"]
    assert unparsed == tokenizer.encode(text, add_special=False, parse_special=False) != plain
    pieces = server.post("/tokenize", content=text, with_pieces=True)["tokens"]
    data = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert data.decode() == text
    assert server.post("/detokenize", tokens=plain)["content"] == text
    status, error = server.refused("/detokenize", {"tokens": [1, 1024]})  # and no path of this machine
    wanted = "tokens: token 1024 is not in the vocabulary (allowed: 0 to 1023)"
    assert (status, error["message"]) == (400, wanted)


def test_tokens_as_vllm_has_them(server: Server, model: Model) -> None:
    """What lm-eval's remote tokenizer asks for."""
    info, tokenizer = server.get("/tokenizer_info"), model.tokenizer
    assert info["chat_template"] == server.get("/props")["chat_template"]
    assert tokenizer.eos_id is not None
    ending = server.post("/tokenize", prompt=info["eos_token"], add_special_tokens=False)
    assert ending == {"tokens": [tokenizer.eos_id], "count": 1, "max_model_len": model.engine.n_ctx}
    assert server.post("/tokenize", prompt="12")["tokens"] == tokenizer.encode("12")
    assert server.post("/detokenize", tokens=tokenizer.encode("12 = 12"))["prompt"] == "12 = 12"
    for wrong in ({}, {"content": "a", "prompt": "a"}):
        assert server.refused("/tokenize", wrong)[0] == 400


def test_templates(server: Server, model: Model) -> None:
    messages = [{"role": "user", "content": TEXT}]
    assert model.template is not None
    assert server.post("/apply-template", messages=messages)["prompt"] == model.template.render(messages)
    closed = server.post("/apply-template", messages=messages, add_generation_prompt=False)["prompt"]
    assert closed == model.template.render(messages, False)


def test_properties(server: Server, model: Model) -> None:
    props = server.get("/props")
    assert model.template is not None
    assert props["chat_template"] == model.template.source
    defaults = props["default_generation_settings"]
    assert defaults["n_ctx"] == model.n_ctx
    used = server.post("/completion", prompt="x", n_predict=-1, stop=["a", " "], seed=7)["generation_settings"]
    assert defaults["params"] == used | {"stop": [], "seed": -1}
    assert [used[name] for name in ("temperature", "top_k", "top_p", "min_p")] == [0.0, 40, 0.95, 0.05]
    slots = server.get("/slots")
    assert len(slots) == props["total_slots"] == 8
    assert not any(slot["is_processing"] for slot in slots)
    assert {slot["speculative"] for slot in slots} == {bool(props["drafts"])} == {True}


def test_adapters(server: Server, model: Model) -> None:
    """By name: where they lie is not a client's business."""
    assert server.get("/lora-adapters") == []
    with running_model(model, lora=(("/a/b/one.gguf", 0.5), ("two", 1.0))) as adapted:
        assert adapted.get("/lora-adapters") == [
            {"id": 0, "path": "one.gguf", "scale": 0.5}, {"id": 1, "path": "two", "scale": 1.0},
        ]
    status, error = server.refused("/lora-adapters", [{"id": 0, "scale": 1}])
    assert (status, "--lora-modules" in error["message"]) == (400, True)
    status, error = server.refused("/completion", {"prompt": "x", "lora": [{"id": 0, "scale": 0.5}]})
    assert (status, error["message"].partition(":")[0]) == (400, "lora")
    assert server.post("/completion", prompt="x", n_predict=1, lora=[])["tokens_predicted"] == 1


def test_models(server: Server, model: Model) -> None:
    listed = server.get("/v1/models")
    assert listed == server.get("/models")
    (one,) = listed["data"]
    assert server.get("/v1/models/demo") == one
    assert one["meta"] == {
        "n_ctx": model.n_ctx, "n_ctx_train": 1024, "n_params": 7477760, "size": 14968832, "n_vocab": 1024,
    }
    assert (one["id"], one["object"], one["max_model_len"]) == ("demo", "model", model.n_ctx)


def test_health(server: Server) -> None:
    assert server.get("/health") == server.get("/v1/health") == {"status": "ok"}


def metrics(server: Server) -> dict[str, float]:
    text = server.send("GET", "/metrics")[2].decode()
    return {name: float(value) for name, value in re.findall(r"^([^#\s]+) (\S+)$", text, re.MULTILINE)}


NAMES = """prompt_tokens_total prompt_tokens_cached_total prompt_seconds_total tokens_predicted_total
tokens_predicted_seconds_total n_decode_total n_tokens_max prompt_tokens_seconds predicted_tokens_seconds
requests_processing requests_deferred n_busy_slots_per_decode""".split()


def test_metrics(server: Server) -> None:
    before = metrics(server)
    reply = server.chat(TEXT, max_tokens=5, ignore_eos=True)
    after = metrics(server)
    assert {f"llamacpp:{name}" for name in NAMES} <= after.keys()
    new = {name: after[name] - before.get(name, 0) for name in after}
    usage = reply["usage"]
    assert new["llamacpp:tokens_predicted_total"] == 5
    assert new["llamacpp:prompt_tokens_total"] + new["llamacpp:prompt_tokens_cached_total"] == usage["prompt_tokens"]
    assert new["octavo:time_to_first_token_seconds_count"] == new["octavo:e2e_request_latency_seconds_count"] == 1
    assert new["octavo:inter_token_latency_seconds_count"] == 4
    assert new['octavo:request_success_total{finished_reason="length"}'] == 1
    pages = sum(after[f"octavo:kv_pages_{kind}"] for kind in ("held", "cached", "empty"))
    assert pages == server.service.info.n_pages
    assert (after["octavo:engine_up"], new["octavo:kv_pages_held"]) == (1, 0)


def test_the_page(server: Server) -> None:
    status, headers, body = server.send("GET", "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert body.lower().startswith(b"<!doctype html>")


def test_openapi(server: Server) -> None:
    described = json.loads(server.send("GET", "/openapi.json")[2])
    paths = described["paths"]
    assert set(paths) >= {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/completion", "/health"}
    body = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    assert described["components"]["schemas"][name]["required"] == ["messages"]
    assert set(paths["/v1/responses/{id}"]) == {"get", "delete"}
    for path, operations in paths.items():
        names = re.findall(r"{(\w+)}", path)
        for operation in operations.values():
            assert [one["name"] for one in operation.get("parameters", [])] == names, path


def test_drafts_are_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar that forces what comes has drafts, unless a busy machine compiles it late."""
    monkeypatch.setattr(StepCosts, "factor", lambda *_: 1.0)
    body = {"prompt": "x", "grammar": 'root ::= "one two three four five six seven"'}
    replies = (server.post("/completion", **body)["timings"] for _ in range(10))
    told = next(timings for timings in replies if "draft_n_accepted" in timings)
    assert 0 < told["draft_n_accepted"] <= told["draft_n"]
    counted = metrics(server)
    assert counted["llamacpp:spec_decode_num_accepted_tokens_total"] >= told["draft_n_accepted"]
    assert counted["llamacpp:spec_decode_num_drafts_total"] > 0
