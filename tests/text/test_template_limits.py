"""Templates that are not trusted: every one ends within a second, a small memory, and with a TemplateError."""

from __future__ import annotations

import threading
import tracemalloc

import pytest

from octavo.errors import TemplateError
from octavo.text import ChatTemplate
from octavo.text.sandbox import budget
from tests.limits import HANG_S, processor_time
from tests.sampling import some
from tests.text.chat_templates import USER

# Data that is small in memory and 2**60 long as text; comparing or hashing it takes as long.
PAIRS = (
    "{% set ns = namespace(s='a', t='a') %}"
    "{% for i in range(60) %}{% set ns.s = (ns.s, ns.s) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
)

INJECTION = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'].x }}",
    "{{ messages.__class__.x }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ namespace.__init__.__globals__['__builtins__'] }}",
    "{{ self.__init__.__globals__ }}",
    "{{ raise_exception.__globals__.x }}",
    "{{ strftime_now.__code__.x }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{a}'.format_map({'a': 1}) }}",
    "{{ [''].__getitem__(0) }}",
    "{{ messages|sort(attribute='__class__.__name__') }}",
    "{{ namespace.mro() }}",
    "{{ 'a'.encode() }}",
    "{% macro m() %}{% endmacro %}{{ m.__call__.__func__ }}",
    "{% set _ = messages.append(1) %}",
    "{% set _ = messages[0].update({'a': 1}) %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% from 'os' import path %}",
    "{% extends 'base' %}",
    "{% autoescape true %}{% endautoescape %}",
]

TIME = [
    "{% for a in range(50000) %}{% for b in range(50000) %}{% endfor %}{% endfor %}",
    "{% for a in range(50000) %}{% for b in range(50000) if b < 0 %}{% endfor %}{% endfor %}",
    "{% for a in range(10**12) %}{% endfor %}",
    "{% for x in range(1000) recursive %}{{ loop(range(1000)) }}{% endfor %}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{% set b = 'a' * 900000 %}{% set c = b ~ '' %}{% for i in range(50000) %}{% set x = b == c %}{% endfor %}",
    "{% for i in range(50000) %}{% set x = ('a b ' * 200000)|title %}{% endfor %}",
    "{{ ('a' * 900000).rfind('b' + 'a' * 400000) }}",
    "{{ ('a' * 900000)|trim('b' * 400000 ~ 'a') }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ ('f' * 900000)|int(0, 16) * ('f' * 900000)|int(0, 16) }}",
    "{{ 1.5|round(1000000000, 'ceil') }}",
    PAIRS + "{{ ns.s }}",
    PAIRS + "{{ ns.s == ns.t }}",
    PAIRS + "{{ ns.s in [ns.t] }}",
    PAIRS + "{{ ns.s is eq(ns.t) }}",
    PAIRS + "{{ ns.s is in(seq=[ns.t]) }}",
    PAIRS + "{{ [ns.s]|select('eq', ns.t)|list }}",
    PAIRS + "{{ [ns.s].count(ns.t) }}",
    PAIRS + "{{ [ns.s, ns.t]|sort }}",
    PAIRS + "{{ [ns.s]|unique|list }}",
    PAIRS + "{{ {'a': ns.s, 'b': ns.t}|dictsort(by='value') }}",
    PAIRS + "{{ {ns.s: 1} }}",
    PAIRS + "{{ {}[ns.s] }}",
    PAIRS + "{{ {}.get(ns.s) }}",
    PAIRS + "{{ dict([(ns.s, 1)]) }}",
    PAIRS + "{{ ns.s|tojson }}",
    PAIRS + "{{ ns.s|upper }}",
    PAIRS + "{{ ns.s is lower }}",
    PAIRS + "{{ '%s' % ns.s }}",
    PAIRS + "{{ '{}'.format(ns.s) }}",
    PAIRS + "{{ 'x'|replace('x', ns.s) }}",
    PAIRS + "{{ raise_exception(ns.s) }}",
    PAIRS + "{{ ns }}",
    PAIRS + "{{ [ns]|join }}",
    PAIRS + "{% for x in [ns.s, ns.t] %}{{ loop.changed(x) }}{% endfor %}",
]

SIZE = [
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [0] * 10**9 }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%((a))1000000000d' % {'(a)': 1} }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '%1000000000d' is odd }}",
    "{{ '%1000000000d' is divisibleby(num=3) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "{{ ('b' * 1000).join(['a' * 1000] * 1000) }}",
    "{{ range(50000)|join(d='b' * 100000) }}",
    "{{ 'a\nb'|indent(10**9) }}",
    "{{ [1]|tojson(indent=10**9) }}",
    "{{ ([ns.s] * 30)|sum(start='')|length }}{{ ([ns.s] * 30)|sum(start='')|length }}",
    "{{ ns.s|wordwrap(1, true, ns.s) }}",
    "{% set ns = namespace(s=['a'] * 30) %}{% for i in range(900) %}{% set ns.s = [ns.s] %}{% endfor %}"
    "{{ ([ns.s] * 30)|tojson(indent=16) }}",
    "{{ ('a' * 900000).split('a') }}",
    "{{ ('[' ~ '0,' * 400000 ~ '0]')|from_json }}",
    "{% for a in range(50000) %}{% for b in range(50000) %}" + "x" * 100 + "{% endfor %}{% endfor %}",
    "{% set x = 'a' * 900000 %}{% set b %}{% for i in range(50000) %}{{ x }}{% endfor %}{% endset %}",
    "{% filter upper %}{% for i in range(50000) %}{{ 'a' * 1000 }}{% endfor %}{% endfilter %}",
    "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(l=[]) %}{% for i in range(50000) %}{% set ns.l = ns.l + ['a' * 900000] %}{% endfor %}",
    "{{ strftime_now('%Y' * 100000) }}",
]

SOURCE = [
    "x" * 100_000,
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "not " * 15_000 + "1 }}",
    "{{ 1" + "+1" * 30_000 + " }}",
    "{{ a" + ".b" * 30_000 + " }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "{% for a in b %}" * 60 + "{% endfor %}" * 60,
    "{{ " + "9" * 60_000 + " }}",
    "{{" * 30_000,
    "{% set a = range(60000) %}" + "{% set b = a|select('string') %}" * 1_500 + "{{ nobody.x }}",
    "{% for i in range(50000) %}" * 2 + "{% set x = [" + "0," * 15_000 + "] %}" + "{% endfor %}" * 2,
]


SOME_TIME, SOME_SIZE = some(TIME, len(TIME) // 4), some(SIZE, len(SIZE) // 4)
"""By default some end by their time; all of `SIZE` are stopped, with little memory."""


@pytest.mark.few(20)
@pytest.mark.parametrize("source", [*INJECTION, *SOME_TIME, *SOME_SIZE, *SOURCE], ids=lambda s: s[-40:])
def test_it_is_stopped(source: str) -> None:
    """Compiling and rendering each take half a second and one operation."""
    with processor_time(3):
        try:
            template = ChatTemplate(source)
        except TemplateError:
            return
    with processor_time(3), pytest.raises(TemplateError):
        template.render(USER)


@pytest.mark.parametrize("source", SIZE, ids=lambda s: s[-40:])
def test_it_takes_little_memory(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            ChatTemplate(source).render(USER)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_it_is_stopped_in_any_thread() -> None:
    caught: list[Exception] = []

    def run() -> None:
        try:
            ChatTemplate(TIME[0]).render(USER)
        except TemplateError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=HANG_S)
    assert len(caught) == 1


LOOKS_BACK = """
{%- for message in messages -%}
    {%- set before = namespace(role=None, found=false) -%}
    {%- for j in range(loop.index0 - 1, -1, -1) -%}
        {%- if not before.found -%}
            {%- if messages[j]['role'] != 'tool' -%}
                {%- set before.role = messages[j]['role'] -%}
                {%- set before.found = true -%}
            {%- endif -%}
        {%- endif -%}
    {%- endfor -%}
    {{- '' if before.role == message['role'] else message['role'] }}: {{ message['content'] ~ '\n' }}
{%- endfor -%}
"""
"""As in Gemma 4's template: before each message, all that come before it are looked at."""


def conversation(turns: int) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[i % 2], "content": f"message {i} of a conversation that went on for long"}
        for i in range(turns)
    ]


def test_the_limit_of_time_grows_with_the_input() -> None:
    messages = conversation(1000)
    text = ChatTemplate(LOOKS_BACK).render(messages)
    assert text.splitlines() == [f"{m['role']}: {m['content']}" for m in messages]


def test_thousands_of_messages_stay_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many steps as 4,000 messages take there, in the time that such steps have on a slow machine."""
    messages = conversation(4000)
    steps = len(messages) ** 2 // 2
    size = sum(len(text) for m in messages for text in (*m, *m.values()))
    assert budget.Budget(size)._seconds / steps > 2e-6
    budget.Budget(size).weigh(range(len(messages)))


def test_the_time_of_a_long_input_has_an_end() -> None:
    assert budget.Budget(1 << 40)._seconds == budget.MAX_SECONDS


def test_the_limit_of_size_grows_with_the_input() -> None:
    source = "{% for m in messages %}{{ m.content|upper|trim }}{% endfor %}"
    messages = [{"role": "user", "content": "x" * 3_000_000}]
    assert len(ChatTemplate(source).render(messages)) == 3_000_000
