"""Numbers of points of a grid, looked up with the instructions of AVX-512 VBMI."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba.core import cgutils

from octavo.backends.cpu.grid_pack import points_of, with_points
from octavo.formats import by_name
from octavo.jit import simd
from octavo.jit.simd import grids
from octavo.jit.simd.emit import I8, I64, call_llvm
from tests.jit.compiled import compiled
from tests.sampling import slow


def permuted(b: Any, name: str, result: Any, *args: Any) -> Any:
    """What AVX-512 VBMI has: bytes of a table of 64 by the low six bits of 64 others; eight bits from any bit on."""
    if not name.startswith("llvm.x86.avx512.p"):
        return call_llvm(b, name, result, *args)
    shifts = name.endswith("multishift.qb.512")
    places = [cgutils.alloca_once(b, result) for _ in range(3)]
    first, second, out = (b.bitcast(p, ir.ArrayType(I8, 64).as_pointer()) for p in places)
    b.store(args[0], places[0])
    b.store(args[1], places[1])
    with cgutils.for_range(b, I64(64)) as loop:
        if shifts:
            bit = b.zext(b.and_(b.load(b.gep(first, [I64(0), loop.index])), I8(63)), I64)
            words = b.bitcast(places[1], ir.ArrayType(I64, 8).as_pointer())
            word = b.load(b.gep(words, [I64(0), b.lshr(loop.index, I64(3))]))
            turned = b.or_(b.lshr(word, bit), b.shl(word, b.and_(b.sub(I64(64), bit), I64(63))))
            found = b.trunc(turned, I8)
        else:
            number = b.and_(b.load(b.gep(second, [I64(0), loop.index])), I8(63))
            found = b.load(b.gep(first, [I64(0), b.zext(number, I64)]))
        b.store(found, b.gep(out, [I64(0), loop.index]))
    return b.load(places[2])


@pytest.mark.parametrize("name", [*map(slow, ("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ3_S")), "IQ2_S"])
def test_permuted_bytes_are_the_values_of_points(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AVX-512 VBMI as with the other instructions, and as the row of the format says."""
    fmt, rng = by_name(name), np.random.default_rng(0)
    assert fmt.grid is not None
    assert fmt.table is not None
    points, width = points_of(fmt.grid), fmt.grid.width
    more, tables, vectors = points.more, points.tables_at, 8 // width
    table = with_points(fmt.table, 128, fmt.grid)
    low, marks = rng.integers(0, 256, 64 * vectors).astype(np.uint8), rng.integers(0, 256, 64).astype(np.uint8)
    high = rng.integers(0, 256, 64 * vectors * max(more, 1)).astype(np.uint8)
    monkeypatch.setattr(grids, "call_llvm", permuted)
    out = np.empty((8, 16, 4), np.uint8)

    @compiled
    def run(low, high, marks, table, out):
        simd.store_codes(out, simd.load_marked_points(low, high, 5, marks, table + tables, width, more))

    run(low, high, marks, table, out)
    bits = (high.reshape(vectors, max(more, 1), 64) >> 5 & 1).astype(int)[:, :more]
    numbers = low.reshape(vectors, 64) + sum(256 << p & -bits[:, p] for p in range(more))
    sizes = fmt.grid.points[numbers.reshape(vectors, 16, 4)]  # [vectors, rows, points, width]
    codes = sizes.transpose(0, 2, 1, 3).reshape(-1, 16, width // 4, 4).transpose(0, 2, 1, 3).reshape(8, 16, 4)
    marked = marks.reshape(16, 4) >> np.arange(8)[:, None, None] & 1
    values = np.array(fmt.table)[codes | marked << fmt.grid.bits]
    np.testing.assert_array_equal(out.astype(int) - 128, values)
