"""The methods of texts, lists, dicts and numbers that a template may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.text.sandbox.budget import current, refuse
from octavo.text.sandbox.operators import brace_format

_SAME_SIZE = """
    capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower
    isnumeric isprintable isspace istitle isupper lower lstrip partition removeprefix removesuffix rfind rindex
    rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
# These compare the text with their argument at every place, so long texts with long arguments are refused.
_SLOW = frozenset("rfind rindex rpartition rsplit lstrip rstrip strip".split())
_MAX_COMPARISONS = 50_000_000
_COMPARISONS = 1000  # in the time of a step, about

ALLOWED: dict[type, frozenset[str]] = {
    str: frozenset([*_SAME_SIZE.split(), "center", "format", "join", "ljust", "replace", "rjust", "zfill"]),
    list: frozenset(["count", "index"]),
    tuple: frozenset(["count", "index"]),
    dict: frozenset(["get", "items", "keys", "values"]),
    int: frozenset(["bit_length"]),
    float: frozenset(["is_integer"]),
}


def call_method(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a built-in method. Raises TemplateError for one that isn't allowed or whose result is too large."""
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if name not in ALLOWED.get(type(owner), ()):
        raise refuse(f"the method {name!r} of a {type(owner).__name__}")
    budget = current.get()
    if isinstance(owner, str):
        return _call_text_method(owner, name, method, args, kwargs)
    if isinstance(owner, dict):
        if name == "get":
            budget.weigh(args[:1])  # a key is hashed, which for nested tuples can take for ever
            return method(*args, **kwargs)
        budget.charge(0, elements=len(owner))
        return list(method(*args, **kwargs))
    if isinstance(owner, list | tuple):
        budget.weigh([owner, *args])
    return method(*args, **kwargs)


def _call_text_method(
    owner: str, name: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    budget = current.get()
    if name == "format":
        return brace_format(owner, *args, **kwargs)
    if name in ("center", "ljust", "rjust", "zfill"):
        width = args[0] if args else 0
        budget.charge(max(len(owner), width if isinstance(width, int) else 0))
    elif name == "join":
        parts = list(args[0]) if args else []
        budget.charge(budget.weigh(parts) + len(owner) * len(parts))
        args = (parts, *args[1:])
    elif name == "replace":
        charge_replace(owner, *args[:2])
    elif name in ("split", "rsplit", "splitlines"):
        separator = args[0] if args and isinstance(args[0], str) and args[0] else None
        pieces = owner.count(separator) + 1 if separator else len(owner.split()) + owner.count("\n") + 1
        budget.charge(len(owner), elements=pieces)
    else:
        budget.charge(len(owner))
    if name in _SLOW:
        comparisons = len(owner) * max((len(a) for a in args if isinstance(a, str)), default=0)
        if comparisons > _MAX_COMPARISONS:
            raise refuse(f"{name!r} with texts this long")
        budget.tick(comparisons // _COMPARISONS)
    return method(*args, **kwargs)


def charge_replace(text: str, old: Any = "", new: Any = "") -> None:
    """Charge for `text` with each `old` replaced by `new`."""
    if isinstance(old, str) and isinstance(new, str):
        current.get().charge(len(text) + text.count(old) * len(new))
