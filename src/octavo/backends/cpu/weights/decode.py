# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Codes of a weight's block, 16 rows x 32 values, as products take them: unpacked, looked up and with their offset."""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.weights.layout import TiledLayout
from octavo.jit import host_cpu
from octavo.jit.compile import inner
from octavo.jit.simd import load_codes, load_high_codes, look_up, raise_codes


def unpack_codes(layout: TiledLayout) -> Any:
    """A function (block, table) -> codes, as `codes_in_dots` says."""
    bits, has_table, high = layout.bits, layout.table is not None, keeps_codes_high(layout)
    codes_at, up = layout.block_bytes - layout.code_bytes, codes_in_dots(layout)[0] - layout.offset
    raised = up != 0 and not high

    def unpack(block, table):
        codes = load_high_codes(block + codes_at, bits) if high else load_codes(block + codes_at, bits)
        if has_table:
            return look_up(codes, table)
        return raise_codes(codes, up) if raised else codes

    return inner(unpack, layout, inline="always")


def codes_in_dots(layout: TiledLayout) -> tuple[int, int]:
    """The offset that codes have in dot products, and the largest code.

    128, where they have any, and up to 255; where 16 bits hold sums of codes' products, small ones: the next power of
    two, and up to as much as they come to.
    """
    offset = 1 << (layout.offset - 1).bit_length() if layout.offset else 0
    most = (max(layout.table) if layout.table else (1 << layout.bits) - 1 - layout.offset) + offset
    if host_cpu.products_of_16_bits(most):
        return offset, most
    return 128 if offset else 0, 255


def keeps_codes_high(layout: TiledLayout) -> bool:
    """Whether codes are taken as multiples of 2^(8 - bits), so that their offset is 128; others are raised to that."""
    high = layout.offset == 1 << (layout.bits - 1) and layout.table is None
    return high and codes_in_dots(layout)[0] == 128
