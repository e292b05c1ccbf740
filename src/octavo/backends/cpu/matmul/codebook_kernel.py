# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of weights with a grid where signs go to the activations: for few tokens, on CPUs of 256 bits.

Elsewhere numbers of points become codes of the format's table, as other weights have them (`codes.codes_of_points`).
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.quantize_kernel import BLOCK_BYTES
from octavo.backends.cpu.matmul.tasks import bytes_ahead
from octavo.backends.cpu.weights.layout import STEP, Layout
from octavo.jit import host
from octavo.jit.compile import inner
from octavo.jit.simd import (
    PointForm,
    fma_points_of,
    load_f16x16,
    mul,
    prefetch,
    splat,
    stack,
    store_numbers,
)

MAX_TOKENS = 2
"""From more tokens on, all of them share codes that are looked up once."""


def multiplies_sizes(layout: Layout, n: int) -> bool:
    """Whether products with n tokens are made here."""
    return layout.grid is not None and n <= MAX_TOKENS and host.level() in ("avx2", "avxvnni")


def add_super_of_sizes(layout: Layout, n: int) -> Any:
    """A function (sums, super-block, activations, table) that adds a super-block's products to n vectors of sums."""
    grid = layout.grid
    assert grid is not None
    form, more = _form(layout), grid.more
    fma_points, width, planes = fma_points_of(form), grid.width, form.planes
    number_bytes = (512 // width) * (2 if planes else 1)
    block_at, block_bytes, blocks = layout.head_bytes, layout.block_bytes, layout.super // STEP
    low_at, marks_at = block_bytes - grid.low_bytes, block_bytes - layout.code_bytes
    high_at, room = marks_at + grid.marks, blocks * number_bytes if planes else 64
    points_at, x_scales, x_bytes = grid.sizes_at, n * STEP, n * BLOCK_BYTES
    step, stepped, ahead = layout.step, layout.step != 1.0, bytes_ahead()

    def add_super(acc, w, x, table):
        d = mul(load_f16x16(w), splat(step)) if stepped else load_f16x16(w)  # [16]
        block, points = w + block_at, table + points_at
        made = stack(room)
        if planes:
            for i in range(blocks):
                here = block + i * block_bytes
                store_numbers(made + i * number_bytes, here + low_at, here + high_at, width, more, planes)
        for i in range(blocks):
            for line in range(0, block_bytes, 64):
                prefetch(block + ahead + line)
            numbers = made + i * number_bytes if planes else block + low_at
            acc = fma_points(acc, numbers, points, block + marks_at, block, d, x, x_scales)  # n x [16]
            block += block_bytes
            x += x_bytes
        return acc

    return inner(add_super, layout, n, inline="always")


def _form(layout: Layout) -> PointForm:
    """What products with the points of a layout are compiled for."""
    grid, values = layout.grid, layout.table
    assert grid is not None
    assert values is not None
    shared = grid.mark is None
    offset = -min(values) if shared else 0
    return PointForm(
        width=grid.width, planes=grid.more - shared, largest=max(values) + offset, offset=offset,
        raised=values[0] - values[len(values) // 2], halves=layout.groups == 2,
    )
