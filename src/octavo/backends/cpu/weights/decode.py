# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Codes of a weight's block, 16 rows x 32 values, as products take them: unpacked, looked up and with their offset."""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.tasks import FEW_TOKENS
from octavo.backends.cpu.weights.layout import POINTS_AT, Layout
from octavo.jit import host
from octavo.jit.compile import inner
from octavo.jit.simd import (
    HalvesForm,
    load_codes,
    load_digits,
    load_halves_of,
    load_high_codes,
    load_points,
    look_up,
    lower_marked,
    mark_codes,
    raise_codes,
)


def unpack_codes(layout: Layout, *, across: bool = False) -> Any:
    """A function (super-block, block, its number, table) -> codes, as `codes_in_dots` says.

    across  in the order of activations that `simd.turn_blocks` has turned; only where `codes_across` says so
    """
    bits, has_table, high = layout.bits, layout.table is not None, keeps_codes_high(layout)
    codes_at, up = layout.block_bytes - layout.code_bytes, codes_in_dots(layout)[0] - layout.offset
    raised = up != 0 and not high

    def unpack(w, block, i, table):
        codes = load_high_codes(block + codes_at, bits) if high else load_codes(block + codes_at, bits)
        if has_table:
            return look_up(codes, table)
        return raise_codes(codes, up) if raised else codes

    if layout.base3:
        return codes_of_digits(layout, up)
    return codes_of_points(layout, across=across) if layout.grid else inner(unpack, layout, inline="always")


def codes_of_digits(layout: Layout, first: int) -> Any:
    """`unpack_codes` for digits to the base 3, the least of which is `first`."""
    high_at, codes_at = layout.head_bytes - layout.high_bytes, layout.block_bytes - layout.code_bytes

    def unpack(w, block, i, table):
        return load_digits(block + codes_at, w + high_at, i, first)

    return inner(unpack, layout, first, inline="always")


def codes_of_points(layout: Layout, *, across: bool = False) -> Any:
    """`unpack_codes` for numbers of points; their words lie behind the table."""
    grid, codes_at = layout.grid, layout.block_bytes - layout.code_bytes
    assert grid is not None
    if grid.halves is not None:
        return _codes_of_halves(layout, across)
    width, more, marked, mark = grid.width, grid.more, grid.mark is not None, grid.mark or 0
    high_at, words_at, low_at = codes_at + grid.marks, POINTS_AT, layout.block_bytes - grid.low_bytes

    def unpack(w, block, i, table):
        codes = load_points(block + low_at, block + high_at, table + words_at, width, more)
        if marked:
            codes = mark_codes(codes, block + codes_at, mark)
        return look_up(codes, table)

    return inner(unpack, layout, inline="always")


def codes_across(layout: Layout, n: int) -> bool:
    """Whether products with n tokens take codes across: halves of points of 4 values are taken apart sooner so."""
    return n <= FEW_TOKENS and layout.grid is not None and layout.grid.halves is not None and layout.grid.width == 4


def _codes_of_halves(layout: Layout, across: bool) -> Any:
    """`codes_of_points` where their halves are looked up, in tables behind that of values."""
    grid, values = layout.grid, layout.table
    assert grid is not None
    assert grid.halves is not None
    assert values is not None
    halves, marked, groups, tables_at = grid.halves, grid.mark is not None, layout.groups, POINTS_AT
    form = HalvesForm(grid.width, halves.more, halves.own, halves.first, halves.last, marked, across)
    load_halves, by = load_halves_of(form), values[0] - values[len(values) // 2]
    marks_at = layout.block_bytes - layout.code_bytes
    high_at, low_at = marks_at + grid.marks, layout.block_bytes - grid.low_bytes

    def unpack(w, block, i, table):
        codes = load_halves(block + low_at, block + high_at, block + marks_at, table + tables_at)
        return codes if marked else lower_marked(codes, block, block + marks_at, groups, by)

    return inner(unpack, layout, across, inline="always")


def codes_in_dots(layout: Layout) -> tuple[int, int]:
    """The offset that codes have in dot products, and the largest code.

    128, where they have any, and up to 255; where 16 bits hold sums of codes' products, small ones: the next power of
    two, and up to as much as they come to.
    """
    offset = 1 << (layout.offset - 1).bit_length() if layout.offset else 0
    most = (max(layout.table) if layout.table else (1 << layout.bits) - 1 - layout.offset) + offset
    if host.products_of_16_bits(most):
        return offset, most
    return 128 if offset else 0, 255


def keeps_codes_high(layout: Layout) -> bool:
    """Whether codes are taken as multiples of 2^(8 - bits), so that their offset is 128; others are raised to that."""
    high = layout.offset == 1 << (layout.bits - 1) and layout.table is None
    return high and codes_in_dots(layout)[0] == 128
