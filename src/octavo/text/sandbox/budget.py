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
SECONDS_PER_CHARACTER = 1e-4  # of the input more: some templates look at all messages before each of them
MAX_SECONDS = 30.0
VALUE_CAP = 1_000_000  # of one value, in characters
TOTAL_CAP = 16_000_000  # of all that is made while rendering
_ELEMENT = 16  # characters that an element of a list counts as
_STEPS = 256  # between looks at the clock, which take longer than a step
_STEP = 1024  # characters that are made or looked at in the time of a step, about
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
    """The limits of one rendering; they grow with the size of its input, in characters."""

    def __init__(self, input_size: int) -> None:
        self._seconds = min(SECONDS + SECONDS_PER_CHARACTER * input_size, MAX_SECONDS)
        self._deadline = thread_time() + self._seconds
        self._steps = 0
        self._value_cap = VALUE_CAP + 4 * input_size
        self._left = TOTAL_CAP + 64 * input_size
        self._written = self._calls = 0

    def tick(self, steps: int = 1) -> None:
        """To be called at every step, or for what takes as long as several. Raises TemplateError once time is up."""
        self._steps -= steps
        if self._steps < 0:
            self._steps = _STEPS
            if thread_time() > self._deadline:
                raise TemplateError(f"the chat template takes more than {self._seconds:.1f} s")

    def charge(self, characters: int, *, elements: int = 0) -> None:
        """To be called before something of that size is made. Raises TemplateError if it is too large."""
        size = characters + _ELEMENT * elements
        self._left -= size
        self.check(size)
        if self._left < 0:
            raise TemplateError("the chat template produces too much text")

    def output(self, characters: int) -> None:
        """To be called for each piece of the result. Raises TemplateError once the result is too long."""
        self._written += characters
        self.check(self._written)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Around a call of a macro. Raises TemplateError where they are too deep inside one another."""
        if self._calls >= _MAX_CALLS:
            raise TemplateError(f"the chat template recurses more than {_MAX_CALLS} levels deep")
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
                self.check(total)  # before its parts are copied
                if isinstance(part, dict):
                    rest += part.keys()
                    rest += part.values()
                elif not isinstance(part, range):
                    rest += part
            else:
                if only_data:
                    check_data(part)
                total += _ELEMENT
            if total > self._value_cap:
                self.check(total)
        self.tick(total // _STEP)
        return total

    def check(self, size: int) -> None:
        """To be called with the size of a value. Raises TemplateError if it is too large."""
        self.tick(1 + size // _STEP)
        if size > self._value_cap:
            raise TemplateError(f"the chat template creates a value of more than {self._value_cap} characters")


current: ContextVar[Budget] = ContextVar("octavo_template_budget")
