"""Replies become text, thinking and calls, in each format, and the same ones wherever they are cut."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.runtime.output.thinking import MARKERS, Thinking
from octavo.server.generation.output_parser import Delta, OutputParser
from octavo.server.tool_calls.formats import FORMATS, GENERIC, ToolFormat, format_of
from octavo.server.tool_calls.parser import ToolParser
from octavo.text import Tokenizer
from tests.text.vocabularies import byte_level

TOKENIZER = Tokenizer.from_metadata(byte_level(["< t", "] [", '" }', "} }", "} Ċ"]))
TOOLS = {
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "say": {"type": "object", "properties": {"text": {"type": "string"}}},
    "ns.now": {"type": "object"},
}
THINK, BEGUN = Thinking("<think>", "</think>"), Thinking("<think>", "</think>", begun=True)
BY_NAME = {f.name: f for f in (*FORMATS, GENERIC)}


@dataclass
class Result:
    """All deltas of a reply together, with the rules that clients rely on checked."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    stopped: str | None = None

    def take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self.content += delta.content
            self.reasoning += delta.reasoning
            assert delta.content or delta.reasoning or delta.tool
            if delta.tool is None:
                continue
            if delta.tool.name is not None:
                assert delta.tool.index == len(self.calls)
                assert delta.tool.id
                self.calls.append((delta.tool.name, ""))
            assert delta.tool.index == len(self.calls) - 1
            assert (delta.tool.id is None) == (delta.tool.name is None)
            name, arguments = self.calls[-1]
            self.calls[-1] = name, arguments + delta.tool.arguments


def result(
    text: str, form: ToolFormat | None = None, thinking: Thinking | None = None, cuts: list[int] | None = None,
    stops: tuple[str, ...] = (),
) -> Result:
    """What a reply comes to that arrives in pieces between `cuts` (places between tokens)."""
    tokens = TOKENIZER.encode(text)
    parser = None if form is None else ToolParser(form, TOOLS)
    detail, found = OutputParser(TOKENIZER, stops, thinking, parser), Result()
    places = [0, *sorted(c for c in cuts or range(len(tokens)) if c < len(tokens)), len(tokens)]
    for start, end in pairwise(places):
        found.take(detail.push(tokens[start:end]))
    found.take(detail.finish())
    found.stopped = detail.stopped
    return found


def same_in_all_cuts(
    text: str, form: ToolFormat | None = None, thinking: Thinking | None = None, **more: Any
) -> Result:
    """The result token by token, which is that at once, in two pieces cut anywhere, and in many."""
    wanted, n, rng = result(text, form, thinking, **more), len(TOKENIZER.encode(text)), Random(text)
    for cuts in ([0], *([i] for i in range(n)), *(rng.sample(range(n + 1), min(n, 9)) for _ in range(9))):
        assert result(text, form, thinking, cuts=cuts, **more) == wanted
    return wanted


def written(form: ToolFormat, n: int) -> str:
    """This many calls of `add`, as a model writes them."""
    parameters = [form.parameter.replace("KEY", key).replace("VALUE", "1") for key in "ab"]
    arguments = form.comma.join(parameters) if form.parameter else '{"a": 1, "b": 1}'
    if form.mark:
        arguments = "a:1,b:1"
    one = form.call.replace("NAME", "add").replace("ARGUMENTS", arguments)
    return (form.joint or "").join(one.replace("NUMBER", str(i)) for i in range(n)).join(form.around)


@pytest.mark.parametrize("form", BY_NAME.values(), ids=list(BY_NAME))
@pytest.mark.parametrize("before", ["", "Let me see.\n"])
def test_a_call_that_is_cut_is_no_text(form: ToolFormat, before: str) -> None:
    """At any of its characters, of the first call and of the second one; nor is any of it shown in a stream."""
    if before and form.name in ("harmony", "llama3", "pythonic"):  # which begin a message, or a reply
        before = ""
    n = 1 if form.joint is None else 2
    calls = written(form, n)
    assert len(cut_off(form, before + calls).calls) == n
    for end in range(1, len(calls)):
        found = cut_off(form, before + calls[:end])
        assert found.content.rstrip() == before.rstrip(), calls[:end]
        assert all(name == "add" for name, _ in found.calls)


def cut_off(form: ToolFormat, text: str) -> Result:
    thinking = MARKERS[-1] if form.thinks[0] else None
    detail, found = OutputParser(TOKENIZER, (), thinking, ToolParser(form, TOOLS)), Result()
    for token in TOKENIZER.encode(text):
        found.take(detail.push([token]))
    found.take(detail.finish(cut=True))
    return found


@pytest.mark.parametrize(("name", "text"), [
    ("llama3", '{"name": "Bob", "age": 4'), ("llama3", '{"answer": "as long as'), ("llama3", '{"name": "B'),
    ("pythonic", "[Note: this"), ("pythonic", "[1] Accord"), ("hermes", "a < b"), ("generic", "<tool> is"),
])
def test_text_that_is_cut_is_shown(name: str, text: str) -> None:
    assert cut_off(BY_NAME[name], text).content == text


@pytest.mark.parametrize("thinking", [THINK, BEGUN])
def test_parts_of_markers_of_thinking_that_are_cut_are_no_text(thinking: Thinking) -> None:
    text = "I see.</think>" if thinking.begun else "<think>I see.</think>"
    for end in range(1, len(text)):
        detail, found = OutputParser(TOKENIZER, (), thinking), Result()
        found.take(detail.push(TOKENIZER.encode(text[:end])))
        found.take(detail.finish(cut=True))
        assert "I see.".startswith(found.reasoning)
        assert not found.content


ADD = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
ODD = '{"text": "a </tool_call> \\" } [TOOL_CALLS] ü"}'
SAY = f'{{"name": "say", "arguments": {ODD}}}'
XML_END = "<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>"
REPLIES: dict[str, tuple[str, str, str, list[tuple[str, Any]]]] = {
    "one": ("hermes", f"<tool_call>\n{ADD}\n</tool_call>", "", [("add", {"a": 1, "b": 2})]),
    "two, with text": (
        "hermes",
        f"Let me see.\n<tool_call>{ADD}</tool_call>\n<tool_call>\n{SAY}\n</tool_call>\n",
        "Let me see.",
        [("add", {"a": 1, "b": 2}), ("say", json.loads(ODD))],
    ),
    "text after": ("hermes", f"<tool_call>{ADD}</tool_call>\n\nDone.", "Done.", [("add", {"a": 1, "b": 2})]),
    "never closed": ("hermes", f"<tool_call>{ADD}", "", [("add", {"a": 1, "b": 2})]),
    "arguments first": (
        "hermes",
        '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
        "",
        [("add", {"a": 1})],
    ),
    "arguments as a text": (
        "hermes",
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        [("add", {"a": 1})],
    ),
    "no arguments": ("generic", '<tool_call>{"name": "ns.now"}</tool_call>', "", [("ns.now", {})]),
    "nested names": (
        "hermes",
        '<tool_call>{"name": "say", "arguments": {"name": {"arguments": [{"name": 1.5}]}}}</tool_call>',
        "",
        [("say", {"name": {"arguments": [{"name": 1.5}]}})],
    ),
    "xml": (
        "xml",
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n" + XML_END,
        "",
        [("add", {"a": 1, "b": 2})],
    ),
    "xml without a tag": (
        "xml",
        "Hm. <function=say><parameter=text>\nx </tool_call> </function>\n\n</parameter></function>",
        "Hm.",
        [("say", {"text": "x </tool_call> </function>\n"})],
    ),
    "xml of a number": (
        "xml",
        "<function=say><parameter=text>12</parameter></function>",
        "",
        [("say", {"text": "12"})],
    ),
    "xml of nothing": ("xml", "<tool_call><function=ns.now></function></tool_call>", "", [("ns.now", {})]),
    "llama": ("llama3", '{"name": "add", "parameters": {"a": 1}}', "", [("add", {"a": 1})]),
    "llama, two": (
        "llama3",
        '<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "ns.now", "parameters": {}}',
        "",
        [("add", {"a": 1}), ("ns.now", {})],
    ),
    "mistral": ("mistral", f"[TOOL_CALLS][{ADD}, {SAY}]", "", [("add", {"a": 1, "b": 2}), ("say", json.loads(ODD))]),
    "mistral, newer": (
        "mistral",
        'Well.[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]ns.now[CALL_ID]abc[ARGS]{}',
        "Well.",
        [("add", {"a": 1}), ("ns.now", {})],
    ),
    "pythonic": (
        "pythonic",
        '[add(a=1, b=-2), say(text="x)]\\"\'")]',
        "",
        [("add", {"a": 1, "b": -2}), ("say", {"text": "x)]\"'"})],
    ),
    "deepseek v3": (
        "deepseek_v3",
        "One moment.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
        '{"a": 1, "b": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>say\n```json\n'
        f"{ODD}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "One moment.",
        [("add", {"a": 1, "b": 2}), ("say", json.loads(ODD))],
    ),
    "deepseek v3.1": (
        "deepseek_v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
        f"<｜tool▁call▁begin｜>say<｜tool▁sep｜>{ODD}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [("add", {"a": 1}), ("say", json.loads(ODD))],
    ),
    "kimi": (
        "kimi_k2",
        "Let me.<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.ns.now:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "Let me.",
        [("add", {"a": 1}), ("ns.now", {})],
    ),
    "glm": (
        "glm",
        "I look.\n<tool_call>say\n<arg_key>text</arg_key>\n<arg_value>12 </tool_call></arg_value>\n</tool_call>\n"
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
        "<arg_value>-2</arg_value>\n</tool_call>",
        "I look.",
        [("say", {"text": "12 </tool_call>"}), ("add", {"a": 1, "b": -2})],
    ),
    "glm without lines": (
        "glm",
        "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call><tool_call>ns.now</tool_call>",
        "",
        [("add", {"a": 1}), ("ns.now", {})],
    ),
    "minimax": (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">1</parameter>\n</invoke>\n<invoke name="say">\n'
        '<parameter name="text">x </invoke></parameter>\n</invoke>\n</minimax:tool_call>',
        "",
        [("add", {"a": 1}), ("say", {"text": "x </invoke>"})],
    ),
    "gemma": (
        "gemma4",
        "Let me.<|tool_call>call:add{a:1,b:-2}<tool_call|>"
        '<|tool_call>call:say{text:<|"|>x}, "<b>" \\<|"|>}<tool_call|>',
        "Let me.",
        [("add", {"a": 1, "b": -2}), ("say", {"text": 'x}, "<b>" \\'})],
    ),
    "gemma, nested": (
        "gemma4",
        '<|tool_call>call:say{text:bare words,o:{l:[<|"|>a<|"|>,true,{}],<|"|>k<|"|>:null},e:[]}<tool_call|>'
        "<|tool_call>call:ns.now{}<tool_call|>",
        "",
        [("say", {"text": "bare words", "o": {"l": ["a", True, {}], "k": None}, "e": []}), ("ns.now", {})],
    ),
    "seed": (
        "seed_oss",
        "<seed:tool_call>\n<function=add>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>",
        "",
        [("add", {"a": 1})],
    ),
    "granite": ("granite", f"<|tool_call|>[{ADD}, {SAY}]", "", [("add", {"a": 1, "b": 2}), ("say", json.loads(ODD))]),
    "phi": ("granite", f"<|tool_call|>[{ADD}]<|/tool_call|>", "", [("add", {"a": 1, "b": 2})]),
    "nemotron": ("nemotron", f"<TOOLCALL>[{SAY}]</TOOLCALL>", "", [("say", json.loads(ODD))]),
    "jamba": ("jamba", f"Hm.<tool_calls>[\n{ADD}\n]</tool_calls>", "Hm.", [("add", {"a": 1, "b": 2})]),
    "functionary": (
        "functionary",
        f'Yes. <function=add>{{"a": 1}}</function><function=say>{ODD}</function>',
        "Yes.",
        [("add", {"a": 1}), ("say", json.loads(ODD))],
    ),
    "pythonic, words of Python's": (
        "pythonic",
        "[ say(from='a, b=c', class=[1, {'x=': (2,)}], user-id=\"(\"), ns.now( ), ]",
        "",
        [("say", {"from": "a, b=c", "class": [1, {"x=": [2]}], "user-id": "("}), ("ns.now", {})],
    ),
    "pythonic, marked": ("pythonic", "Ok <|tool_call_start|>[ns.now()]<|tool_call_end|>", "Ok", [("ns.now", {})]),
}


@pytest.mark.parametrize("case", REPLIES)
def test_calls(case: str) -> None:
    form, text, content, calls = REPLIES[case]
    got = same_in_all_cuts(text, BY_NAME[form])
    assert (got.content, [(name, json.loads(a)) for name, a in got.calls]) == (content, calls)


TEXTS = {
    "plain": ("hermes", "Just <b>text</b>, [1, 2] and {3}.  \n"),
    "unknown tool": ("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'),
    "no JSON": ("hermes", "<tool_call>add(1, 2)</tool_call>"),
    "no object": ("hermes", "<tool_call>[1]</tool_call>"),
    "no name": ("generic", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    "begun": ("hermes", '<tool_call>{"name": "ad'),
    "marker only": ("hermes", "<tool_call>"),
    "half a marker": ("hermes", "a <tool_"),
    "llama JSON": ("llama3", '{"result": [1, 2]}'),
    "llama later": ("llama3", 'See {"name": "add", "parameters": {}}'),
    "list": ("pythonic", "[1, 2] is a list"),
    "link": ("pythonic", "[see](http://x)"),
    "call by place": ("pythonic", "[add(1, 2)]"),
    "code": ("pythonic", "[add(a=__import__('os'))]"),
    "call of a call": ("pythonic", "[add(a=1)(b=2)]"),
    "many at once": ("pythonic", "[add(**{'a': 1})]"),
    "nothing between commas": ("pythonic", "[add(a=1,, b=2)]"),
    "no value": ("pythonic", "[add(a=)]"),
    "python": ("mistral", "[TOOL_CALLS] none"),
    "no name of deepseek": ("deepseek_v31", "<｜tool▁calls▁begin｜>{}"),
    "unknown tool of glm": ("glm", "<tool_call>rm\n<arg_key>a</arg_key>"),
    "unknown tool of gemma": ("gemma4", "<|tool_call>call:rm{a:1}<tool_call|>"),
    "no call of gemma": ("gemma4", "<|tool_call>add{a:1}"),
    "no array": ("granite", '<|tool_call|>{"name": "add"}'),
    "xml text": ("xml", "<function=rm><parameter=a>1</parameter></function> and <function"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_what_is_no_call_is_text(case: str) -> None:
    form, text = TEXTS[case]
    got = same_in_all_cuts(text, BY_NAME[form])
    assert (got.content, got.calls) == (text, [])


def test_a_call_after_what_is_none() -> None:
    got = same_in_all_cuts(f"<tool_call>x <tool_call>{ADD}</tool_call>", BY_NAME["hermes"])
    assert (got.content, len(got.calls)) == ("<tool_call>x", 1)


def test_a_call_that_breaks_off_ends_there() -> None:
    got = same_in_all_cuts('<tool_call>{"name": "add", "arguments": {"a": x}}</tool_call> y', BY_NAME["hermes"])
    assert got.calls == [("add", '{"a": ')]
    assert got.content.startswith("x}}")


THOUGHTS = {
    "thinks": (THINK, "<think>\nHm.\n\nSo:\n</think>\n\nYes. <think>", "Hm.\n\nSo:", "Yes. <think>"),
    "begun": (BEGUN, "Hm </thin </think>Yes", "Hm </thin", "Yes"),
    "does not": (THINK, "  Yes </think>", "", "  Yes </think>"),
    "cut": (THINK, "\n<think> Hm </thi", "Hm </thi", ""),
    "cut at once": (THINK, "<thi", "", "<thi"),
    "empty": (THINK, "<think>\n\n</think>\n\nYes", "", "Yes"),
    "no markers": (None, "<think>a</think>b", "", "<think>a</think>b"),
    "brackets": (MARKERS[5], "[THINK]a[b][/THINK] c", "a[b]", "c"),
    "harmony": (
        MARKERS[-1],
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Yes",
        "Hm",
        "Yes",
    ),
    "harmony at once": (MARKERS[-1], "<|channel|>final<|message|>Yes", "", "Yes"),
    "harmony, several": (
        MARKERS[-1],
        "<|channel|>analysis<|message|>One. <|end|><|start|>assistant<|channel|>analysis<|message|> Two<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes <|x|><|return|>",
        "One.\n Two",
        "I look.Yes <|x|>",
    ),
    "harmony, cut": (MARKERS[-1], "<|channel|>analysis<|message|>Hm<|en", "Hm<|en", ""),
    "harmony, cut in a header": (MARKERS[-1], "<|channel|>analysis<|mess", "", ""),
    "no harmony": (MARKERS[-1], "Yes <|channel|>", "", "Yes <|channel|>"),
}


@pytest.mark.parametrize("case", THOUGHTS)
def test_thinking(case: str) -> None:
    thinking, text, reasoning, content = THOUGHTS[case]
    got = same_in_all_cuts(text, None, thinking)
    assert (got.reasoning, got.content) == (reasoning, content)


def test_thinking_then_calls() -> None:
    """What stands in thinking is not a call."""
    text = f"<think>Not <tool_call>{ADD}</tool_call></think>\n\nOk\n<tool_call>{SAY}</tool_call>"
    got = same_in_all_cuts(text, BY_NAME["hermes"], THINK)
    assert (got.reasoning, got.content) == (f"Not <tool_call>{ADD}</tool_call>", "Ok")
    assert [name for name, _ in got.calls] == ["say"]


HARMONY = "<|channel|>analysis<|message|>I need {x}.<|end|><|start|>assistant"
HEADERS = (
    "<|channel|>commentary to=functions.say <|constrain|>json<|message|>",
    " to=functions.say<|channel|>commentary json<|message|>",
    "<|channel|>commentary to=functions.say<|message|>",
    "<|channel|>analysis to=functions.say code<|message|>",
)


@pytest.mark.parametrize("header", HEADERS)
def test_calls_of_harmony(header: str) -> None:
    """In the orders in which gpt-oss writes a header, with thinking before it."""
    got = same_in_all_cuts(f"{HARMONY}{header}{ODD}<|call|>", BY_NAME["harmony"], MARKERS[-1])
    assert (got.reasoning, got.content) == ("I need {x}.", "")
    assert [(name, json.loads(a)) for name, a in got.calls] == [("say", json.loads(ODD))]


def test_what_is_no_call_of_harmony() -> None:
    text = f"{HARMONY}<|channel|>commentary<|message|>Now {ODD}<|end|><|start|>assistant<|channel|>final<|message|>{{}}"
    got = same_in_all_cuts(text, BY_NAME["harmony"], MARKERS[-1])
    assert (got.content, got.calls) == (f"Now {ODD}{{}}", [])


def test_stop_strings() -> None:
    got = same_in_all_cuts("<think>a b</think>c STOP d", None, THINK, stops=("STOP", "b</think>c S"))
    assert (got.reasoning, got.content, got.stopped) == ("a", "", "b</think>c S")
    got = same_in_all_cuts("one STO two STOP three", stops=("x", "STOP"))
    assert (got.content, got.stopped) == ("one STO two ", "STOP")
    assert same_in_all_cuts("one STO", stops=("STOP",)).content == "one STO"


WORDS = [
    ADD, SAY, "<tool_call>", "</tool_call>", "<think>", "</think>", "\n", " ", "[TOOL_CALLS]", "[", "]", "}", '"', ";",
    '{"name": "add", ', "<function=add>", "<parameter=a>", "1", "</parameter>", "</function>", "add[ARGS]",
    "[add(a=1)]", "<|tool_call>", "call:add{", '<|"|>',
    "ü", "<|python_tag|>", "<", ",",
]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    words=st.lists(st.sampled_from(WORDS), max_size=9), form=st.sampled_from([None, *BY_NAME.values()]),
    thinking=st.sampled_from([None, THINK, BEGUN]), cuts=st.lists(st.integers(0, 60), max_size=8),
    stops=st.sampled_from([(), ("]}",), ("<t", "1\n")]),
)
def test_any_reply_in_any_pieces(
    words: list[str], form: ToolFormat | None, thinking: Thinking | None, cuts: list[int], stops: tuple[str, ...]
) -> None:
    text = "".join(words)
    assert result(text, form, thinking, cuts=cuts, stops=stops) == result(text, form, thinking, stops=stops)


def test_formats_are_told_by_templates() -> None:
    told = {
        "{% if tools %}<tool_call>{% endif %}": "hermes",
        "{% if tools %}<tool_call><function=": "xml",
        "{{ tools }}[TOOL_CALLS]": "mistral_list",
        '{{ tools }}{"name": f, "parameters": dict}': "llama3",
        "{{ tools }}[func_name1(params_name1=": "pythonic",
        "{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]": "mistral",
        "{% if tools %}<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>": "glm",
        "{% if tools %}<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>": "glm",
        "tool_calls '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name + '```json'": "deepseek_v3",
        "tool_calls '<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'": "deepseek_v31",
        "{{ tools }}<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>": "kimi_k2",
        "{% set toolcall_begin_token = '<minimax:tool_call>' %}{{ tools }}": "minimax_m2",
        "{{ tools }}'<|tool_call>call:' + function['name'] + '{'": "gemma4",
        "{{ tools }}<seed:tool_call>\n<function=example_function_name>": "seed_oss",
        "{{ tools }}'<|tool_call|>' followed by a JSON list of tools": "granite",
        '{{ tools }}\'<TOOLCALL>[{{"name": "tool_name1"': "nemotron",
        "{{ tools }}<tool_calls>": "jamba",
        '{{ tools }}<function=example_function_name>{"example_name"': "functionary",
        "{{ tools }}<|start|>assistant<|channel|>commentary to=": "harmony",
        "no such thing <tool_call>": "generic",
    }
    assert {template: format_of(template).name for template in told} == told
