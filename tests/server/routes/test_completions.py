"""/v1/completions: texts and tokens, echo, how likely tokens are."""

from __future__ import annotations

from typing import Any

import numpy as np
import openai
import pytest

from octavo.runtime import Model
from octavo.server.engine.fake import FakeClient
from octavo.server.generation import handle
from tests.server.live_server import Server, events, running, running_model

TEXT = "What is 12 times 7?"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
EXTRA: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "extra_body": {"ignore_eos": True}}


def texts(reply: Any) -> list[str]:
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(reply["choices"])))
    return [choice["text"] for choice in reply["choices"]]


def test_all_forms_of_prompts(server: Server, model: Model) -> None:
    tokens = model.tokenizer.encode(TEXT)
    (one,) = texts(server.post("/v1/completions", prompt=TEXT, **GREEDY))
    assert one == "".join(model.generate(TEXT, raw=True, **GREEDY))
    assert texts(server.post("/v1/completions", prompt=tokens, **GREEDY)) == [one]
    assert texts(server.post("/completions", prompt=[TEXT, TEXT], **GREEDY)) == [one, one]
    assert texts(server.post("/v1/completions", prompt=[tokens, tokens[:4]], **GREEDY))[0] == one


def test_choices_of_several_prompts_and_replies(server: Server) -> None:
    reply = server.post("/v1/completions", prompt=["What is 1 plus 1?", TEXT], n=2, best_of=2, **GREEDY)
    found = texts(reply)
    assert found[0] == found[1] != found[2] == found[3]
    alone = [server.post("/v1/completions", prompt=p, max_tokens=1) for p in ("What is 1 plus 1?", TEXT)]
    assert reply["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)
    assert (reply["object"], reply["id"][:5]) == ("text_completion", "cmpl-")


def test_a_stream(server: Server) -> None:
    body = {"prompt": TEXT, "stream": True, "stream_options": {"include_usage": True}, **GREEDY}
    *chunks, last, done = events(server.send("POST", "/v1/completions", body)[2])
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6
    whole = server.post("/v1/completions", prompt=TEXT, **GREEDY)
    assert "".join(c["choices"][0]["text"] for c in chunks) == texts(whole)[0]
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == whole["choices"][0]["finish_reason"] == "length"


def test_echo(server: Server) -> None:
    (text,) = texts(server.post("/v1/completions", prompt=TEXT, **GREEDY))
    assert texts(server.post("/v1/completions", prompt=TEXT, echo=True, **GREEDY)) == [TEXT + text]
    only = server.post("/v1/completions", prompt=TEXT, echo=True, max_tokens=0)
    assert texts(only) == [TEXT]
    assert only["usage"]["completion_tokens"] == 0
    body = {"prompt": TEXT, "echo": True, "stream": True, **GREEDY}
    pieces = events(server.send("POST", "/v1/completions", body)[2])[:-1]
    assert "".join(c["choices"][0]["text"] for c in pieces) == TEXT + text


def test_a_prompt_that_nothing_is_to_follow_may_fill_the_context(server: Server, model: Model) -> None:
    full, body = [16] * model.n_ctx, {"echo": True, "max_tokens": 0, "logprobs": 0}
    reply = server.post("/v1/completions", prompt=full, **body)
    assert len(reply["choices"][0]["logprobs"]["tokens"]) == reply["usage"]["total_tokens"] == model.n_ctx
    assert server.post("/completion", prompt=full, n_predict=0)["tokens_evaluated"] == model.n_ctx
    for path, more in (("/v1/completions", body), ("/v1/completions", {}), ("/completion", {"n_predict": 0})):
        tokens = full if not more else [*full, 16]
        status, error = server.refused(path, {"prompt": tokens, **more})
        assert (status, error["n_prompt_tokens"]) == (400, len(tokens))
        assert ("which leaves none for a reply" in error["message"]) == (not more)


def test_texts_of_the_whole_context_have_vectors(model: Model) -> None:
    full = [16] * model.n_ctx
    with running_model(model, embeddings=True) as server:
        assert server.post("/v1/embeddings", input=[full, [16]])["usage"]["prompt_tokens"] == model.n_ctx + 1
        status, error = server.refused("/v1/embeddings", {"input": [*full, 16]})
    assert (status, error["code"]) == (400, "context_length_exceeded")


def test_tokens_of_a_completion_that_says_no_number(server: Server) -> None:
    body = {"prompt": TEXT, "ignore_eos": True}
    for more in ({}, {"max_tokens": None}):
        assert server.post("/v1/completions", **body, **more)["usage"]["completion_tokens"] == 16


def test_how_likely_the_tokens_of_a_prompt_are(server: Server, model: Model) -> None:
    tokens = model.tokenizer.encode(TEXT * 8)  # more than one chunk of logits
    assert len(tokens) > 64
    logits = model.logits(tokens).astype(np.float64)  # [tokens, n_vocab]
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for most in (0, 1):
        reply = server.post("/v1/completions", prompt=[tokens], echo=True, logprobs=3, max_tokens=most, temperature=0)
        found = reply["choices"][0]["logprobs"]
        assert {len(found[name]) for name in found} == {len(tokens) + most}
        assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
        wanted = [logprobs[i, token] for i, token in enumerate(tokens[1:])]
        np.testing.assert_allclose(found["token_logprobs"][1 : len(tokens)], wanted, atol=1e-3)
        assert all(max(top.values()) >= one - 1e-6 for one, top in
                   zip(found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True))
        joined = "".join(found["tokens"])  # also of a token that ends the reply, which evaluations count on
        assert joined == reply["choices"][0]["text"] + "".join(found["tokens"][len(tokens) :])
        assert all(joined[at:].startswith(text) for at, text in zip(found["text_offset"], found["tokens"], strict=True))


def test_how_likely_chosen_tokens_are(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        reply = client.completions.create(model="x", prompt=TEXT, logprobs=2, **EXTRA)
    found = reply.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    assert "".join(found.tokens) == reply.choices[0].text
    assert all(max(top.values()) >= one for one, top in zip(found.token_logprobs, found.top_logprobs, strict=True))


MIXED = "1🦀<|im_end|>2"


@pytest.mark.parametrize("more", [{"max_tokens": 30}, {"echo": True, "max_tokens": 0}, {"n": 2, "max_tokens": 16}])
def test_an_answer_that_is_no_stream_has_so_many_tokens(
    model: Model, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are likely in their places count, too: the answer is kept as a whole."""
    monkeypatch.setattr(handle, "MAX_VALUES", 50)
    with running(FakeClient([300]), model) as server:
        body = {"prompt": [300] * 30, "logprobs": 4, **more}
        status, error = server.refused("/v1/completions", body)
        assert (status, "more than 50 tokens" in error["message"]) == (400, True)
        assert server.service.metrics.replies == 0
        assert server.post("/v1/completions", **{**body, "logprobs": None})["choices"]
        if "echo" not in more:
            assert server.send("POST", "/v1/completions", {**body, "stream": True})[2].endswith(b"data: [DONE]\n\n")


def test_where_tokens_begin_in_the_text(server: Server, model: Model) -> None:
    """Control tokens are not part of an echoed prompt, and a token within a character begins where that does."""
    tokenizer = model.tokenizer
    tokens = tokenizer.encode(MIXED)
    pieces = [tokenizer.token_bytes(token) for token in tokens]
    assert b"<|im_end|>" in pieces
    assert any(piece[:1] >= b"\xf0" and len(piece) < 4 for piece in pieces)
    told = {piece: "1🦀2".index(piece.decode()) for piece in (b"1", b"2")} | {b"<|im_end|>": 2}
    body = {"prompt": [tokens, tokenizer.encode(TEXT)], "echo": True, "logprobs": 0, **GREEDY}
    whole = server.post("/v1/completions", **body)["choices"]
    assert whole[0]["text"].startswith("1🦀2")
    assert whole[0]["logprobs"]["text_offset"][: len(tokens) + 1] == [told.get(piece, 1) for piece in pieces] + [3]
    for one in whole:
        pairs = list(zip(one["logprobs"]["tokens"], one["logprobs"]["text_offset"], strict=True))[-6:]
        assert all(one["text"][at:].startswith(text) for text, at in pairs)
    chunks = events(server.send("POST", "/v1/completions", {**body, "stream": True})[2])[:-1]
    for i, one in enumerate(whole):
        found = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == i]
        streamed = [at for choice in found if choice["logprobs"] for at in choice["logprobs"]["text_offset"]]
        assert streamed == one["logprobs"]["text_offset"]
        assert "".join(choice["text"] for choice in found) == one["text"]


WRONG: dict[str, dict[str, Any]] = {
    "best_of": {"best_of": 3},
    "max_tokens": {"max_tokens": -3},
    "logprobs": {"logprobs": 21},
    "prompt": {"prompt": []},
}


@pytest.mark.parametrize("param", WRONG)
def test_what_is_refused(server: Server, param: str) -> None:
    status, error = server.refused("/v1/completions", {"prompt": TEXT, **WRONG[param]})
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize("prompt", [[999999], [[1], [-1]], [[1], []], [[]], [1.5], [True], {"a": 1}, None], ids=str)
def test_prompts_that_are_none(server: Server, prompt: Any) -> None:
    status, error = server.refused("/v1/completions", {"prompt": prompt})
    assert (status, error["param"]) == (400, "prompt")


def test_embeddings_need_no_option(server: Server, model: Model) -> None:
    """As octavo batch has them; with --embeddings what they need is there at the start."""
    found = server.post("/v1/embeddings", input="a cat")["data"][0]["embedding"]
    np.testing.assert_allclose(np.array(found), model.embed(["a cat"], pooling="mean")[0], atol=1e-6)


@pytest.mark.slow
def test_embeddings_of_a_model_that_generates(model: Model) -> None:
    with running_model(model, embeddings=True) as embedding:
        client = openai.OpenAI(base_url=f"{embedding.url}/v1", api_key="none", max_retries=0)
        inputs = ["a cat", "a kitten", "12 times 7"]
        found = client.embeddings.create(model="x", input=inputs)  # in base64
        vectors = np.array([one.embedding for one in found.data], np.float32)
        np.testing.assert_allclose(vectors, model.embed(inputs, pooling="mean"), atol=1e-6)
        assert found.usage.prompt_tokens == sum(len(model.tokenizer.encode(text)) for text in inputs)
        last = embedding.post("/v1/embeddings", input=inputs, pooling="last", encoding_format="float")
        rows = np.array([one["embedding"] for one in last["data"]])
        np.testing.assert_allclose(rows, model.embed(inputs, pooling="last"), atol=1e-6)
        short = embedding.post("/v1/embeddings", input=model.tokenizer.encode("a cat"), dimensions=8)
        row = np.array(short["data"][0]["embedding"])
        np.testing.assert_allclose(row, vectors[0, :8] / np.linalg.norm(vectors[0, :8]), atol=1e-6)
        assert embedding.refused("/v1/embeddings", {"input": "a", "dimensions": 100_000})[0] == 400
        assert embedding.refused("/v1/embeddings", {"input": "x " * 5000})[1]["code"] == "context_length_exceeded"
