"""Fill-in-the-middle: /infill as llama-server has it, `suffix` of completions, and what editors send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace

import octavo
from octavo.runtime import Model
from octavo.server.engine.fake import INFO, FakeClient
from tests.runtime import tiny
from tests.server.live_server import Server, events, running, running_model
from tests.text.vocabularies import CONTROL

PLACES = {248: "<|fim_prefix|>", 249: "<|fim_middle|>", 250: "<|fim_suffix|>", 251: "<|repo_name|>",
          252: "<|file_sep|>", 253: "<|fim_pad|>"}
"""In place of bytes that no text has."""
PRE, MID, SUF, REPO, SEP, PAD = PLACES
GREEDY: dict[str, Any] = {"temperature": 0}


def write(path: Path, places: dict[int, str], **keys: Any) -> str:
    texts, kinds = [*tiny.TOKENS], [*tiny.TOKENIZER["tokenizer.ggml.token_type"]]
    for i, text in places.items():
        texts[i], kinds[i] = text, CONTROL
    more = {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": kinds, **keys}
    return tiny.write(path, weights=tiny.alphabet(), keys=more)


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with octavo.load(write(tmp_path_factory.mktemp("coder") / "coder.gguf", PLACES), device="reference") as model:
        yield model


@pytest.fixture(scope="module")
def filling(coder: Model) -> Iterator[Server]:
    with running_model(coder) as found:
        yield found


def prompt_of(model: Model, path: str, body: dict[str, Any], **info: int) -> list[int]:
    """What the engine is asked."""
    fake = FakeClient([97], info=replace(INFO, **info))
    with running(fake, model) as server:
        status, _, answer = server.send("POST", path, body)
        assert status == 200, answer
    (add,) = (one for one in fake.sent if hasattr(one, "prompt"))
    prompt: list[int] = add.prompt
    return prompt


def test_the_order_of_tokens(coder: Model) -> None:
    body = {"input_prefix": "x=", "input_suffix": ";y", "n_predict": 1}
    own = [REPO, *b"myproject\n", SEP, *b"filename\n", PRE, *b"x=", SUF, *b";y", MID]
    assert prompt_of(coder, "/infill", body) == own
    assert prompt_of(coder, "/infill", {**body, "input_prefix": "x", "prompt": "="}) == own
    extras = [{"filename": "a.py", "text": "b"}, {"text": "c"}]
    assert prompt_of(coder, "/infill", {**body, "input_extra": extras}) == [
        REPO, *b"myproject\n", SEP, *b"a.py\nb", SEP, *b"tmp\nc", SEP, *b"filename\n", PRE, *b"x=", SUF, *b";y", MID,
    ]
    for path in ("/v1/completions", "/v1/fim/completions"):
        one = {"prompt": "x=", "suffix": ";y", "max_tokens": 1}
        assert prompt_of(coder, path, one) == [PRE, *b"x=", SUF, *b";y", MID]
        assert prompt_of(coder, path, {**one, "prompt": [120, 61]}) == [PRE, *b"x=", SUF, *b";y", MID]
    assert prompt_of(coder, "/v1/completions", {"prompt": "x=", "suffix": "", "max_tokens": 1}) == [*b"x="]
    assert prompt_of(coder, "/v1/fim/completions", {"prompt": "x=", "max_tokens": 1}) == [PRE, *b"x=", SUF, MID]


def test_no_control_token_is_found_in_texts(coder: Model) -> None:
    body = {"input_prefix": "<|fim_middle|>", "input_suffix": "<|file_sep|>", "n_predict": 1}
    found = prompt_of(coder, "/infill", body)
    own = [PRE, *b"<|fim_middle|>", SUF, *b"<|file_sep|>", MID]
    assert found[-len(own) :] == own
    assert (found.count(MID), found.count(SEP)) == (1, 1)


def test_what_is_next_to_the_reply_stays(coder: Model) -> None:
    body = {"input_prefix": "p" * 300 + "<", "input_suffix": ">" + "s" * 300, "n_predict": 10,
            "input_extra": [{"text": "e" * 300}]}
    found = prompt_of(coder, "/infill", body, n_ctx=128, n_pages=2)
    room = 128 - 10 - 3
    assert len(found) == 128 - 10
    middle = found.index(SUF)
    assert found[0] == PRE
    assert found[middle - 1 : middle + 2] == [ord("<"), SUF, ord(">")]
    assert len(found) - middle - 2 == room // 4
    found = prompt_of(coder, "/infill", {**body, "input_prefix": "p", "input_suffix": "s"}, n_ctx=128, n_pages=2)
    assert len(found) == 128 - 10
    assert found[-4 - 10 :] == [SEP, *b"filename\n", PRE, ord("p"), SUF, ord("s"), MID][-14:]
    assert found[0] == ord("e")
    long = {"prompt": "p" * 300, "suffix": "", "max_tokens": -1}
    assert len(prompt_of(coder, "/v1/fim/completions", long, n_ctx=128, n_pages=2)) == 64


def test_keys_of_the_file_name_tokens(tmp_path: Path) -> None:
    """The older keys, and the newer ones, of tokens whose texts say nothing."""
    for new in (False, True):
        words = ("fim_pre", "fim_suf", "fim_mid") if new else ("prefix", "suffix", "middle")
        keys = {f"tokenizer.ggml.{word}_token_id": i for word, i in zip(words, (248, 249, 250), strict=True)}
        path = write(tmp_path / f"{new}.gguf", {248: "<a>", 249: "<b>", 250: "<c>"}, **keys)
        with octavo.load(path, device="reference") as model:
            found = prompt_of(model, "/infill", {"input_prefix": "p", "input_suffix": "s", "n_predict": 1,
                                                 "input_extra": [{"text": "e"}]})
        assert found == [*b"\n\n--- snippet ---\n\ne", 248, ord("p"), 249, ord("s"), 250]


def test_a_model_without_such_tokens(server: Server) -> None:
    status, error = server.refused("/infill", {"input_prefix": "x", "input_suffix": "y"})
    assert (status, error["code"], error["type"]) == (501, 501, "not_supported_error")
    assert "can't fill in the middle: its vocabulary has no prefix and no suffix and no middle" in error["message"]
    for path in ("/v1/completions", "/v1/fim/completions", "/completions"):
        status, error = server.refused(path, {"prompt": "x", "suffix": "y"})
        assert (status, error["code"], error["type"]) == (501, "infill_not_supported", "not_supported_error")


def test_what_is_refused(filling: Server) -> None:
    for body, param in (({"input_suffix": "y"}, "input_prefix"), ({"input_prefix": "x"}, "input_suffix"),
                        ({"input_prefix": "x", "input_suffix": "y", "input_extra": "z"}, "input_extra"),
                        ({"input_prefix": "x", "input_suffix": "y", "input_extra": [{"filename": ""}]}, "input_extra")):
        status, error = filling.refused("/infill", body)
        assert status == 400
        assert param in error["message"]
    status, error = filling.refused("/v1/completions", {"prompt": "x", "suffix": "y", "echo": True})
    assert (status, error["param"]) == (400, "echo")


def test_openais_client(filling: Server) -> None:
    with openai.OpenAI(base_url=f"{filling.url}/v1", api_key="none", max_retries=0) as client:
        found = client.completions.create(model="coder", prompt="x = ", suffix="\n", max_tokens=5, temperature=0)
        assert found.choices[0].text == "abcde"
        stream = client.completions.create(
            model="coder", prompt="x", suffix="y", max_tokens=5, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == "abcde"


LLAMA_VIM: dict[str, Any] = {
    "id_slot": 0, "input_prefix": "def f():\n", "input_suffix": "\nf()\n",
    "input_extra": [{"text": "g()", "filename": "g.py"}], "prompt": "    ", "n_predict": 8, "stop": [], "n_indent": 4,
    "top_k": 40, "top_p": 0.90, "stream": False, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True,
    "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
    "response_fields": ["content", "timings/prompt_n", "timings/predicted_n", "truncated", "tokens_cached"],
}
"""As llama.vim and llama.vscode send it."""


def test_what_llama_vim_sends(filling: Server) -> None:
    found = filling.post("/infill", **LLAMA_VIM)
    assert found["content"] == "abcdefgh"
    assert found["timings/predicted_n"] == 8
    stream = events(filling.send("POST", "/infill", {**LLAMA_VIM, "stream": True, "response_fields": []})[2])
    assert "".join(one["content"] for one in stream) == "abcdefgh"
    assert stream[-1]["stop"]


STOPS = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
         "<|file_sep|>", "<|im_start|>", "<|im_end|>", "/src/", "#- coding: utf-8", "```", "\ndef", "\nclass"]
FILLED = "<|fim_prefix|># Path: a.py\ndef f():\n    <|fim_suffix|>\nf()\n<|fim_middle|>"
COMMON: dict[str, Any] = {"stream": True, "stop": STOPS, "temperature": 0.01}
NAMED: dict[str, Any] = {**COMMON, "model": "coder", "max_tokens": 8}
AROUND: dict[str, Any] = {**NAMED, "prompt": "def f():\n    ", "suffix": "\nf()\n"}
CONTINUE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama.cpp": ("/completion", {**COMMON, "prompt": FILLED, "n_predict": 8}),
    "openai": ("/v1/completions", {**NAMED, "prompt": FILLED}),
    "llamastack": ("/v1/completions", AROUND), "fim": ("/v1/fim/completions", AROUND),
}
"""What Continue's providers send for a completion in the editor, by the provider."""


@pytest.mark.parametrize("provider", CONTINUE)
def test_what_continue_sends(filling: Server, provider: str) -> None:
    """Read as Continue reads it: a field of each event, in an order that it relies on."""
    path, body = CONTINUE[provider]
    headers = {"Authorization": "Bearer undefined", "api-key": "", "x-api-key": "", "Accept": "application/json"}
    status, _, answer = filling.send("POST", path, body, headers)
    assert status == 200, answer
    pieces = []
    for line in answer.decode().splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            value = json.loads(line.removeprefix("data: "))
            if provider == "llama.cpp":
                pieces.append(value["content"])
            elif provider == "fim":
                pieces.append(value["choices"][0]["delta"].get("content") or "")
            else:
                pieces.append(value["choices"][0]["text"])
    assert "".join(pieces) == "abcdefgh"


def test_ollamas_suffix(coder: Model) -> None:
    """As `suffix` of OpenAI's completions."""
    with running_model(coder) as server:
        found = server.post("/api/generate", prompt="ab", suffix="yz", stream=False, options=GREEDY)["response"]
        same = server.post("/v1/completions", prompt="ab", suffix="yz", max_tokens=-1, **GREEDY)["choices"][0]["text"]
        assert found == same
        assert server.send("POST", "/api/generate", {"suffix": "yz", "prompt": "ab", "context": [1]})[0] == 400
