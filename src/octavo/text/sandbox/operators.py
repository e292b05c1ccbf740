"""Operators and conversions to text, each refused where what it makes would be too large."""

from __future__ import annotations

import re
from collections.abc import Callable
from string import Formatter
from typing import Any

from octavo.text.sandbox.budget import check_data, check_int, current, refuse

_WIDTH = 999


def printed(value: Any) -> str:
    """`value` as text. Raises TemplateError for what isn't data, and for data whose text would be too long."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple | dict):
        budget = current.get()
        budget.charge(budget.weigh(value, only_data=True))
    else:
        check_data(value)
    return str(value)


def binary(operator: str, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """`left operator right`; `function` does it."""
    budget = current.get()
    budget.tick()
    if isinstance(left, str) and operator == "%":
        return percent_format(left, right)
    if isinstance(left, str | list | tuple) and operator == "+":
        _charge(left, len(left) + (len(right) if type(right) is type(left) else 0))
    elif operator == "*" and isinstance(left, str | list | tuple) and isinstance(right, int):
        _charge(left, len(left) * max(right, 0))
    elif operator == "*" and isinstance(right, str | list | tuple) and isinstance(left, int):
        _charge(right, len(right) * max(left, 0))
    elif isinstance(left, int) and isinstance(right, int):
        check_int(left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length())
    return function(left, right)


def _charge(like: Any, count: int) -> None:
    if isinstance(like, str):
        current.get().charge(count)
    else:
        current.get().charge(0, elements=count)


_PERCENT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?")
_NESTED_KEY = re.compile(r"%\([^)]*\(")


def percent_format(form: str, values: Any) -> str:
    """`form % values`, with widths up to 999."""
    if _NESTED_KEY.search(form):
        raise refuse("a parenthesis in the key of a format")
    conversions = _PERCENT.findall(form)
    _check_widths(w for pair in conversions for w in pair)
    _charge_fields(form, len(conversions), values)
    if isinstance(values, tuple):
        return form % tuple(map(_plain, values))
    return form % ({k: _plain(v) for k, v in values.items()} if isinstance(values, dict) else _plain(values))


def brace_format(form: str, *args: Any, **kwargs: Any) -> str:
    """`form.format(...)` with fields that are numbers or names, and widths up to 999."""
    fields = [(name, spec) for _, name, spec, _ in Formatter().parse(form) if name is not None]
    if any(set(name) & set(".[") or "{" in (spec or "") for name, spec in fields):
        raise refuse("attributes, items or nested fields in a format")
    _check_widths(w for _, spec in fields for w in re.findall(r"\d+", spec or ""))
    _charge_fields(form, len(fields), [*args, *kwargs.values()])
    return form.format(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})


def _check_widths(widths: Any) -> None:
    if any(w == "*" or len(w) > 3 for w in widths):
        raise refuse(f"a width above {_WIDTH} in a format")


def _charge_fields(form: str, fields: int, values: Any) -> None:
    budget = current.get()
    budget.charge(len(form) + fields * (_WIDTH + budget.weigh(values)))


def _plain(value: Any) -> Any:
    if not isinstance(value, int | float):
        return printed(value)
    check_data(value)
    return value
