"""What one rendering may use up: time, and the size of what it makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import thread_time
from typing import Any

from jinja2 import Undefined

from octavo.errors import TemplateError

SECONDS = 0.5  # of the processor, until the last operation begins; none takes longer than a few tenths
VALUE_CAP = 1_000_000  # of one value, in characters
TOTAL_CAP = 16_000_000  # of all that is made while rendering
_ELEMENT = 16  # characters that an element of a list counts as
_INT_BITS = 4096
_MAX_CALLS = 60  # of macros and recursive loops inside one another


def refuse(what: str) -> TemplateError:
    """The error to raise where a template uses `what`."""
    return TemplateError(f"the chat template may not use {what}")


def check_int(bits: int) -> None:
    """Raises TemplateError for an integer of too many bits."""
    if bits > _INT_BITS:
        raise refuse(f"integers of more than {_INT_BITS} bits")


def check_data(value: Any) -> None:
    """Raises TemplateError for what can't be printed: functions and such. Containers are not looked into."""
    if isinstance(value, int):
        check_int(value.bit_length())
    elif not (value is None or isinstance(value, str | float | list | tuple | dict | range | Undefined)):
        raise refuse(f"a {type(value).__name__} as text")


class Budget:
    """The limits of one rendering; those of size grow with the size of its input, in characters."""

    def __init__(self, input_size: int) -> None:
        self._deadline = thread_time() + SECONDS
        self._value_cap = VALUE_CAP + 4 * input_size
        self._left = TOTAL_CAP + 64 * input_size
        self._written = self._calls = 0

    def tick(self) -> None:
        """To be called at every step. Raises TemplateError once the time is up."""
        if thread_time() > self._deadline:
            raise TemplateError(f"the chat template takes more than {SECONDS} s")

    def charge(self, characters: int, *, elements: int = 0) -> None:
        """To be called before something of that size is made. Raises TemplateError if it is too large."""
        size = characters + _ELEMENT * elements
        self._left -= size
        self._check(size)
        if self._left < 0:
            raise TemplateError("the chat template makes too much text in all")

    def output(self, characters: int) -> None:
        """To be called for each piece of the result. Raises TemplateError once the result is too long."""
        self.tick()
        self._written += characters
        self._check(self._written)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Around a call of a macro. Raises TemplateError where they are too deep inside one another."""
        if self._calls >= _MAX_CALLS:
            raise TemplateError(f"the chat template calls itself more than {_MAX_CALLS} times over")
        self._calls += 1
        yield
        self._calls -= 1

    def weigh(self, value: Any, *, only_data: bool = False) -> int:
        """The size of `value` as text, about; what it contains twice counts twice.

        Raises TemplateError at the cap: nested data can be exponentially longer as text than in memory. `only_data`:
        also for parts that aren't data, such as functions.
        """
        total, rest = 0, [value]
        while rest:
            part = rest.pop()
            if isinstance(part, str):
                total += len(part)
            elif isinstance(part, dict | list | tuple | range):
                total += _ELEMENT * len(part)
                self._check(total)  # before its parts are copied
                if isinstance(part, dict):
                    rest += part.keys()
                    rest += part.values()
                elif not isinstance(part, range):
                    rest += part
            else:
                if only_data:
                    check_data(part)
                total += _ELEMENT
            self._check(total)
        return total

    def _check(self, size: int) -> None:
        if size > self._value_cap:
            raise TemplateError(f"the chat template makes too large a value (allowed: {self._value_cap} characters)")


current: ContextVar[Budget] = ContextVar("octavo_template_budget")
