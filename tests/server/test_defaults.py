"""What a server was started with counts where a request does not say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo.errors import TemplateError, UsageError
from octavo.runtime import Model
from octavo.server.engine.engine_protocol import Add
from octavo.server.engine.fake import FakeClient
from octavo.server.generation.service import Service
from octavo.server.serve_options import ServerOptions
from octavo.text import ChatTemplate
from tests.runtime import tiny
from tests.server.live_server import Server, running
from tests.server.test_front import MESSAGES, ROUTES

SAMPLING: dict[str, Any] = {
    "temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "repeat_penalty": 1.5, "repeat_last_n": 9,
    "presence_penalty": 0.75, "frequency_penalty": -0.5,
}
OF_ANTHROPIC = {"temperature", "top_k", "top_p"}
OF_RESPONSES = {"temperature", "top_p"}
NUMBERS = {"/completion": "n_predict", "/v1/responses": "max_output_tokens"}

# The end of Qwen's QwQ as llama.cpp has it, of Qwen3, of EXAONE 4, and of DeepSeek V3.1.
QWQ = "{{ messages[0].content }}<think>\n{% if not enable_thinking %}</think>{% endif %}"
QWEN3 = """{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}"""
EXAONE = """{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is true %}<think>
{% else %}<think>

</think>

{% endif %}"""
DEEPSEEK = """{% if not thinking is defined %}{% set thinking = false %}{% endif -%}
{{ messages[0].content }}{% if not thinking %}</think>{% else %}<think>{% endif %}"""
PLAIN = "{{ messages[0].content }}"


def asked(server: Server, fake: FakeClient, route: str, **fields: Any) -> Add:
    """What the engine is told of a request."""
    server.post(route, **{**ROUTES[route], **fields})
    return [message for message in fake.sent if isinstance(message, Add)][-1]


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.startswith("/api/")])
def test_sampling_seed_and_length(route: str, model: Model) -> None:
    fake = FakeClient([16])
    with running(fake, model, sampling=SAMPLING, seed=42, max_tokens=5) as server:
        fields = {} if route != "/v1/messages" else {"max_tokens": 5}
        add = asked(server, fake, route, **fields)
        assert {name: getattr(add.sampling, name) for name in SAMPLING} == SAMPLING
        assert (add.seed, add.max_tokens) == (42, 5)
        known = {"/v1/messages": OF_ANTHROPIC, "/v1/responses": OF_RESPONSES}.get(route, set(SAMPLING))
        own = {name: value for name, value in {**SAMPLING, "temperature": 0, "top_k": 3, "top_p": 1, "min_p": 0,
               "repeat_penalty": 1, "repeat_last_n": -1, "presence_penalty": 0, "frequency_penalty": 0}.items()
               if name in known}
        add = asked(server, fake, route, **own, **{NUMBERS.get(route, "max_tokens"): 2})
        wanted = {**SAMPLING, **own} | ({"repeat_last_n": server.service.info.n_ctx} if "repeat_last_n" in own else {})
        assert {name: getattr(add.sampling, name) for name in SAMPLING} == wanted
        assert add.max_tokens == 2


def test_what_is_in_force_is_told(model: Model) -> None:
    with running(FakeClient([16]), model, sampling=SAMPLING, seed=42, max_tokens=5, template_text=QWQ) as server:
        props = server.get("/props")
    assert props["chat_template"] == QWQ
    params = props["default_generation_settings"]["params"]
    assert {name: params[name] for name in SAMPLING} == SAMPLING
    assert (params["seed"], params["n_predict"], params["max_tokens"]) == (42, 5, 5)


def test_numbers_that_stand_for_all(model: Model) -> None:
    fake = FakeClient([16])
    with running(fake, model, sampling={"top_k": -1, "repeat_last_n": -1}, max_tokens=-1) as server:
        for route in ("/v1/chat/completions", "/v1/completions", "/completion"):
            add = asked(server, fake, route)
            assert (add.sampling.top_k, add.sampling.repeat_last_n, add.max_tokens) == (0, 4096, None)
        seeds = {asked(server, fake, "/completion").seed for _ in range(4)}
    assert len(seeds) == 4


def test_a_completion_has_16_tokens_where_nobody_says(model: Model) -> None:
    fake = FakeClient([16])
    with running(fake, model) as server:
        assert asked(server, fake, "/v1/completions").max_tokens == 16
        assert asked(server, fake, "/v1/chat/completions").max_tokens is None


def prompt(model: Model, source: str, given: Mapping[str, Any], **options: Any) -> str:
    """The prompt that a template writes for a request with these variables."""
    with running(FakeClient([16]), model, template_text=source, **options) as server:
        return prompt_of(server, model, given)


def prompt_of(server: Server, model: Model, given: Mapping[str, Any]) -> str:
    more = {"chat_template_kwargs": given} if given else {}
    text: str = server.post("/apply-template", messages=MESSAGES, **more)["prompt"]
    told = server.post("/v1/chat/completions", messages=MESSAGES, max_tokens=1, **more)["usage"]["prompt_tokens"]
    assert told == len(model.tokenizer.encode(text, add_special=False, parse_special=False))
    return text.removeprefix(MESSAGES[0]["content"])


THINKS, CLOSED = "<think>\n", "<think>\n\n</think>\n\n"


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("source", "reasoning", "given", "end"),
    [
        (QWQ, "auto", {}, THINKS), (QWQ, "on", {}, THINKS), (QWQ, "off", {}, THINKS + "</think>"),
        (QWQ, "auto", {"enable_thinking": False}, THINKS + "</think>"), (QWQ, "off", {"enable_thinking": True}, THINKS),
        (QWEN3, "auto", {}, ""), (QWEN3, "on", {}, ""), (QWEN3, "off", {}, CLOSED),
        (QWEN3, "auto", {"enable_thinking": False}, CLOSED),
        (EXAONE, "auto", {}, THINKS), (EXAONE, "off", {}, CLOSED),
        (DEEPSEEK, "auto", {}, "</think>"), (DEEPSEEK, "on", {}, "<think>"), (DEEPSEEK, "off", {}, "</think>"),
        (DEEPSEEK, "off", {"thinking": True}, "<think>"),
        (PLAIN, "auto", {}, ""), (PLAIN, "auto", {"enable_thinking": True}, ""),
    ],
)
def test_thinking_is_on_unless_told_otherwise(
    source: str, reasoning: str, given: dict[str, Any], end: str, model: Model
) -> None:
    assert prompt(model, source, given, reasoning=reasoning) == end


def test_a_reply_begins_in_the_thinking_that_its_prompt_ends_in(model: Model) -> None:
    with running(FakeClient([16]), model, template_text=QWQ) as server:
        for given, named in (({}, "reasoning_content"), ({"enable_thinking": False}, "content")):
            body = {"messages": MESSAGES, "max_tokens": 3, "chat_template_kwargs": given}
            message = server.post("/v1/chat/completions", **body)["choices"][0]["message"]
            assert {name for name in ("reasoning_content", "content") if message.get(name)} == {named}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["thinking_budget", "template", "name", "documents", "date_string"])
def test_any_variable_goes_on_to_the_template(name: str, model: Model) -> None:
    source = "{{ messages[0].content }}{{ " + name + " | tojson }}"
    with running(FakeClient([16]), model, template_text=source) as server:
        for value in (512, -1.5, None, True, "x", [1, {"a": None}], {"b": [2.5, "c"]}):
            assert prompt_of(server, model, {name: value}) == ChatTemplate("{{ x | tojson }}").render([], x=value)


def test_a_variable_that_no_template_can_have(model: Model) -> None:
    """Jinja calls a template by that name, and so do methods in Python."""
    assert prompt(model, PLAIN, {"self": 1}) == ""


def test_variables_of_the_server_and_of_a_request(model: Model) -> None:
    source = PLAIN + "{{ budget }} {{ style }} {{ reasoning_effort }}"
    usual = {"budget": 512, "style": "plain", "reasoning_effort": "low"}
    assert prompt(model, source, {}, variables=usual) == "512 plain low"
    assert prompt(model, source, {"style": ["a"]}, variables=usual) == "512 ['a'] low"
    fake = FakeClient([16])
    with running(fake, model, template_text=source, variables=usual) as server:
        for told in ({"reasoning_effort": "high"}, {"chat_template_kwargs": {"reasoning_effort": "high"}}):
            add = asked(server, fake, "/v1/chat/completions", **told)
            assert model.tokenizer.decode(add.prompt).endswith("512 plain high")


def test_control_tokens_in_variables_are_text(model: Model) -> None:
    fake = FakeClient([16])
    end = next(token for token in model.tokenizer.stop_ids)
    with running(fake, model, template_text=PLAIN + "{{ x }}") as server:
        add = asked(server, fake, "/v1/chat/completions", chat_template_kwargs={"x": model.tokenizer.texts[end]})
    assert end not in add.prompt


@pytest.mark.few(2)
@pytest.mark.parametrize(("options", "most"), [({}, 512), ({"max_tokens": -1}, None), ({"max_tokens": 9}, 9),
                                               ({"template_text": PLAIN}, None)])
def test_replies_of_a_model_without_a_chat_template_have_a_limit(
    tmp_path: Path, options: dict[str, Any], most: int | None
) -> None:
    path = tiny.write(tmp_path / "base.gguf", weights=tiny.alphabet(), keys={"tokenizer.chat_template": None})
    fake = FakeClient([16])
    with octavo.load(path, device="reference") as model, running(fake, model, **options) as server:
        for route in ("/v1/chat/completions", "/completion"):
            assert asked(server, fake, route).max_tokens == most
        if not options:
            assert asked(server, fake, "/v1/completions").max_tokens == 16
            assert server.get("/props")["default_generation_settings"]["params"]["n_predict"] == 512


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"template_text": PLAIN, "reasoning": "on"}, r"reasoning is 'on'.*: only auto works"),
        ({"template_text": PLAIN, "reasoning": "off"}, r"reasoning is 'off'.*: only auto works"),
        ({"template_text": QWQ, "reasoning": "off", "variables": {"enable_thinking": True}}, "can't be used together"),
        ({"variables": {"messages": []}}, "chat_template_kwargs has 'messages'"),
        ({"variables": {"enable_thinking": "off"}}, 'chat_template_kwargs has "off" as enable_thinking'),
        ({"template_text": "{% if %}"}, "line 1"),
    ],
)
def test_options_that_can_not_be_kept_to(options: dict[str, Any], said: str, model: Model) -> None:
    with pytest.raises((UsageError, TemplateError), match=said):
        Service(FakeClient([16]), model.file, model.tokenizer, ServerOptions("m", **options))


def test_names_and_tags(model: Model) -> None:
    named: dict[str, Any] = {"aliases": ("fim", "tiny"), "tags": ("small", "chat"), "strict_model": True}
    with running(FakeClient([16]), model, **named) as server:
        (one,) = server.get("/v1/models")["data"]
        assert (one["id"], one["aliases"], one["tags"]) == ("demo", ["demo", "fim", "tiny"], ["chat", "small"])
        assert server.get("/v1/models/tiny") == one
        assert server.send("GET", "/v1/models/small")[0] == 404
        for name in ("demo", "fim", "tiny"):
            reply = server.post("/v1/chat/completions", messages=MESSAGES, max_tokens=1, model=name)
            assert reply["model"] == "demo"
        assert server.refused("/v1/chat/completions", {"messages": MESSAGES, "model": "small"})[0] == 404


def test_the_path_of_the_file_is_told(model: Model) -> None:
    with running(FakeClient([16]), model) as server:
        props = server.get("/props")
    assert props["model_path"] == str(model.file.path)
    assert props["model_path"].endswith(".gguf")
    assert props["model_alias"] == "demo"
