"""/v1/chat/completions, whole and in chunks, as OpenAI's client reads it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from octavo.runtime import Model
from octavo.server.generation.request import GenerationRequest
from octavo.server.routes import chat
from tests.server.live_server import Server, events

QUESTION = "What is 12 times 7?"
FREE: dict[str, Any] = {"temperature": 6, "top_p": 1, "min_p": 0, "top_k": 0}
WILD: dict[str, Any] = {"temperature": 6, "top_p": 1, "extra_body": {"min_p": 0, "top_k": 0}}
ASK: list[Any] = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_a_reply_is_that_of_the_model(client: openai.OpenAI, model: Model) -> None:
    reply = client.chat.completions.create(model="any", messages=ASK, temperature=0)
    (choice,) = reply.choices
    wanted = model.generate(QUESTION, temperature=0)
    assert choice.message.content == "".join(wanted)
    assert (choice.message.role, choice.finish_reason, reply.object) == ("assistant", "stop", "chat.completion")
    assert reply.model == "demo"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len(wanted.tokens)  # the token that ends it counts too


def test_the_head_of_a_stream(server: Server) -> None:
    status, headers, body = server.send("POST", "/v1/chat/completions", {"messages": ASK, "stream": True})
    assert status == 200
    assert headers["content-type"].partition(";")[0] == "text/event-stream"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert body.endswith(b"data: [DONE]\n\n")
    assert events(body)[-1] == "[DONE]"


def test_chunks_of_a_stream(server: Server, client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="any", messages=ASK, temperature=0, stream=True))
    assert len({(c.id, c.created, c.model, c.system_fingerprint, c.object) for c in chunks}) == 1
    first, last = chunks[0], chunks[-1]
    assert first.object == "chat.completion.chunk"
    assert first.id.startswith("chatcmpl-")
    assert len(first.id) == len("chatcmpl-") + 24
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert all(c.choices[0].delta.role is None for c in chunks[1:])
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert last.choices[0].delta.model_dump(exclude_none=True) == {}
    assert all(c.usage is None for c in chunks)
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == server.chat(QUESTION, temperature=0)["choices"][0]["message"]["content"]


def test_usage_comes_after_the_finish(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(
        model="any", messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True},
    ))
    *before, last = chunks
    assert all(len(c.choices) == 1 for c in before)
    assert all(c.usage is None for c in before)
    assert last.choices == []
    usage = last.usage
    assert usage is not None
    assert usage.prompt_tokens + usage.completion_tokens == usage.total_tokens
    details = usage.prompt_tokens_details, usage.completion_tokens_details
    assert details[0] is not None
    assert details[1] is not None
    assert details[1].reasoning_tokens == 0
    assert last.model_extra is not None
    assert last.model_extra["timings"]["predicted_n"] == usage.completion_tokens


def test_a_prompt_that_came_before_is_cached_but_for_its_last_token(server: Server) -> None:
    question = "What is 123 plus 456?"
    usages = [server.chat(question, max_tokens=1)["usage"] for _ in range(2)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[1] == usages[1]["prompt_tokens"] - 1
    assert cached[0] < cached[1]


def test_several_replies_to_one_prompt(client: openai.OpenAI, server: Server) -> None:
    chunks = list(client.chat.completions.create(
        model="any", messages=ASK, n=3, seed=4, max_tokens=8, stream=True,
        stream_options={"include_usage": True}, **WILD,
    ))
    texts, roles, ends = [""] * 3, [0] * 3, [0] * 3
    for choice in (c for chunk in chunks for c in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role is not None
        ends[choice.index] += choice.finish_reason is not None
    assert roles == ends == [1, 1, 1]
    whole = server.chat(QUESTION, n=3, seed=4, max_tokens=8, **FREE)
    assert [c["message"]["content"] for c in whole["choices"]] == texts
    assert len(set(texts)) > 1
    usage = chunks[-1].usage
    assert usage is not None
    alone = server.chat(QUESTION, max_tokens=1)["usage"]["prompt_tokens"]
    assert usage.prompt_tokens == alone
    assert usage.completion_tokens == whole["usage"]["completion_tokens"] > alone / 3


def test_max_tokens(server: Server) -> None:
    def tokens(**limits: int) -> tuple[int, str]:
        reply = server.chat(QUESTION, ignore_eos=True, **limits)
        return reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]

    assert tokens(max_tokens=3) == (3, "length")
    assert tokens(max_completion_tokens=4) == (4, "length")
    assert tokens(max_tokens=3, max_completion_tokens=2) == (2, "length")
    n_ctx = server.get("/props")["default_generation_settings"]["n_ctx"]
    for limit in ({}, {"max_tokens": 100_000}, {"max_tokens": -1}, {"max_completion_tokens": -1}):  # as many as fit
        reply = server.chat(QUESTION * 112, ignore_eos=True, **limit)
        assert reply["choices"][0]["finish_reason"] == "length"
        assert reply["usage"]["total_tokens"] == n_ctx


@pytest.mark.parametrize("stop", ["times", ["nothing", "12 times 7"], ["is 8", "84"], "s 7"])
def test_stop_strings_are_not_in_the_text(server: Server, stop: str | list[str]) -> None:
    whole = server.chat(QUESTION, temperature=0)["choices"][0]["message"]["content"]
    body = {"messages": ASK, "temperature": 0, "stop": stop, "stream": True}
    _, _, data = server.send("POST", "/v1/chat/completions", body)
    *chunks, last, _ = events(data)
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    found = [whole.find(s) for s in ([stop] if isinstance(stop, str) else stop)]
    assert text == whole[: min(at for at in found if at >= 0)]
    assert last["choices"][0]["finish_reason"] == "stop"


def test_a_stop_that_is_null_is_none(server: Server) -> None:
    assert server.chat(QUESTION, stop=None, max_tokens=1)


def test_sampling(server: Server) -> None:
    def text(**settings: Any) -> str:
        content: str = server.chat(QUESTION, max_tokens=12, **settings)["choices"][0]["message"]["content"]
        return content

    greedy = text(temperature=0)
    assert text(**{**FREE, "top_p": 0}) == greedy
    assert text(seed=7, **FREE) == text(seed=7, **FREE)
    assert len({text(**FREE) for _ in range(3)}) > 1
    assert len({text(seed=-1, **FREE) for _ in range(3)}) > 1


def test_a_bias_of_minus_100_is_never_chosen(server: Server) -> None:
    (first, *_) = server.post("/tokenize", content="12")["tokens"]
    reply = server.chat(QUESTION, temperature=0, logit_bias={str(first): -100})
    text = reply["choices"][0]["message"]["content"]
    assert first not in server.post("/tokenize", content=text)["tokens"]
    always = server.chat(QUESTION, temperature=0, max_tokens=3, logit_bias={str(first): 100})
    assert always["choices"][0]["message"]["content"] == server.post("/detokenize", tokens=[first] * 3)["content"]


def test_logprobs(server: Server, model: Model) -> None:
    reply = server.chat(QUESTION, temperature=0, logprobs=True, top_logprobs=5)
    content = reply["choices"][0]["logprobs"]["content"]
    text = reply["choices"][0]["message"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in content).decode() == text
    for one in content:
        top = [pair["logprob"] for pair in one["top_logprobs"]]
        assert top == sorted(top, reverse=True)
        assert len(top) == 5
        assert one["logprob"] == top[0]  # greedy
    prompt = model.encode_prompt(QUESTION)
    logits = model.logits(prompt)[-1].astype(float)
    assert math.isclose(content[0]["logprob"], logits.max() - math.log(sum(map(math.exp, logits))), abs_tol=1e-4)


def test_logprobs_are_numbers_where_nothing_is_likely(server: Server) -> None:
    reply = server.chat(QUESTION, temperature=0, logprobs=True, max_tokens=2)
    assert [one["top_logprobs"] for one in reply["choices"][0]["logprobs"]["content"]] == [[], []]


def test_a_reply_goes_on_after_an_assistants_message(server: Server) -> None:
    whole = server.chat(QUESTION, temperature=0)["choices"][0]["message"]["content"]
    begun = whole[: len("12 times")]
    reply = server.post("/v1/chat/completions", temperature=0, messages=[*ASK, {"role": "assistant", "content": begun}])
    assert begun + reply["choices"][0]["message"]["content"] == whole


def test_how_the_prompt_ends(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with vLLM's fields; an assistant's message that is the last is gone on with where they don't say otherwise."""
    prompts = list[str]()
    generation_request = chat.request_without_grammar

    def seeing(*given: Any) -> GenerationRequest:
        prompts.append(server.service.tokenizer.decode((job := generation_request(*given)).prompts[0]))
        return job

    monkeypatch.setattr(chat, "request_without_grammar", seeing)

    def prompt(*more: Any, **fields: Any) -> str:
        server.post("/v1/chat/completions", messages=[*ASK, *more], max_tokens=1, **fields)
        return prompts.pop()

    begun = {"role": "assistant", "content": "12 times"}
    plain, opening = prompt(), "<|im_start|>assistant\n"
    assert plain.endswith(opening)
    assert prompt(add_generation_prompt=False) == plain.removesuffix(opening)
    assert prompt(begun) == f"{plain}12 times"
    assert prompt(begun, continue_final_message=True, add_generation_prompt=False) == f"{plain}12 times"
    closed = f"{plain}12 times<|im_end|>\n"
    assert prompt(begun, add_generation_prompt=False) == closed
    assert prompt(begun, continue_final_message=False) == closed + opening
    for more, problem in (({}, "the last message has role user"), ({"add_generation_prompt": True}, "both be true")):
        last = [begun] if more else []
        body = {"messages": [*ASK, *last], "continue_final_message": True, **more}
        _, error = server.refused("/v1/chat/completions", body)
        assert problem in error["message"]
        assert "continue_final_message" in error["message"]


def test_contents_of_messages(server: Server) -> None:
    def text(*messages: Any) -> str:
        content: str = server.post("/v1/chat/completions", messages=messages, temperature=0)["choices"][0]["message"][
            "content"
        ]
        return content

    system, developer = ({"role": role, "content": "Be short."} for role in ("system", "developer"))
    assert text(system, *ASK) == text(developer, *ASK)


def test_fields_that_mean_nothing_here_are_ignored(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="any", messages=ASK, max_tokens=2, store=True, metadata={"a": "b"}, user="me", service_tier="auto",
        parallel_tool_calls=True, extra_body={"nothing": [1, {"x": None}]},
    )
    assert reply.choices[0].message.content is not None
