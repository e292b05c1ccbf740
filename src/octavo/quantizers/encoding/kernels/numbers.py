# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Plain numbers: float32 to f16 and bf16, and what is the largest of them."""

from __future__ import annotations

from typing import Any, Literal

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.simd import f32_pointer, largest_magnitude, load_f32x16, splat, store_f16x16
from octavo.jit.simd.emit import I16, V_I32, f32x16, fill, store_at
from octavo.quantizers.encoding.kernels.search_lanes import larger_magnitude

Number = Literal["f16", "bf16"]

VECTORS = record("x out vectors share")
"""x        float32 [vectors, 16]
out      narrow_kernel: 16-bit numbers [vectors, 16]; largest_kernel: float32 [tasks]
vectors  of all tasks
share    vectors of a task
"""


@intrinsic
def store_bf16x16(ty, to, x):
    """16 finite floats as bf16, ties to even."""

    def gen(c, b, s, a):
        bits = b.bitcast(a[1], V_I32)
        odd = b.and_(b.lshr(bits, fill(V_I32, 16)), fill(V_I32, 1))
        rounded = b.lshr(b.add(bits, b.add(odd, fill(V_I32, 0x7FFF))), fill(V_I32, 16))
        store_at(b, a[0], b.trunc(rounded, ir.VectorType(I16, 16)))
        return c.get_dummy_value()

    return types.void(types.intp, f32x16), gen


@kernels(VECTORS)
def narrow_kernel(number: Number) -> Any:
    """Task t stores `share` vectors of 16 values from vector t * share on."""
    store = store_f16x16 if number == "f16" else store_bf16x16

    def narrow(a, task):
        first = task * a.share
        for i in range(first, min(first + a.share, a.vectors)):
            store(a.out + 32 * i, load_f32x16(a.x + 64 * i))  # [16]

    return narrow


@kernels(VECTORS)
def largest_kernel() -> Any:
    """Task t writes the largest magnitude (NaN if one is) of `share` vectors."""

    def largest(a, task):
        first, found = task * a.share, splat(0.0)
        for i in range(first, min(first + a.share, a.vectors)):
            found = larger_magnitude(found, load_f32x16(a.x + 64 * i))  # [16]
        f32_pointer(a.out)[task] = largest_magnitude(found, found)

    return largest
