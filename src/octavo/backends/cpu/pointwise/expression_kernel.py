"""The kernel of all pointwise ops: an expression of values that lie beside each other or are spread over rows.

Algorithm: one function rebuilt with functions of 16 lanes (`graph/pointwise`), mapped over a row.
Tile:
    task t   token t: | 16 values of each input | -> expression -> | 16 | ..., the rest value by value
Bound: instructions of exponentials and the like; the share was not measured. Kernels by hand took 0.95 to 1.05 times as
    long (docs/log.md, "One expression an op costs nothing").
Tried: docs/log.md: "One expression an op costs nothing".
Twin: `octavo.backends.reference.ops._definition`

Where all of an expression has a form of 16 lanes, a row is computed by vectors and the rest of it value by value;
otherwise LLVM makes vectors of what it can.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from octavo.backends.cpu.pointwise import math as lanes
from octavo.backends.cpu.pointwise import scalars
from octavo.graph.pointwise import POINTWISE, Pointwise
from octavo.jit.argument_record import Record, record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import f32_pointer, i32_pointer, load_f32x16, splat, store_f32x16

KERNEL = """
def pointwise(a, task):
    k = a.k
    for row in range(a.rows):
        y = a.y + task * a.y_token + row * a.y_row
        {setup}
        {by_lanes}
        ys = {result}_pointer(y)
        for i in range({first}, k):
            ys[i] = by_value({values})
"""
"""Written for each op: Numba wants inputs and numbers of several types by their names."""
LANES_LOOP = "for i in range(k // 16): store_f32x16(y + 64 * i, by_lanes({}))"


def of(version: str) -> Pointwise:
    """The op whose expression has this version. Raises KeyError where this process has another one."""
    op = POINTWISE[version.rpartition("_")[0]]
    if op.version != version:
        raise KeyError(version)
    return op


class _Sixteen:
    """What stands for 16 values when an expression is tried: it has their operators."""

    def _same(self, *others: Any) -> _Sixteen:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _same


_FUNCTIONS = SimpleNamespace(**{
    name: lambda x: x for name, found in vars(lanes).items() if getattr(found, "__module__", "") == lanes.__name__
})
"""Those of 16 lanes: what `math.py` itself defines."""


def has_lanes(op: Pointwise) -> bool:
    """Whether there is a form of 16 lanes of all that an expression consists of."""
    values = [_Sixteen()] * len(op.inputs)
    try:
        op.rebuilt(_FUNCTIONS)(*values, *op.numbers.values())
    except (AttributeError, TypeError):
        return False
    return not op.integers


def of_lanes(version: str) -> Any:
    """The expression as a function of 16 values of each input, for kernels to call."""
    return inner(of(version).rebuilt(lanes), version, "by lanes", inline="always")


def _arguments(version: str, *kinds: str) -> Record:
    """Each input's and the result's address, and bytes from a token, and from a row of it, to the next."""
    numbers = [f"n{i}:{'i8' if isinstance(n, int) else 'f4'}" for i, n in enumerate(of(version).numbers.values())]
    inputs = [f"x{i} x{i}_token x{i}_row" for i in range(len(kinds))]
    return record("y y_token y_row rows k", *inputs, *numbers)


@kernels(_arguments)
def pointwise_kernel(version: str, *kinds: str) -> Any:
    """Task t computes the rows of token t.

    kinds  of each input: "f32" or "i32" for a value each, "f32 row" or "i32 row" for one that a row has for all
    """
    op = of(version)
    vectors = has_lanes(op)
    setup, values, sixteens = [], [], []
    for i, kind in enumerate(kinds):
        dtype, _, of_row = kind.partition(" ")
        setup.append(f"x{i} = a.x{i} + task * a.x{i}_token + row * a.x{i}_row")
        setup.append(f"v{i} = {dtype}_pointer(x{i})" + ("[0]" if of_row else ""))
        values.append(f"v{i}" if of_row else f"v{i}[i]")
        sixteens.append(f"splat(v{i})" if of_row else f"load_f32x16(x{i} + 64 * i)")
    numbers = [f"n{i}" for i in range(len(op.numbers))]
    setup += [f"{name} = a.{name}" for name in numbers]
    names: dict[str, Any] = {
        "__name__": __name__,
        "by_value": inner(op.rebuilt(scalars), version, "by value", inline="always"),
        "by_lanes": of_lanes(version) if vectors else None,
        "f32_pointer": f32_pointer, "i32_pointer": i32_pointer,
        "load_f32x16": load_f32x16, "store_f32x16": store_f32x16, "splat": splat,
    }
    written = KERNEL.format(
        setup="\n        ".join(setup), by_lanes=LANES_LOOP.format(", ".join(sixteens + numbers)) if vectors else "",
        result=kinds[0].partition(" ")[0], first="k // 16 * 16" if vectors else "0", values=", ".join(values + numbers),
    )
    exec(compile(written, __file__, "exec"), names)
    return names["pointwise"]
