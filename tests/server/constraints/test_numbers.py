"""Numbers that stand for no limit, all tokens or a random choice, as clients of llama-server send them."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.server.engine.engine_protocol import Prefill
from octavo.server.generation.handle import ChoiceState
from octavo.server.generation.request import GenerationRequest, sampling_of, seed_of
from octavo.server.routes.schema import Sampling
from tests.server.live_server import Server

ASK: list[Any] = [{"role": "user", "content": "What is 12 times 7?"}]
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "max_tokens": ("/v1/chat/completions", {"messages": ASK}),
    "max_completion_tokens": ("/v1/chat/completions", {"messages": ASK}),
    "max_tokens of texts": ("/v1/completions", {"prompt": "12 times 7 is"}),
    "max_tokens of messages": ("/v1/messages", {"messages": ASK}),
    "max_output_tokens": ("/v1/responses", {"input": ASK}),
    "n_predict": ("/completion", {"prompt": "12 times 7 is"}),
    "max_tokens of llama-server's": ("/completion", {"prompt": "12 times 7 is"}),
}


def text_and_tokens(answer: Any) -> tuple[str, int]:
    if "choices" in answer:
        choice = answer["choices"][0]
        return choice["message"]["content"] if "message" in choice else choice["text"], answer["usage"][
            "completion_tokens"
        ]
    if "output" in answer:
        return "".join(item["content"][0]["text"] for item in answer["output"]), answer["usage"]["output_tokens"]
    if "stop_reason" in answer:
        return "".join(block["text"] for block in answer["content"]), answer["usage"]["output_tokens"]
    return answer["content"], answer["tokens_predicted"]


@pytest.mark.parametrize("name", ROUTES)
def test_no_limit_and_nothing(server: Server, name: str) -> None:
    path, body = ROUTES[name]
    field = name.partition(" ")[0]
    plain = {**body, "temperature": 0}
    without, most = text_and_tokens(server.post(path, **plain, **{field: 900}))
    assert most > 1
    for limit in (-1, -2):
        assert text_and_tokens(server.post(path, **plain, **{field: limit})) == (without, most)
    assert text_and_tokens(server.post(path, **plain, **{field: 0})) == ("", 0)
    assert text_and_tokens(server.post(path, **plain, **{field: 1}))[1] == 1


def test_all_tokens_and_random_seeds(server: Server) -> None:
    def generation(**fields: Any) -> GenerationRequest:
        body, service = Sampling.model_validate(fields), server.service
        return GenerationRequest((), sampling_of(service, body, {}), seed_of(service, body))

    assert [generation(top_k=k).sampling.top_k for k in (-40, -1, 0, 40)] == [0, 0, 0, 40]
    assert [generation(repeat_last_n=n).sampling.repeat_last_n for n in (-1, 0, 5)] == [1024, 0, 5]
    assert len({generation(seed=seed).seed for seed in (-1, -1, 0xFFFFFFFF, 0xFFFFFFFF)}) == 4
    assert generation(seed=5).seed == 5


def test_a_rate_is_of_the_tokens_after_the_first() -> None:
    """The prompt's time has the first in it."""
    choice = ChoiceState(None, 10, prefill=Prefill(0, 10, 2.0), first_at=5.0, last_at=5.3)  # type: ignore[arg-type]
    choice.tokens = 16
    found = choice.timings()
    assert found["predicted_n"] == 16
    assert found["predicted_ms"] == pytest.approx(300)
    assert found["predicted_per_second"] == pytest.approx(50)
    assert found["predicted_per_token_ms"] == pytest.approx(20)
    choice.tokens, choice.last_at = 1, 5.0
    assert (choice.timings()["predicted_per_second"], choice.timings()["predicted_per_token_ms"]) == (0, 0)


def test_a_rate_of_metrics_is_too(server: Server) -> None:
    metrics = server.service.metrics
    before = metrics.later_tokens, metrics.generated_tokens
    server.chat("What is 12 times 7?", max_tokens=5, ignore_eos=True)
    assert (metrics.later_tokens - before[0], metrics.generated_tokens - before[1]) == (4, 5)


@pytest.mark.parametrize("message", [
    {"role": "assistant", "content": None}, {"role": "assistant"}, {"role": "function", "name": "f", "content": "84"},
])
def test_messages_that_have_little(server: Server, message: dict[str, Any]) -> None:
    answer = server.post("/v1/chat/completions", messages=[*ASK, message, *ASK], max_tokens=2)
    assert answer["choices"][0]["finish_reason"] == "length"


def test_options_of_a_stream_that_is_none(server: Server) -> None:
    assert server.chat("Hello", max_tokens=2, stream_options={"include_usage": True})["usage"]["completion_tokens"] == 2
