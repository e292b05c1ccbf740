"""Tools and structured replies, as OpenAI's client sees them, and grammars of calls in each format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from random import Random
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from octavo.errors import GrammarError
from octavo.runtime.grammar import Grammar, Grammars
from octavo.runtime.request import Constraint
from octavo.runtime.thinking import MARKERS, Thinking
from octavo.server import chat
from octavo.server.detail import Detail
from octavo.server.tool_formats import FORMATS, GENERIC, ToolFormat
from octavo.server.tool_grammar import Tool, or_json, tools_grammar
from octavo.server.tool_use import ToolUse, for_template, tool_use
from octavo.text import ChatTemplate, Tokenizer
from tests.runtime.grammar_walk import allowed_tokens, walk
from tests.sampling import slow, some
from tests.server.running import Server
from tests.server.test_chat import ASK, FREE
from tests.server.test_detail import Result
from tests.text.vocabularies import CONTROL, byte_level

PARAMETERS = {
    "type": "object", "required": ["city"], "additionalProperties": False,
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}, "unit": {"enum": ["C"]}},
}  # fmt: skip
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "How it will be.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
KNOWN = [Tool("weather", PARAMETERS), Tool("now", {})]
SPECIAL = dict.fromkeys(("<|im_end|>", "[TOOL_CALLS]", "[ARGS]", "<tool_call>", "</tool_call>"), CONTROL)
PLAIN = Tokenizer.from_metadata(byte_level([], special={"<|im_end|>": CONTROL}, eos_token_id=256))
MARKED = Tokenizer.from_metadata(byte_level([], special=SPECIAL, eos_token_id=256))


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def require_valid(calls: list[tuple[str, str]]) -> None:
    assert calls
    for name, arguments in calls:
        assert name in ("weather", "now")
        jsonschema.validate(json.loads(arguments), PARAMETERS if name == "weather" else {"type": "object"})


IN_FORMATS = [
    *((form, PLAIN) for form in (*FORMATS, GENERIC)), *((form, MARKED) for form in FORMATS if form.opens[0] in SPECIAL),
]  # fmt: skip
OF_EACH_MARKER = [*IN_FORMATS[: len(FORMATS) + 1], *some(IN_FORMATS[len(FORMATS) + 1 :], 4)]
"""By default each format with markers of text, and a few with markers that are tokens."""


@pytest.mark.parametrize(("form", "tokenizer"), OF_EACH_MARKER, ids=lambda p: getattr(p, "name", ""))
def test_a_reply_that_has_to_be_a_call_is_one(form: ToolFormat, tokenizer: Tokenizer) -> None:
    """In each format, by a model that knows nothing, with markers that are text or tokens."""
    grammars, use = Grammars(tokenizer), ToolUse(form, KNOWN, "required")
    ended = 0
    for seed in range(12):
        grammar = use.grammar(tokenizer)
        assert grammar is not None
        tokens = walk(grammars.constraint(grammar), tokenizer, Random(seed), 450)
        if tokens is None:
            continue
        if (ended := ended + 1) > 4:
            break
        thinking = MARKERS[-1] if form.thinks[0] else None
        detail, found = Detail(tokenizer, (), thinking, use.parser(), use.call_id()), Result()
        found.take([*detail.push([t for t in tokens if t not in tokenizer.stop_ids]), *detail.finish()])
        require_valid(found.calls)
        assert found.content.strip() == ""
    assert ended > 3


@pytest.mark.parametrize(("form", "tokenizer"), OF_EACH_MARKER, ids=lambda p: getattr(p, "name", ""))
def test_a_call_that_a_reply_opens_is_one(form: ToolFormat, tokenizer: Tokenizer) -> None:
    """Text before it is free, and so is text after it; control tokens are, too."""
    use, ended = ToolUse(form, KNOWN, "auto", several=False), 0
    grammar = use.grammar(tokenizer)
    for seed in range(12):
        constraint = Grammars(tokenizer).constraint(grammar)
        begun = tokenizer.encode(f"Let me see: <tool {{1}}\n{form.opens[0]}", add_special=False)
        for token in begun:
            assert token in allowed_tokens(constraint, tokenizer)
            constraint.accept(token)
        rng, tokens = Random(seed), list(begun)
        while not (done := tokenizer.stop_ids <= allowed_tokens(constraint, tokenizer)) and len(tokens) < 450:
            tokens += step(constraint, tokenizer, rng)
        if not done:
            continue
        if (ended := ended + 1) > 4:
            break
        found = Result()
        detail = Detail(tokenizer, (), MARKERS[-1] if form.thinks[0] else None, use.parser(), use.call_id())
        found.take([*detail.push(tokens), *detail.finish()])
        require_valid(found.calls)
        assert form.thinks[0] or found.content == "Let me see: <tool {1}"
    assert ended > 3


def called(form: ToolFormat, tool: Tool) -> tuple[str, str]:
    """The call of a reply that has to be one, by a model that knows nothing."""
    use = ToolUse(form, [tool], "required", several=False)
    walked = (walk(Grammars(PLAIN).constraint(use.grammar(PLAIN)), PLAIN, Random(i), 900) for i in range(20))
    tokens = next(tokens for tokens in walked if tokens is not None)
    thinking = MARKERS[-1] if form.thinks[0] else None
    detail, found = Detail(PLAIN, (), thinking, use.parser(), use.call_id()), Result()
    found.take([*detail.push([t for t in tokens if t not in PLAIN.stop_ids]), *detail.finish()])
    assert len(found.calls) == 1
    return found.calls[0]


OF_NAMES = ["get-weather", "ns.now", "a:1", "functions.f", "1", "x" * 128]
OF_KEYS = ["user-id", "from", "@type", "a b", "1a"]


@pytest.mark.parametrize("form", [*FORMATS, GENERIC], ids=lambda form: form.name)
def test_names_that_no_identifier_has(form: ToolFormat) -> None:
    """What a tool may be called is read as it was written, and so are parameters that Python has no words for."""
    for name, key in zip_longest(OF_NAMES, OF_KEYS, fillvalue="f"):
        schema = {"properties": {key: {"type": "integer"}}, "required": [key], "additionalProperties": False}
        found, arguments = called(form, Tool(name, schema))
        assert (found, list(json.loads(arguments))) == (name, [key])


@pytest.mark.parametrize("name", ['a"b', "a<b", "a b", "é", "a/b", "x" * 129, "a\n"])
def test_names_that_a_tool_may_not_have(server: Server, name: str) -> None:
    """No call of it could be read."""
    tool = {"type": "function", "function": {"name": name}}
    status, error = server.refused("/v1/chat/completions", {"messages": ASK, "tools": [tool]})
    assert (status, error["param"]) == (400, "tools")
    allowed = "1 to 128 letters of a-z, A-Z, 0-9 and _ . : -"
    assert error["message"] == f"the name of a tool is {name!r} (allowed: {allowed})"


NESTED = {
    "type": "object", "required": ["list", "inner", "choice"], "additionalProperties": False,
    "properties": {
        "list": {"type": "array", "items": {"type": "string", "maxLength": 4}},
        "inner": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}, "any": {}}},
        "choice": {"enum": ["a", 1, None]},
    },
}  # fmt: skip


def test_values_in_values_between_marks() -> None:
    """Lists and objects of Gemma 4 are held to their schemas."""
    (form,) = (form for form in FORMATS if form.mark)
    use, ended = ToolUse(form, [Tool("f", NESTED)], "required"), 0
    for seed in range(12):
        grammar = use.grammar(PLAIN)
        assert grammar is not None
        tokens = walk(Grammars(PLAIN).constraint(grammar), PLAIN, Random(seed), 450)
        if tokens is not None:
            detail, found = Detail(PLAIN, (), None, use.parser(), use.call_id()), Result()
            found.take([*detail.push([t for t in tokens if t not in PLAIN.stop_ids]), *detail.finish()])
            assert found.calls
            for _, arguments in found.calls:
                jsonschema.validate(json.loads(arguments), NESTED)
            ended += 1
    assert ended > 3


CHOICES: list[Any] = [
    {"type": "string", "enum": ["C", "F"]}, {"type": "string", "const": "C"}, {"const": "C"}, {"enum": ["C", 1]},
    {"type": ["integer", "null"]}, {"type": "array", "maxItems": 0}, {"type": "object", "additionalProperties": False},
]  # fmt: skip


@pytest.mark.parametrize("form", [*FORMATS, GENERIC], ids=lambda form: form.name)
def test_a_value_that_is_one_of_a_few(form: ToolFormat) -> None:
    """Texts have no quotation marks where a format writes texts without."""
    for one in CHOICES:
        if form.mark and "maxItems" in one:
            continue
        schema = {"properties": {"a": one}, "required": ["a"], "additionalProperties": False}
        _, arguments = called(form, Tool("f", schema, strict=True))
        jsonschema.validate(json.loads(arguments), schema)


UNWRITTEN: list[tuple[str, dict[str, Any]]] = [
    ("gemma4", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    ("gemma4", {"type": "array", "minItems": 2}),
    ("gemma4", {"type": "string", "pattern": "[0-9]"}),
    ("xml", {"type": "string", "pattern": "[0-9]"}),
    ("glm", {"type": "string", "format": "date"}),
]


@pytest.mark.parametrize(("name", "one"), UNWRITTEN)
def test_strict_tools_whose_schemas_a_format_has_no_words_for(name: str, one: dict[str, Any]) -> None:
    (form,) = (form for form in FORMATS if form.name == name)
    wrong, keyword = {"type": "object", "properties": {"a": one}}, next(key for key in one if key != "type")
    with pytest.raises(GrammarError, match=f"tool 'f': {keyword} can't be kept to"):
        tools_grammar(form, [Tool("f", wrong, strict=True)], PLAIN, several=False)
    tools_grammar(form, [Tool("f", wrong)], PLAIN, several=False)


def step(constraint: Constraint, tokenizer: Tokenizer, rng: Random) -> list[int]:
    """A token that may come, rather one that closes something."""
    allowed = sorted(allowed_tokens(constraint, tokenizer) - tokenizer.stop_ids)
    soon = [i for i in allowed if tokenizer.token_bytes(i)[:1] in (b'"', b"}", b"]", b"<")]
    token = rng.choice(soon if soon and rng.random() < 0.5 else allowed)
    constraint.accept(token)
    return [token]


@pytest.mark.parametrize(("name", "begun"), [("llama3", '{"name": "weather"'), ("pythonic", "[weather(")])
def test_a_call_without_a_marker(name: str, begun: str) -> None:
    """It is one from where its name is known; a reply that only looks like it is text."""
    (form,) = (f for f in FORMATS if f.name == name)
    grammar = ToolUse(form, KNOWN, "auto").grammar(PLAIN)
    for text, free in ((begun, False), (begun[:5], True), (f"See {begun}", True), (begun.replace("wea", "x"), True)):
        constraint = Grammars(PLAIN).constraint(grammar)
        for token in PLAIN.encode(text, add_special=False):
            constraint.accept(token)
        assert (PLAIN.stop_ids <= allowed_tokens(constraint, PLAIN)) == free


def test_calls_after_thinking() -> None:
    """What stands in thinking is held to nothing."""
    grammar = ToolUse(GENERIC, KNOWN, "auto").grammar(PLAIN)
    constraint = Grammars(PLAIN).constraint(grammar, Thinking("<think>", "</think>", begun=True))
    for token in PLAIN.encode("<tool_call>x</think>\n<tool_call>", add_special=False):
        constraint.accept(token)
    assert {PLAIN.texts[i] for i in allowed_tokens(constraint, PLAIN)} == {"Ċ"}


@pytest.mark.parametrize("seeds", [range(1), slow(range(100))])
def test_a_model_that_opens_a_call(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    """The demo model, which is made to begin one, at a temperature at which it writes nonsense."""
    made = chat._calls_that_open

    def opens(*given: Any) -> Grammar:
        grammar = made(*given)
        assert grammar is not None
        forced = grammar.text.replace("start: (opened0)*", "start: opened0")
        forced = forced.replace("/(?s:.*)<tool_call>/", "/<tool_call>/")
        assert (forced.count("start: opened0 "), forced.count("/<tool_call>/")) == (1, 1)
        return Grammar("reply", forced)

    monkeypatch.setattr(chat, "_calls_that_open", opens)
    for seed in seeds:
        reply = client.chat.completions.create(
            model="x", messages=ASK, tools=TOOLS, seed=seed, max_tokens=120, extra_body=FREE | {"temperature": 2}
        )
        (one,) = reply.choices
        if one.finish_reason != "length":
            calls: list[Any] = one.message.tool_calls or []
            require_valid([(call.function.name, call.function.arguments) for call in calls])


def test_tools_that_no_grammar_holds(server: Server) -> None:
    """Calls of a tool whose schema can't be kept to are held to less; a strict one is refused."""
    for strict in (False, True):
        body: dict[str, Any] = {"messages": ASK, "max_tokens": 2, "tools": [
            {"type": "function", "function": {"name": "f", "parameters": ENDLESS, "strict": strict}}]}  # fmt: skip
        if strict:
            status, error = server.refused("/v1/chat/completions", body)
            assert (status, error["param"]) == (400, "tools")
        else:
            assert server.post("/v1/chat/completions", **body)["usage"]["completion_tokens"] > 0


UNKEPT = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}


@pytest.mark.parametrize("more", [
    {}, {"tool_choice": "required"}, {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
], ids=str)  # fmt: skip
def test_a_strict_tool_that_can_not_be_kept_to_is_named(server: Server, more: dict[str, Any]) -> None:
    """With what is wrong, and no lines of a grammar that nobody wrote."""
    loose = {"type": "function", "function": {"name": "loose", "parameters": UNKEPT}}
    strict = {"type": "function", "function": {"name": "weather", "parameters": UNKEPT, "strict": True}}
    body = {"messages": ASK, "tools": [loose, strict], **more}
    _, error = server.refused("/v1/chat/completions", body)
    assert (error["param"], error["message"]) == ("tools", "tool 'weather' is strict: Unimplemented keys: [\"not\"]")


def test_a_grammar_that_is_wrong_is_not_repeated(server: Server) -> None:
    """An error says where the fault is, without the lines around it."""
    _, error = server.refused("/v1/chat/completions", {"messages": ASK, "grammar": "start: a\nb: /x/"})
    assert error["message"] == 'the grammar can\'t be used: at 1(8): unknown name: "a"'


def test_a_named_call_is_one_call() -> None:
    grammar = tools_grammar(
        GENERIC, [Tool("now", {"type": "object", "additionalProperties": False})], PLAIN, several=False
    )
    tokens = walk(Grammars(PLAIN).constraint(grammar), PLAIN, Random(1))
    assert tokens is not None
    assert "".join(PLAIN.decode(tokens).split()) == '<tool_call>{"name":"now","arguments":{}}</tool_call>'


def test_calls_or_json() -> None:
    grammar = or_json(tools_grammar(GENERIC, KNOWN, PLAIN, several=True), Grammar.json_schema({"enum": ["x"]}))
    found = {walked[0] for i in range(20) if (walked := walk(Grammars(PLAIN).constraint(grammar), PLAIN, Random(i)))}
    assert {PLAIN.texts[i] for i in found} == {'"', "<"}


NAMED = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(("choice", "seeds"), [(NAMED, range(1)), slow(("required", range(100)))])
def test_a_call_that_has_to_be(client: openai.OpenAI, choice: Any, seeds: range) -> None:
    more: dict[str, Any] = FREE | {"temperature": 2}
    for seed in seeds:
        reply = client.chat.completions.create(
            model="x", messages=ASK, tools=TOOLS, tool_choice=choice, seed=seed, max_tokens=120, extra_body=more
        )
        (one,) = reply.choices
        if one.finish_reason == "length":
            continue
        assert (one.finish_reason, one.message.content) == ("tool_calls", None)
        calls: list[Any] = one.message.tool_calls or []
        require_valid([(call.function.name, call.function.arguments) for call in calls])
        assert len({call.id for call in calls}) == len(calls)
        if choice != "required":
            assert [call.function.name for call in calls] == ["now"]


TWO = (
    'See:\n<tool_call>{"name":"weather","arguments":{"city":"</tool_call>"}}</tool_call>'
    '<tool_call>{"name":"now"}</tool_call>'
)


def scripted(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let every reply be a text."""
    monkeypatch.setattr(chat, "_grammar_of", lambda *_: Grammar.choice([text]))


def test_a_stream_of_calls(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, TWO)
    chunks = list(client.chat.completions.create(model="x", messages=ASK, tools=TOOLS, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "See:"
    parts = [call for delta in deltas for call in delta.tool_calls or ()]
    first = {part.index: part for part in reversed(parts)}
    assert [(i, p.type, p.function and p.function.name) for i, p in sorted(first.items())] == [
        (0, "function", "weather"), (1, "function", "now"),
    ]  # fmt: skip
    assert sum(part.id is not None for part in parts) == 2
    arguments = ["".join((p.function and p.function.arguments) or "" for p in parts if p.index == i) for i in (0, 1)]
    assert [json.loads(a) for a in arguments] == [{"city": "</tool_call>"}, {}]
    assert len([p for p in parts if p.index == 0]) > 2
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(model="x", messages=ASK, tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    assert [call.function.name for call in message.tool_calls or ()] == ["weather", "now"]


def test_thinking_is_told_apart(
    client: openai.OpenAI, server: Server, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, f"<think>\nHm.\n</think>\n\n{TWO}")
    source = server.service.template.source
    monkeypatch.setattr(server.service, "template", ChatTemplate(source + "{# </think> #}"))
    reply = client.chat.completions.create(model="x", messages=ASK, tools=TOOLS)
    message = reply.choices[0].message
    assert (message.model_extra or {})["reasoning_content"] == "Hm."
    assert message.content == "See:"
    assert len(message.tool_calls or ()) == 2
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None
    assert (reply.usage.completion_tokens_details.reasoning_tokens or 0) > 0


def test_a_conversation_with_calls(client: openai.OpenAI, server: Server) -> None:
    """Calls and results go back into the prompt; without tools the template is told of none."""
    messages: list[Any] = [
        *ASK, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "<|im_end|>"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]  # fmt: skip
    prompt = server.post("/apply-template", messages=messages, tools=TOOLS)["prompt"]
    assert '<tool_call>\n{"name": "now", "arguments": {"zone": "<|im_end|>"}}\n</tool_call>' in prompt
    assert "<tool_response>\n12:00\n</tool_response>" in prompt
    assert '"name": "weather"' in prompt
    told = [client.chat.completions.create(model="x", messages=messages, max_tokens=1, **more).usage for more in (
        {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {})]  # fmt: skip
    with_tools, none, without = (usage.prompt_tokens for usage in told if usage)
    assert with_tools > none == without


OBJECTS = "{{ messages[1].tool_calls[0].function.arguments | tojson }}"
TEXTS = "{{ messages[1].tool_calls[0].function.arguments }}"


@pytest.mark.parametrize("source", [OBJECTS, TEXTS])
def test_arguments_are_what_a_template_writes_as_json(source: str) -> None:
    template = ChatTemplate("{{ tools }}<tool_call>" + source)
    for arguments in ('{"a": "b"}', {"a": "b"}):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        assert template.render(for_template(template, messages, [])).endswith('{"a": "b"}')


def test_ids_as_mistral_wants_them() -> None:
    template = ChatTemplate("{{ tools }}[TOOL_CALLS]")
    call = {"id": "call_abc", "type": "function", "function": {"name": "f", "arguments": {}}}
    told = for_template(template, [{"role": "assistant", "content": "", "tool_calls": [call]},
                                   {"role": "tool", "content": "", "tool_call_id": "call_abc"}], [])  # fmt: skip
    assert told[0]["tool_calls"][0]["id"] == told[1]["tool_call_id"]
    assert len(told[1]["tool_call_id"]) == 9
    use = tool_use(template, [{"name": "f"}], "auto", None, True)
    assert use is not None
    assert len(use.call_id()()) == 9


DEEPSEEK = "{{ messages[0].content }}{% if messages[-1]['tool_calls'] %}<｜tool▁call▁begin｜>f<｜tool▁sep｜>{% endif %}"


def test_a_template_with_calls_that_tells_no_tools() -> None:
    """The system message tells of them, and of calls as the model writes them."""
    template = ChatTemplate(DEEPSEEK)
    told = for_template(template, [{"role": "user", "content": "x"}], TOOLS)
    assert [m["role"] for m in told] == ["system", "user"]
    assert "<｜tool▁call▁begin｜>...<｜tool▁sep｜>{...}<｜tool▁call▁end｜>" in told[0]["content"]
    assert '"name": "weather"' in told[0]["content"]
    use = tool_use(template, [{"name": "f"}], "auto", None, True)
    assert use is not None
    assert (use.form.name, use.told) == ("deepseek_v31", False)


class Answer(BaseModel):
    kind: Literal["sum", "product"]
    ok: bool


def test_replies_of_a_schema(client: openai.OpenAI) -> None:
    for seed in range(2):
        reply = client.chat.completions.parse(model="x", messages=ASK, response_format=Answer, seed=seed,
                                              extra_body=FREE | {"temperature": 2})  # fmt: skip
        assert reply.choices[0].message.parsed is not None
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="x", messages=ASK, response_format=Answer, max_tokens=2)


GRAMMARS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["a", 1]}}}},
        ('"a"', "1"),
    ),
    ({"grammar": 'root ::= "a" | "b"'}, ("a", "b")),
    ({"grammar": 'start: "a" | "b"'}, ("a", "b")),
    ({"structured_outputs": {"choice": ["c", "d"]}}, ("c", "d")),
    ({"structured_outputs": {"json": {"enum": [1, 2]}}}, ("1", "2")),
    ({"guided_regex": "[xy]{2}"}, ("xx", "xy", "yx", "yy")),
    ({"guided_choice": ["c"]}, ("c",)),
]


@pytest.mark.parametrize(("more", "texts"), GRAMMARS)
def test_fields_that_hold_a_reply_to_a_form(server: Server, more: dict[str, Any], texts: tuple[str, ...]) -> None:
    reply = server.chat("x", **FREE, **more)
    assert reply["choices"][0]["message"]["content"] in texts
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert server.post("/v1/completions", prompt="x", **FREE, **more)["choices"][0]["text"] in texts


def test_forms_of_llama_servers_route(server: Server) -> None:
    assert server.post("/completion", prompt="x", json_schema={"enum": [7]})["content"] == "7"
    assert server.post("/completion", prompt="x", grammar='root ::= "no"')["content"] == "no"


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": ENDLESS}}},
        "response_format",
        "no finite value",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": list(range(10**5))}}}},
        "response_format",
        "characters",
    ),
    (
        {"response_format": {"type": "json_schema", "schema": {"pattern": "(", "type": "string"}}},
        "response_format",
        "unclosed",
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format", "no schema"),
    ({"grammar": "root ::= x"}, "grammar", "Rule 'x' not found"),
    ({"guided_regex": "("}, "guided_regex", "unclosed"),
    ({"guided_regex": "a", "grammar": "start: /a/"}, "guided_regex", "both given"),
    ({"structured_outputs": {}}, "structured_outputs", "has 0 of"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice", "'rm'"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tools": TOOLS * 2}, "tools", "same name"),
    ({"tools": TOOLS, "grammar": "start: /a/"}, "grammar", "and tools"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": ENDLESS}}], "tool_choice": "required"},
        "tools",
        "no finite value",
    ),
]


@pytest.mark.parametrize(("more", "param", "message"), WRONG)
def test_what_is_wrong_with_forms(server: Server, more: dict[str, Any], param: str, message: str) -> None:
    status, error = server.refused("/v1/chat/completions", {"messages": ASK, **more})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert message in error["message"]
