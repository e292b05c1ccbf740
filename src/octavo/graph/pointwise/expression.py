"""What makes an op of an expression: `@pointwise` over a function of values, then of numbers.

    @pointwise(fold="elementwise", numbers={"cap": 0.5})
    def soft_cap(x, cap):
        return cap * m.tanh(x / cap)

`m` stands for a module of functions. Each backend rebuilds the expression with its own in that place: NumPy's, Numba's
or Triton's. So there is nothing in an expression but its parameters, local names, operators, literals and `m`.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from types import FunctionType
from typing import Any, Literal, NamedTuple

from octavo.graph.node import DType, Node, Shape
from octavo.graph.ops import OPS, apply, require

m: Any = None
"""The functions of a backend, once it has rebuilt an expression."""

Fold = Literal["keep", "through", "elementwise", "gated", "add", "mul"]
"""What an op lets through, see `calibrate.fold.rules`."""


class Pointwise:
    """An op on each value by itself.

    inputs    names of its parameters that are values; the result is like the first one
    numbers   the others, with the numbers that op cases give them; whole ones are integers in kernels
    integers  inputs that are int32; if the first one is, so is the result
    spreads   inputs after the first may have a size of 1, or be one row [K], where the first has more
    allowed   of its numbers, by name
    """

    def __init__(
        self, function: FunctionType, fold: Fold, numbers: Mapping[str, float], integers: Collection[str],
        spreads: bool, allowed: Callable[..., bool],
    ) -> None:
        self.name, self.function, self.fold = function.__name__, function, fold
        self.numbers, self.integers, self.spreads, self.allowed = numbers, integers, spreads, allowed
        self.inputs = tuple(name for name in inspect.signature(function).parameters if name not in numbers)
        self.__doc__ = function.__doc__

    @cached_property
    def version(self) -> str:
        """The name with a hash of the source: what compiled kernels are kept by."""
        digest = hashlib.sha256(inspect.getsource(self.function).encode()).hexdigest()
        return f"{self.name}_{digest[:16]}"

    @property
    def quantizes(self) -> bool:
        """Whether its result may be quantized on its way out, where a product alone reads it."""
        return len(self.inputs) <= 2 and not (self.numbers or self.integers or self.spreads)

    def rebuilt(self, functions: Any, **more: Any) -> FunctionType:
        """The expression as a function of its own, with `functions` for `m`."""
        given = {**self.function.__globals__, "m": functions, **more}
        return FunctionType(self.function.__code__, given, self.name)

    def given(self, attrs: Mapping[str, Any]) -> list[float]:
        """A node's numbers in the order of parameters."""
        return [type(case)(attrs[name]) for name, case in self.numbers.items()]

    def infer(self, x: Node, *others: Node, **numbers: Any) -> tuple[Shape, DType]:
        """The shape and type of the result. Raises GraphError for shapes or numbers that do not fit."""
        fits = len(others) == len(self.inputs) - 1 and all(self._fits(x.shape, other.shape) for other in others)
        rule = "inputs have one shape, or are spread over it" if self.spreads else "inputs have one shape"
        require(fits, self.name, rule, x, *others)
        named = zip(self.inputs, (x, *others), strict=True)
        integers = all((node.dtype == "i32") == (name in self.integers) for name, node in named)
        require(integers, self.name, f"integers are {', '.join(self.integers) or 'none'}", x, *others)
        given = ", ".join(f"{name} {value:g}" for name, value in numbers.items()) or "no numbers"
        allowed = numbers.keys() == self.numbers.keys() and self.allowed(**numbers)
        require(allowed, self.name, f"{given} not allowed", x)
        return x.shape, "i32" if self.inputs[0] in self.integers else "f32"

    def _fits(self, shape: Shape, other: Shape) -> bool:
        if not self.spreads or len(other) != len(shape):
            return other == shape or (self.spreads and other == shape[-1:])
        return other[0] == shape[0] and all(b in (a, 1) for a, b in zip(shape, other, strict=True))

    def __call__(self, *arguments: Any, **numbers: Any) -> Node:
        """The node of the op on its inputs and numbers, named as the first input."""
        given = inspect.signature(self.function).bind(*arguments, **numbers).arguments
        inputs = [given.pop(name) for name in self.inputs]
        return apply(self.name, *inputs, label=inputs[0].name, **given)


POINTWISE: dict[str, Pointwise] = {}


def pointwise(
    *, fold: Fold, numbers: Mapping[str, float] | None = None, integers: Collection[str] = (), spreads: bool = False,
    allowed: Callable[..., bool] = lambda **numbers: True,
) -> Callable[[Any], Pointwise]:
    """Make an op of the function below, see `Pointwise`."""

    def register(function: Any) -> Pointwise:
        op = Pointwise(function, fold, numbers or {}, integers, spreads, allowed)
        POINTWISE[op.name], OPS[op.name] = op, op.infer
        return op

    return register


class Operand(NamedTuple):
    """Whether an input has a place of its own for each token, for each row of a token, and for each value of a row."""

    by_token: bool
    by_row: bool
    by_value: bool


def operands(shape: Sequence[int], *inputs: Sequence[int]) -> tuple[int, int, list[Operand]]:
    """Rows of each token, values of each row, and where each input lies; `shape` is the result's.

    A token is one row unless an input has to be spread within it.
    """
    values = math.prod(shape[1:])
    whole = all(math.prod(s[1:] if len(s) == len(shape) else s) in (1, values) for s in inputs)
    rows, k = (1, values) if whole else (math.prod(shape[1:-1]), shape[-1])
    found = []
    for s in inputs:
        full = len(s) == len(shape)
        found.append(Operand(full, full and rows > 1 and s[1] > 1, s[-1] > 1 or k == 1))
    return rows, k, found
