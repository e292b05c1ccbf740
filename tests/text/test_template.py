"""Chat templates render as they do elsewhere, and their faults are named."""

from __future__ import annotations

import json
import re
import threading
from datetime import datetime
from typing import Any

import jinja2
import pytest

from octavo.errors import TemplateError, UsageError
from octavo.text import ChatTemplate, template_clock
from tests.text.chat_templates import CASES, GEMMA, MISTRAL, USER


@pytest.mark.parametrize("case", CASES)
def test_families(case: str) -> None:
    source, messages, arguments, expected = CASES[case]
    assert ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages, **arguments) == expected


def test_a_template_may_refuse() -> None:
    with pytest.raises(TemplateError, match="line 1: the chat template refuses: System role not supported"):
        ChatTemplate(GEMMA).render([{"role": "system", "content": "x"}])
    with pytest.raises(TemplateError, match=r"line 10: .*roles must alternate"):
        ChatTemplate(MISTRAL).render([*USER, *USER])


EXPRESSIONS = {
    "{{ [3, 1, 2]|sort|join(',') }}": "1,2,3",
    "{{ {'b': 1, 'a': [1.5, none, true]}|tojson }}": '{"b": 1, "a": [1.5, null, true]}',
    "{{ {'b': 'ü<'}|tojson(indent=2) }}": '{\n  "b": "ü<"\n}',
    "{{ 'a-b'.split('-')[::-1]|list }}": "['b', 'a']",
    "{{ 'abc'[1:] ~ 1 ~ none }}": "bc1None",
    "{{ '%s=%03d' % ('x', 7) }}": "x=007",
    "{{ '{}-{:>4}'.format('x', 7) }}": "x-   7",
    "{{ 'a\\nb'|indent(2) }}": "a\n  b",
    "{{ [1, 2.5]|sum }} {{ [{'n': 2}, {'n': 3}]|sum('n', 1) }} {{ [[1], [2]]|sum(start=[]) }}": "3.5 6 [1, 2]",
    "{{ 'one two three'|wordwrap(7) }}": "one two\nthree",
    "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }}": "['Hi']",
    "{{ messages|map(attribute='role')|unique|join }}": "user",
    "{{ {'b': 1, 'a': 2}|dictsort }}": "[('a', 2), ('b', 1)]",
    "{{ missing|default('x') }}{{ missing }}": "x",
    "{{ 7 // 2 }} {{ 2 ** 10 }} {{ -3 % 5 }} {{ 'ab' * 2 }}": "3 1024 2 abab",
    "{{ 1 < 2 <= 2 and 'i' in 'Hi' and 3 not in [1] }}": "True",
    "{{ 'x'|upper|replace('X', 'yy')|length }}": "2",
    "{{ ' a '|trim ~ '|' ~ 'B'|lower }}": "a|b",
    "{{ '{\"a\": [1]}'|from_json }}": "{'a': [1]}",
    "{% for a in [1, 2, 3] if a != 2 %}{{ loop.index }}{{ a }}{% if loop.last %}.{% endif %}{% endfor %}": "1123.",
    "{% set x %}{{ 'a' }}b{% endset %}{{ x|upper }}": "AB",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}": "aba",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call m(1) %}c{% endcall %}": "12c",
    "{% for a in range(3) %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% endfor %}": "0",
    "  {% if true %}\nx\n  {% endif %}\ny": "x\ny",
    "{{ messages[0].get('name', 'none') }}": "none",
    "{{ messages[0].items()|list|length }}": "2",
}


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_expressions(source: str) -> None:
    assert ChatTemplate(source).render(USER) == EXPRESSIONS[source]


LIKE_JINJA = [
    "{{ '<a href=\"x\">&\\'</a>'|e }} {{ '<'|safe }} {{ '%s-%d'|format('a', 3) }}",
    "{{ 'abc'|reverse }} {{ [1, 2]|reverse|list }}",
    "{{ 2.567|round(1) }} {{ 2.5|round }} {{ 2.1|round(0, 'ceil') }} {{ 42|round }} {{ 1250|round(-2, 'floor') }}",
    "{{ dict(a=1, b='x') }} {{ dict([('a', 1)]) }} {{ {'a': 1}|items|list }}",
    "{{ {'b': 1, 'a': 2}|dictsort(by='value') }}",
    "{{ [1, 2, 3].index(2) }} {{ [1, 1].count(1) }} {{ ('a', 'b').index('b') }}",
    "{{ 'x'.join(['a', 'b']) }} {{ 'a,b,c'.split(',', 1) }} {{ 'aXb'.partition('X') }} {{ ['a', 'b']|join('<') }}",
    "{{ 'abc'|first }}{{ 'abc'|last }} {{ 'Hello World'|title }} {{ 'hello'|capitalize }} {{ '%05.1f' % 3.14159 }}",
    "{{ ['b', 'A']|sort }} {{ ['b', 'A']|sort(case_sensitive=true) }} {{ [3, 1]|min }}{{ [3, 1]|max }}",
    "{{ [1, none, 2]|select|list }} {{ [1, 2, 3]|reject('odd')|list }} {{ 'abc'|map('upper')|join }}",
    "{{ -3|abs }} {{ 'a'|string }} {{ '3'|int + 1 }} {{ '3.5'|float }} {{ ''|d('c', true) }}",
]


@pytest.mark.parametrize("source", LIKE_JINJA)
def test_filters_and_methods_are_jinjas(source: str) -> None:
    assert ChatTemplate(source).render(USER) == jinja2.Environment(autoescape=False).from_string(source).render()


def test_how_far_numbers_are_rounded_is_bounded() -> None:
    with pytest.raises(TemplateError, match=r"a precision of 400 \(allowed: up to 20\)"):
        ChatTemplate("{{ 1.5|round(400) }}").render(USER)


def test_separators_of_json() -> None:
    source = "{{ {'a': [1, 2]}|tojson(separators=(',', ':')) }}"
    assert ChatTemplate(source).render(USER) == json.dumps({"a": [1, 2]}, separators=(",", ":"))


def test_the_date() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]) == str(datetime.now().year)


LLAMA_3_1 = """{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{{- "Today Date: " + date_string }}"""
LLAMA_3_2 = """{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- "Today Date: " + date_string }}"""


@pytest.mark.parametrize("source", [LLAMA_3_1, LLAMA_3_2, "Today Date: {{ date_string }}"])
def test_templates_that_ask_for_the_date_are_told_todays(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_clock, "now", lambda: datetime(2031, 3, 7, 23, 59))
    template = ChatTemplate(source)
    assert template.render([]) == "Today Date: 07 Mar 2031"
    assert template.render([], date_string="1 May 1999") == "Today Date: 1 May 1999"


def test_a_template_that_refuses_to_go_on_without_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_clock, "now", lambda: datetime(2031, 3, 7))
    source = "{% if not datetime %}{{ raise_exception('which day is it?') }}{% endif %}{{ datetime }}"
    assert ChatTemplate(source).render([]) == "Mar 07 2031"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a\n{% if %}", 2),
        ("a\n\n{% for x in y %}", 3),
        ("\n{{ x|nobody }}", 2),
        ("\n{{ x is nobody }}", 2),
        ("{{ 'a }}", 1),
    ],
)
def test_syntax_errors_name_the_line(source: str, line: int) -> None:
    with pytest.raises(TemplateError, match=f"line {line}"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("a\nb\n{{ foo.bar }}", 3, "'foo' is undefined"),
        ("\n{{ foo() }}", 2, "'foo' is undefined"),
        ("{% macro m() %}\n{{ 1 / 0 }}\n{% endmacro %}\n\n{{ m() }}", 2, "ZeroDivisionError"),
        ("\n{{ 1 + 'a' }}", 2, "TypeError"),
        ("\n{{ messages[0].content() }}", 2, "call of a str"),
    ],
)
def test_errors_while_rendering_name_the_line(source: str, line: int, what: str) -> None:
    with pytest.raises(TemplateError, match=f"line {line}: .*{re.escape(what)}"):
        ChatTemplate(source).render(USER)


def test_the_caller_keeps_its_data() -> None:
    messages = [{"role": "user", "content": "x", "list": [1]}]
    with pytest.raises(TemplateError, match="append"):
        ChatTemplate("{% set _ = messages[0].list.append(2) %}").render(messages)
    assert messages == [{"role": "user", "content": "x", "list": [1]}]


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", [lambda: 1], {"a": [object()]}])
def test_variables_are_plain_data(value: Any) -> None:
    with pytest.raises(UsageError, match="variable thing"):
        ChatTemplate("").render([], thing=value)


def test_variables_that_contain_themselves() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="nested deeper"):
        ChatTemplate("").render([], thing=loop)


def test_long_conversations() -> None:
    messages = [{"role": "user", "content": "x" * 20_000}, {"role": "assistant", "content": "y" * 20_000}] * 60
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content|trim + eos_token }}{% endfor %}"
    assert len(ChatTemplate(source, eos_token="</s>").render(messages)) == 60 * (
        40_000 + len("<user><assistant></s></s>")
    )


def test_threads() -> None:
    template = ChatTemplate("{% for i in range(200) %}{{ messages[0].content }}{% endfor %}")
    results: dict[int, str] = {}
    jobs = [
        threading.Thread(
            target=lambda i=i: results.__setitem__(i, template.render([{"role": "user", "content": str(i)}]))
        )
        for i in range(8)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert results == {i: str(i) * 200 for i in range(8)}
