# mypy: ignore-errors
"""The kernel of all pointwise ops: an expression of values that lie beside each other or are spread over rows.

Algorithm: one function rebuilt with Triton's functions (`graph/pointwise`), mapped over a row.
Tile:
    program (row, part)    B values of each input -> EXPRESSION -> B values
Bound: bytes with many tokens, latency with one; the share was not measured. SwiGLU is 109 instructions, as by hand
    (docs/log.md, "One expression an op costs nothing").
Tried: docs/log.md: "One expression an op costs nothing".
Twin: `octavo.backends.reference.ops._definition`
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from octavo.backends.gpu.launch.arguments import Pointer
from octavo.backends.gpu.pointwise.kernel import part_of_row


class Operand(NamedTuple):
    """An input or the result.

    data      the first value
    token     elements from a token to the next
    row       elements from a row of a token to the next
    is_value  1 for a value each; None for one that a row has for all its values
    """

    data: Pointer
    token: int
    row: int
    is_value: int | None


@triton.jit
def _load(x, token, row, at, inside):
    first = x.data + token * x.token + row * x.row
    if x.is_value is None:
        value = tl.load(first)
    else:
        value = tl.load(first + at, mask=inside, other=0)  # [B]
    return value


@triton.jit
def pointwise_kernel(
    inputs, numbers, out, rows, k, EXPRESSION: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr
):
    """Program (row, part): B values of a row of a token, of which each has `rows` of k values."""
    program, at, inside = part_of_row(k, B, PDL)
    token, row = program // rows, program % rows
    values = [_load(x, token, row, at, inside) for x in inputs]
    tl.store(out.data + token * out.token + row * out.row + at, EXPRESSION(*values, *numbers), mask=inside)
