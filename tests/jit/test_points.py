"""Points of a grid: their halves looked up with the instructions of AVX-512 VBMI, their products with those of AVX2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba.core import cgutils

from octavo.backends.cpu.device.large_pages import Arena
from octavo.backends.cpu.matmul.codebook_kernel import add_super_of_sizes
from octavo.backends.cpu.matmul.kernel import small_scales
from octavo.backends.cpu.matmul.quantize_kernel import BLOCK_BYTES
from octavo.backends.cpu.weights.codebook_halves import halves_of, numbers_of, tables_of
from octavo.backends.cpu.weights.codebook_halves import packed as packed_halves
from octavo.backends.cpu.weights.decode import codes_across, unpack_codes
from octavo.backends.cpu.weights.pack import QuantWeight, pack
from octavo.backends.cpu.weights.pack_codebook import points_of, with_points
from octavo.formats import QTensor, by_name, codebook, unpack
from octavo.jit import host, simd
from octavo.jit.simd import halves
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


@pytest.mark.parametrize("name", [*map(slow, ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")), "IQ1_M", "IQ3_S"])
@pytest.mark.parametrize("tokens", [1, slow(8)])
def test_permuted_bytes_are_the_values_of_points(name: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the layout for AVX-512 VBMI holds, looked up with its instructions, is what the row of the format says."""
    monkeypatch.setattr(host, "has_byte_permutation", lambda: True)
    monkeypatch.setattr(halves, "call_llvm", permuted)
    fmt, rng = by_name(name), np.random.default_rng(0)
    assert fmt.table is not None
    stored = QTensor(fmt, (17, 512), rng.integers(0, 256, (17, 2 * fmt.block_bytes), np.uint8))
    packed, planes = pack(stored, 1, Arena()), unpack(stored)
    assert isinstance(packed, QuantWeight)
    assert planes.sc is not None
    layout = packed.layout
    block_bytes, small_bytes, groups = layout.block_bytes, layout.small_bytes, layout.groups
    across = codes_across(layout, tokens)
    codes_of, scales_of = unpack_codes(layout, across=across), small_scales(layout)

    @compiled
    def run(w, block, table, codes, scales):
        for i in range(8):
            simd.store_codes(codes + 512 * i, codes_of(w, block + i * block_bytes, i, table))
            for g in range(groups):
                here = scales_of(block + i * block_bytes + g * small_bytes, simd.splat(1.0))
                simd.store_f32x16(scales + 64 * (i * groups + g), here)

    codes, scales = np.empty((8, 8, 16, 4), np.uint8), np.empty((8 * groups, 16), np.float32)
    for tile, part in np.ndindex(2, 2):
        rows, columns = slice(16 * tile, 17), slice(256 * part, 256 * (part + 1))
        w = packed.data[0, tile, part * layout.super_bytes :]
        run(w, w[layout.head_bytes :], packed.table, codes, scales)
        if across:  # of each 16 values 0, 4, 8, 12, then 1, 5 and so on
            codes = codes.reshape(8, 2, 4, 16, 4).transpose(0, 1, 4, 3, 2).reshape(8, 8, 16, 4)
        values = codes.transpose(2, 0, 1, 3).reshape(16, 256).astype(int) - layout.offset
        np.testing.assert_array_equal(values[: 17 - 16 * tile], np.array(fmt.table)[planes.q[rows, columns]][:16])
        of_groups = planes.sc[rows, 8 * groups * part : 8 * groups * (part + 1)][:16]
        np.testing.assert_array_equal(scales.T[: 17 - 16 * tile], of_groups)


def test_turned_blocks_keep_what_follows_their_codes() -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, 2 * 56), np.uint8)
    out = np.zeros_like(x)

    @compiled
    def run(out, x):
        simd.turn_blocks(out, x, 3, 2, 24)

    run(out, x)
    codes = x[:, :64].reshape(3, 2, 2, 4, 4).transpose(0, 1, 2, 4, 3).reshape(3, 64)
    np.testing.assert_array_equal(out, np.concatenate([codes, x[:, 64:]], axis=1))


CODEBOOKS = [codebook.IQ1, codebook.IQ2_XXS, codebook.IQ2_XS, codebook.IQ2_S, codebook.IQ3_XXS, codebook.IQ3_S]


@pytest.mark.parametrize("points", CODEBOOKS, ids=str)
def test_halves_of_numbers_are_those_of_points(points: codebook.Codebook) -> None:
    numbers, places = numbers_of(points), halves_of(points).places()
    assert len(set(numbers.tolist())) == len(points.keys)
    expected = [table[place[numbers]] for table, place in zip(tables_of(points), places, strict=True)]
    np.testing.assert_array_equal(expected, packed_halves(points.entries))
    if points.even:  # those that a file stores in few bits keep their numbers
        np.testing.assert_array_equal(numbers, np.arange(len(numbers)))


@pytest.mark.skipif("avx2" not in host.features(), reason="needs AVX2")
@pytest.mark.parametrize("name", [*map(slow, ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ3_S")), "IQ1_M", "IQ2_S"])
@pytest.mark.parametrize("tokens", [slow(1), 2])
def test_products_with_sizes_are_exact(name: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX2's products of a super-block: whole numbers up to the scales, which are powers of two here."""
    monkeypatch.setattr(host, "has_byte_permutation", lambda: False)
    fmt, rng = by_name(name), np.random.default_rng(0)
    assert fmt.table is not None
    assert fmt.indexed is not None
    stored = QTensor(fmt, (16, 256), rng.integers(0, 256, (16, fmt.block_bytes), np.uint8))
    packed, planes = pack(stored, 1, Arena(), compact=True), unpack(stored)
    assert isinstance(packed, QuantWeight)
    assert planes.sc is not None
    packed.data[0, 0, :32] = np.full(16, 2.0**-3, np.float16).view(np.uint8)  # d
    x = rng.integers(-127, 128, (tokens, 8, 32), np.int8)
    blocks = np.zeros((8, tokens * BLOCK_BYTES), np.uint8)
    for b, block in enumerate(blocks):
        sums = [-128 * x[:, b, part].astype(np.int32).sum(1) for part in (slice(32), slice(16), slice(16, 32))]
        floats = np.full((3, tokens), 0.5, np.float32)  # scales, and sums that are not read
        parts = (x[:, b], floats, np.array(sums, np.int32))
        block[:] = np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])
    monkeypatch.setattr(host, "level", lambda: "avx2")
    add_super = add_super_of_sizes(packed.layout, tokens)

    @compiled
    def run(y, w, blocks, table):
        simd.store_block(y, 64, add_super(simd.zeros(tokens), w, blocks, table))

    y = np.empty((tokens, 16), np.float32)
    run(y, packed.data, blocks, packed.table)
    values = np.array(fmt.table)[planes.q].reshape(16, -1, fmt.group)
    sums = np.einsum("rgi,tgi,rg->tr", values, x.reshape(tokens, -1, fmt.group).astype(int), planes.sc.astype(int))
    np.testing.assert_array_equal(y, sums * (2.0**-4 * fmt.step))


@pytest.mark.parametrize("points", [codebook.IQ1, codebook.IQ2_XXS, codebook.IQ3_S], ids=str)
def test_sizes_may_be_read_16_bytes_at_a_time(points: codebook.Codebook) -> None:
    """As AVX2's products with few tokens do it."""
    found = points_of(points, 32, by_halves=False)
    table = with_points(tuple(range(-8, 8)), 8, points, found)
    assert len(table) >= found.sizes_at + 8 * (len(points.keys) - 1) + 16
