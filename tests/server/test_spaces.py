"""The space that a reply begins with: there where it goes on in a text, and not where a template is before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.runtime import load
from tests.runtime import tiny
from tests.server.live_server import Server, events, running_model

MORE = {"max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def words_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    fim = dict.fromkeys(("prefix_token_id", "suffix_token_id", "middle_token_id"), 1)
    path = tiny.write_words(tmp_path_factory.mktemp("words") / "words.gguf", **fim)
    with load(path, n_ctx=64) as model, running_model(model) as server:
        yield server


@pytest.mark.parametrize(("prompt", "text"), [("b", " a a"), ([1], "a a"), ([[5], [1]], " a a")])
def test_completions(words_server: Server, prompt: object, text: str) -> None:
    found = words_server.post("/v1/completions", prompt=prompt, logprobs=0, **MORE)["choices"]
    assert found[0]["text"] == text
    assert found[0]["logprobs"]["text_offset"] == [0, len(text) - 2]
    assert [choice["text"] for choice in found[1:]] == ["a a"] * (len(found) - 1)


def test_what_llama_server_has(words_server: Server) -> None:
    assert words_server.post("/completion", prompt="b", n_predict=2, temperature=0)["content"] == " a a"


@pytest.mark.parametrize("suffix", ["c", ""])
def test_in_the_middle(words_server: Server, suffix: str) -> None:
    """Though the prompt ends with a control token."""
    body = {"input_prefix": "b", "input_suffix": suffix, "n_predict": 2, "temperature": 0}
    assert words_server.post("/infill", **body)["content"] == " a a"
    if suffix:
        found = words_server.post("/v1/completions", prompt="b", suffix=suffix, **MORE)
        assert found["choices"][0]["text"] == " a a"


def test_chat(words_server: Server) -> None:
    """A message that is gone on with has words before the reply's."""
    messages = [{"role": "user", "content": "b"}]
    for more, text in (([], "a a"), ([{"role": "assistant", "content": "c"}], " a a")):
        found = words_server.post("/v1/chat/completions", messages=[*messages, *more], **MORE)
        assert found["choices"][0]["message"]["content"] == text


def test_a_stream(words_server: Server) -> None:
    _, _, body = words_server.send("POST", "/v1/completions", {"prompt": "b", "stream": True, **MORE})
    assert "".join(one["choices"][0]["text"] for one in events(body)[:-1]) == " a a"
