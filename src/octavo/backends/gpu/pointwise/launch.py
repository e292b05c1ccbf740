"""How a pointwise op is launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.sizes import block_of
from octavo.backends.gpu.pointwise.expression_kernel import Operand, pointwise_kernel
from octavo.backends.gpu.pointwise.expressions import expression_of
from octavo.graph.pointwise import POINTWISE
from octavo.graph.pointwise.expression import operands


def launch_pointwise(c: Context, name: str, inputs: Sequence[Any], out: Any, numbers: Mapping[str, Any]) -> Launch:
    """The op `name` of inputs that lie as its node says, with these numbers."""
    op, (rows, k, lie) = POINTWISE[name], operands(out.shape, *(x.shape for x in inputs))
    given = tuple(
        Operand(x, x.stride(0) if o.by_token else 0, x.stride(-2) if o.by_row else 0, 1 if o.by_value else None)
        for x, o in zip(inputs, lie, strict=True)
    )
    block = block_of(k)
    return c.launch(pointwise_kernel, (len(out) * rows, -(-k // block)), given, tuple(op.given(numbers)),
                    Operand(out, out.stride(0), k, 1), rows, k, EXPRESSION=expression_of(name), B=block)
