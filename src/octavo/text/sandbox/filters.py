"""The filters and tests that a template may use: most of Jinja's own, each bounded, and what chat templates add."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, cast

from jinja2 import Environment, pass_environment, pass_eval_context
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.tests import TESTS
from markupsafe import escape

from octavo.text.sandbox.budget import check_int, current, refuse
from octavo.text.sandbox.methods import call_method, charge_replace
from octavo.text.sandbox.operators import percent_format, printed

Function = Callable[..., Any]
_FILTERS: Mapping[str, Function] = cast(Any, FILTERS)  # Jinja types some of them as bare functions
_TESTS: Mapping[str, Function] = cast(Any, TESTS)
Prepare = Callable[[Any, list[Any]], Any]  # of a filter's value and its other arguments; gives the value

# Jinja's filters by what they do with their value: take it as text; look at its outside only; look at all of it.
_TEXT = "capitalize lower title upper"
_SHALLOW = "abs count d default first float int items last length map reject rejectattr select selectattr"
_DEEP = "dictsort max min sort unique"

_COMPARING_TESTS = "eq equalto ge gt greaterthan in le lessthan lt ne == != >= > <= <"
_NUMBER_TESTS = "divisibleby even odd"
_TEXT_TESTS = "lower upper"

_PARTS = 8  # of a list or text that a filter goes through in the time of a step, or more of them
_MAX_INDENT = 16
_MAX_PRECISION = 20


def make_filters() -> dict[str, Function]:
    """The filters by name."""
    kinds: tuple[tuple[str, Prepare], ...] = ((_TEXT, _as_text), (_SHALLOW, _as_it_is), (_DEEP, _weighed))
    bounded = {name: _bounded(_FILTERS[name], kind) for names, kind in kinds for name in names.split()}
    own: dict[str, Function] = {
        **dict.fromkeys(("string", "safe"), printed),
        **dict.fromkeys(("e", "escape"), _escape),
        "format": _format,
        "from_json": _from_json,
        "indent": _indent,
        "join": _join,
        "list": _list,
        "replace": _replace,
        "reverse": _reverse,
        "round": _round,
        "sum": _sum,
        "tojson": _to_json,
        "trim": _trim,
        "wordwrap": _wordwrap,
    }
    return {**bounded, **{name: _bounded(function, _as_it_is) for name, function in own.items()}}


def make_tests() -> dict[str, Function]:
    """The tests by name."""
    kinds: tuple[tuple[str, Prepare], ...] = (
        (_COMPARING_TESTS, _weighed_all),
        (_NUMBER_TESTS, _numbers),
        (_TEXT_TESTS, _as_text),
    )
    bounded = {name: _bounded(_TESTS[name], kind) for names, kind in kinds for name in names.split()}
    return {**_TESTS, **bounded}


def _bounded(function: Function, prepare: Prepare) -> Function:
    """`function`, its value prepared and counted first, giving a list where it would give a generator."""
    at = 1 if hasattr(function, "jinja_pass_arg") else 0  # such functions take the context or environment first

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= at:
            return function(*args, **kwargs)  # raises TypeError
        length = len(args[at]) if isinstance(args[at], str | list | tuple | dict | range) else 0
        current.get().tick(1 + length // _PARTS)
        value = prepare(args[at], [*args[at + 1 :], *kwargs.values()])
        result = function(*args[:at], value, *args[at + 1 :], **kwargs)
        return _listed(result) if isinstance(result, Iterator) else result

    return bounded


def _listed(items: Iterator[Any]) -> list[Any]:
    budget, out = current.get(), []
    for item in items:
        budget.charge(0, elements=1)
        out.append(item)
    return out


def _as_it_is(value: Any, _: list[Any]) -> Any:
    return value


def _as_text(value: Any, _: list[Any]) -> str:
    text = printed(value)
    current.get().charge(len(text))
    return text


def _weighed(value: Any, _: list[Any]) -> Any:
    current.get().charge(current.get().weigh(value))
    return value


def _weighed_all(value: Any, others: list[Any]) -> Any:
    for v in (value, *others):
        current.get().weigh(v)
    return value


def _numbers(value: Any, others: list[Any]) -> Any:
    if not all(isinstance(v, int | float) for v in (value, *others)):
        raise refuse("a test for numbers on something else")
    return value


def _to_json(
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    budget = current.get()
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _MAX_INDENT):
        raise refuse(f"an indent of {indent!r} (allowed: 0 to {_MAX_INDENT})")
    weight = budget.weigh(value, only_data=True)
    budget.charge(weight * (1 + (indent or 0) * _depth(value) // _MAX_INDENT))
    if separators is not None:
        separators = (str(separators[0])[:_MAX_INDENT], str(separators[1])[:_MAX_INDENT])
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [c for v in level if isinstance(v, dict | list | tuple) for c in _children(v)]:
        depth += 1
    return depth


def _children(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def _from_json(value: Any) -> Any:
    text = printed(value)
    current.get().charge(len(text), elements=text.count(",") + text.count("["))
    return json.loads(text)


@pass_eval_context
def _join(context: Any, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    budget = current.get()
    parts, separator = list(value), printed(d)
    budget.charge(budget.weigh(parts, only_data=True) + len(separator) * len(parts))
    return str(_FILTERS["join"](context, parts, separator, attribute))


def _escape(value: Any) -> str:
    text = printed(value)
    current.get().charge(6 * len(text))
    return str(escape(text))


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    return percent_format(printed(value), kwargs or args)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text, size = printed(value), width if isinstance(width, int) else len(width)
    current.get().charge(len(text) + (1 + len(text.splitlines())) * max(size, 0))
    return str(_FILTERS["indent"](text, width, first, blank))


def _list(value: Any) -> list[Any]:
    if isinstance(value, str | list | tuple | dict | range):
        current.get().charge(0, elements=len(value))
    return list(value)


@pass_environment
def _sum(environment: Environment, value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    items, total = _list(value), start
    if attribute is not None:
        items = list(map(make_attrgetter(environment, attribute), items))
    for item in items:
        if isinstance(total, str | list | tuple):
            current.get().charge(len(total), elements=len(total))
        total = total + item
        if isinstance(total, int):
            check_int(total.bit_length())
    return total


@pass_environment
def _wordwrap(
    environment: Environment, value: Any, width: int = 79, break_long_words: bool = True,
    wrapstring: Any = None, break_on_hyphens: bool = True,
) -> str:
    text, between = printed(value), "\n" if wrapstring is None else printed(wrapstring)
    current.get().charge(len(text) * (1 + len(between)))
    return str(_FILTERS["wordwrap"](environment, text, width, break_long_words, between, break_on_hyphens))


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = printed(value), printed(old), printed(new)
    charge_replace(text, old, new)
    return text.replace(old, new, -1 if count is None else count)


def _reverse(value: Any) -> Any:
    return _as_text(value, [])[::-1] if isinstance(value, str) else _list(value)[::-1]


def _round(value: float, precision: int = 0, method: str = "common") -> Any:
    if not isinstance(precision, int) or abs(precision) > _MAX_PRECISION:
        raise refuse(f"a precision of {precision!r} (allowed: up to {_MAX_PRECISION})")
    return _FILTERS["round"](value, precision, method)


def _trim(value: Any, chars: str | None = None) -> str:
    return str(call_method(printed(value).strip, (chars,), {}))
