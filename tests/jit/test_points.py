"""Numbers of points of a grid: looked up as codes in both ways, and multiplied as sizes with signs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba.core import cgutils

from octavo.jit import host, simd
from octavo.jit.simd import grids
from octavo.jit.simd.emit import I8, I64, call_llvm
from tests.jit.compiled import compiled


def permuted(b: Any, name: str, result: Any, *args: Any) -> Any:
    """Bytes of a table of 64 by the low six bits of 64 others, as AVX-512 VBMI has them; the rest as it is."""
    if name != "llvm.x86.avx512.permvar.qi.512":
        return call_llvm(b, name, result, *args)
    places = [cgutils.alloca_once(b, result) for _ in range(3)]
    table, numbers, out = (b.bitcast(p, ir.ArrayType(I8, 64).as_pointer()) for p in places)
    b.store(args[0], places[0])
    b.store(args[1], places[1])
    with cgutils.for_range(b, I64(64)) as loop:
        number = b.and_(b.load(b.gep(numbers, [I64(0), loop.index])), I8(63))
        found = b.load(b.gep(table, [I64(0), b.zext(number, I64)]))
        b.store(found, b.gep(out, [I64(0), loop.index]))
    return b.load(places[2])


@pytest.mark.parametrize("planes", [0, 1])
def test_bytes_are_permuted_to_the_words_of_points(planes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, count = np.random.default_rng(planes), 256 << planes
    codes = rng.integers(0, 8, (count, 4)).astype(np.uint8)
    pairs = (codes[:, 0::2] | codes[:, 1::2] << 4).T
    table = np.concatenate([codes.ravel(), np.zeros(8 * count, np.uint8), pairs.ravel()])
    low, high = (rng.integers(0, 256, 128).astype(np.uint8) for _ in range(2))
    monkeypatch.setattr(host, "has_byte_permutation", lambda: True)
    monkeypatch.setattr(grids, "call_llvm", permuted)
    out = np.empty((8, 16, 4), np.uint8)

    @compiled
    def run(low, high, table, out):
        simd.store_codes(out, simd.load_points(low, high, 5, table, 4, planes))

    run(low, high, table, out)
    numbers = low.astype(int) + (high.astype(int) >> 5 & 1) * 256 * planes
    np.testing.assert_array_equal(out & 0x8F, codes[numbers.reshape(2, 16, 4)].transpose(0, 2, 1, 3).reshape(8, 16, 4))
