"""The environment that templates are compiled for: Jinja's sandbox, with every step counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn, cast

from jinja2 import Undefined, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from octavo.errors import TemplateError
from octavo.text import template_clock
from octavo.text.sandbox.budget import current, refuse
from octavo.text.sandbox.filters import make_filters, make_tests
from octavo.text.sandbox.methods import call_method
from octavo.text.sandbox.operators import binary, printed
from octavo.text.sandbox.rewrite import Rewriter


class GenerationTag(Extension):
    """`{% generation %}` ... `{% endgeneration %}`: marks the model's own text for training; here just its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Rounds:
    """What a loop goes through, each round counted."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        tick = current.get().tick
        for item in self._items:
            tick()
            yield item


class Environment(ImmutableSandboxedEnvironment):
    """Every operator, call, loop, comparison and output of a template comes through here.

    The methods without an underscore that Jinja doesn't know are what `Rewriter` puts into templates.
    """

    intercepted_binops = frozenset(["//", "%", "+", "*", "-", "/", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # or constant expressions would be evaluated while compiling
            extensions=[GenerationTag, loopcontrols],
            finalize=_finalize,
        )
        self.filters, self.tests = cast(Any, make_filters()), cast(Any, make_tests())
        self._functions: list[Any] = [Cycler, Joiner, Namespace, _dict, _raise_exception, _range, _strftime_now]
        self.globals = cast(Any, {f.__name__.lstrip("_").lower(): f for f in self._functions})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        Rewriter(self).visit(tree)
        return tree

    # What Jinja calls

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        pieces = list(pieces)
        current.get().charge(sum(map(len, pieces)))
        return "".join(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return binary(operator, self.binop_table[operator], left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        budget = current.get()
        budget.tick()
        budget.weigh(argument)  # it may be hashed, which for nested tuples can take for ever
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)  # what the template has set, and nothing else; loops ask for little more
            except AttributeError:
                pass
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        return None  # `call` takes care of it

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget = current.get()
        budget.tick()
        if isinstance(__obj, MethodType) and __obj.__self__ is __self:
            return __obj(*args)
        if isinstance(__obj, Macro | LoopContext | BlockReference):
            with budget.nested():
                return __context.call(__obj, *args, **kwargs)
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        if isinstance(__obj, BuiltinMethodType):
            return call_method(__obj, args, kwargs)
        if isinstance(__obj, MethodType) and isinstance(__obj.__self__, LoopContext | Cycler):
            budget.weigh([*args])
            return __obj(*args, **kwargs)
        if isinstance(__obj, Joiner | Undefined) or any(__obj is f for f in __self._functions):
            return __obj(*args, **kwargs)
        raise refuse(f"a call of a {type(__obj).__name__}")

    # What templates call, once rewritten

    def step(self) -> bool:
        return True  # the call itself was counted

    def rounds(self, items: Any) -> Rounds:
        return Rounds(items)

    def joined(self, *values: Any) -> str:
        return self.concat([printed(v) for v in values])

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        budget = current.get()
        if isinstance(value, str):
            budget.charge(len(value))
        elif isinstance(value, list | tuple):
            budget.charge(0, elements=len(value))
        return value[start:stop:step]

    def weighed(self, value: Any) -> Any:
        current.get().weigh(value)
        return value


@pass_context
def _finalize(context: Context, value: Any) -> str:
    current.get().tick()
    return printed(value)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    budget = current.get()
    budget.charge(budget.weigh([*args]))
    return dict(*args, **kwargs)


def _range(*args: int) -> range:
    numbers = range(*args)
    current.get().weigh(numbers)
    return numbers


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(f"the chat template refuses: {printed(message)}")


def _strftime_now(form: str) -> str:
    if len(form) > 100:
        raise refuse("a date format of more than 100 characters")
    return template_clock.now().strftime(form)
