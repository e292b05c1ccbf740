"""Blocks of vectors: codes and their integer products, sums of them, and what threads need. Each intrinsic alone."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from llvmlite import ir
from numba import types
from numba.core.errors import LoweringError, TypingError

from octavo.jit import host_cpu, simd
from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.program import KernelCall
from octavo.jit.simd import codes as code_ops
from octavo.jit.simd import dots, emit, memory
from tests.jit.kernel_functions import compiled, emulated, fenced, pack_codes
from tests.sampling import slow, some

BITS = [2, 3, 4, 5, 6, 8]
TOKENS = [1, 3, 8]


def some_codes(bits: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << bits, (8, 64))


LEVELS = {"host": None, "generic": ("generic", ()), "sdot": ("dotprod", ("dotprod",)),
          "usdot": ("i8mm", ("dotprod", "i8mm"))}


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own instructions; plain code; and Arm's, emulated."""
    if (chosen := LEVELS[request.param]) is not None:
        monkeypatch.setattr(host_cpu, "level", lambda: chosen[0])
        monkeypatch.setattr(host_cpu, "features", lambda: frozenset(chosen[1]))
        for module in (emit, code_ops, dots):
            monkeypatch.setattr(module, "call_llvm", emulated)


@pytest.mark.parametrize("bits", BITS)
def test_load_codes(bits: int) -> None:
    """As they are, and in the high bits of their bytes."""
    packed, out = fenced(64 * bits), np.empty((2, 8, 64), np.uint8)

    @compiled
    def run(x, y):
        simd.store_codes(y, simd.load_codes(x, bits))
        simd.store_codes(y + 512, simd.load_high_codes(x, bits))

    for codes in (some_codes(bits), np.full((8, 64), (1 << bits) - 1), np.zeros((8, 64), int)):
        packed[:] = pack_codes(codes, bits)
        run(packed, out)
        np.testing.assert_array_equal(out[0], codes)
        np.testing.assert_array_equal(out[1], codes << (8 - bits))


@pytest.mark.usefixtures("level")
def test_look_up() -> None:
    codes, table = np.arange(512, dtype=np.uint8).reshape(8, 64) % 16, fenced(16)
    out = np.empty((8, 64), np.uint8)
    table[:] = np.random.default_rng(0).permutation(256)[:16]

    @compiled
    def run(x, y, table):
        simd.store_codes(y, simd.look_up(simd.load_codes(x, 8), table))

    if host_cpu.has_byte_shuffle():
        run(codes, out, table)
        np.testing.assert_array_equal(out, table[codes])
    else:  # tables are decoded when weights are packed
        with pytest.raises((LoweringError, AssertionError), match="no byte shuffle"):
            run(codes, out, table)


class Activations:
    """A block of n tokens x 32 values as products read it, at the end of memory; `d_at` is where the scales begin."""

    def __init__(self, codes: np.ndarray, rng: np.random.Generator, exact: bool) -> None:
        n = len(codes)
        self.codes, self.d_at = codes, 32 * n
        self.memory = fenced(56 * n)
        floats = self.memory[32 * n : 44 * n].view(np.float32).reshape(3, n)
        begins = self.memory[44 * n :].view(np.int32).reshape(3, n)
        self.memory[: 32 * n] = codes.astype(np.int8).view(np.uint8).ravel()
        floats[:] = 1 if exact else rng.standard_normal((3, n))
        first, last = codes[:, :16].sum(axis=1), codes[:, 16:].sum(axis=1)
        begins[:] = -128 * np.stack([first + last, first, last])
        self.d, self.sums, self.first_sums = floats.astype(np.float64)[:, :, None]


KINDS = ("plain", "minima", "offset 128")
DOTS = [
    case if case[0] in ("host", "generic") or case[1] == (1 if case[0] == "sdot" else 2) else slow(case)
    for case in itertools.product(LEVELS, (1, 2), KINDS)
]
"""Levels, halves and kinds of dots: of the two that are emulated each with one number of halves by default."""
WEIGHTS_AND_VALUES = [(255, -128), (255, 127), (0, -128), (255, None), (None, -128), (None, None)]


@pytest.mark.parametrize("n", some([1, 3], 1))
@pytest.mark.parametrize(("level", "halves", "name"), DOTS, indirect=["level"])
def test_dots(level: None, halves: int, name: str, n: int) -> None:
    """Dots of unsigned and signed bytes, extreme ones too, must be exact; then with scales and minima."""
    check_dots(halves, KINDS.index(name), n, 128, 255)


@pytest.mark.parametrize("halves", some([1, 2], 1))
@pytest.mark.parametrize(("offset", "most"), some([(8, 15), (4, 7), (16, 31), (16, 28), (64, 127), (32, 63)], 2))
def test_dots_of_small_codes(halves: int, offset: int, most: int) -> None:
    """Codes whose products 16 bits hold, on CPUs where that is of use: as many sums of them as fit, and no more."""
    check_dots(halves, KINDS.index("offset 128"), 3, offset, most)


@pytest.mark.parametrize("n", [1, slow(3)])
def test_dots_of_words(n: int) -> None:
    """Codes and activations widened to 16 bits: codes of a block, and those that lie in memory."""
    if n > dots.FEW and host_cpu.level() != "avx2":
        pytest.skip("only AVX2 takes more tokens so")
    codes, words, out = fenced(512), fenced(1024), np.empty((2, n, 16), np.float32)
    d_at, kind = 32 * n, dots.PRELOADED

    @compiled
    def run(codes, words, x, out):
        for t in range(n):
            simd.store_token_words(x + 56 * n + 64 * t, x + 32 * t)
        block, one, none = simd.load_codes(codes, 8), simd.splat(1.0), simd.splat(0.0)
        simd.store_words(words, block)
        acc = simd.fma_word_dots(simd.zeros(n), block, one, none, x, d_at, kind, 128, 255)
        simd.store_block(out, 64, acc)
        acc = simd.fma_word_dots(simd.zeros(n), words, one, none, x, d_at, kind, 128, 255)
        simd.store_block(out + 64 * n, 64, acc)

    rng = np.random.default_rng(n)
    for a, b in WEIGHTS_AND_VALUES:
        codes[:] = rng.integers(0, 256, 512) if a is None else a
        x = Activations(rng.integers(-128, 128, (n, 32)) if b is None else np.full((n, 32), b), rng, True)
        memory = fenced(120 * n)
        memory[: 56 * n] = x.memory
        run(codes, words, memory, out)
        rows = codes.reshape(8, 16, 4).transpose(1, 0, 2).reshape(16, 32).astype(np.int64) - 128
        np.testing.assert_array_equal(out, np.stack([x.codes @ rows.T] * 2))


def check_dots(halves: int, kind: int, n: int, offset: int, most: int) -> None:
    codes, out, vectors = fenced(512), np.empty((n, 16), np.float32), np.empty((4, 16), np.float32)

    @compiled
    def run(codes, acc, vectors, x, d_at, out):
        block, codes8 = simd.load_block(acc, 96, n), simd.load_codes(codes, 8)
        s0, s1 = simd.load_f32x16(vectors), simd.load_f32x16(vectors + 64)
        b0, b1 = simd.load_f32x16(vectors + 128), simd.load_f32x16(vectors + 192)
        if halves == 1:
            block = simd.fma_dots(block, codes8, s0, b0, x, d_at, kind, offset, most)
        else:
            block = simd.fma_dots_2(block, codes8, s0, s1, b0, b1, x, d_at, kind, offset, most)
        simd.store_block(out, 64, block)

    rng = np.random.default_rng(n)
    for exact, (a, b) in itertools.product((True, False), WEIGHTS_AND_VALUES):
        codes[:] = rng.integers(0, most + 1, 512) if a is None else min(a, most)
        x = Activations(rng.integers(-128, 128, (n, 32)) if b is None else np.full((n, 32), b), rng, exact)
        vectors[:] = [[1]] * 2 + [[0]] * 2 if exact else rng.standard_normal((4, 16))
        acc = np.zeros((n, 24), np.float32) if exact else FLOATS[:n]
        run(codes, acc, vectors, x.memory, x.d_at, out)
        rows = codes.reshape(8, 16, 4).transpose(1, 0, 2).reshape(16, 32).astype(np.int64) - offset * (kind == 2)
        dots = [x.codes[:, part] @ rows[:, part].T for part in (slice(16), slice(16, 32))]
        scales = vectors[[0, halves - 1]].astype(np.float64)
        terms = [dot * scale * x.d for dot, scale in zip(dots, scales, strict=True)]
        if kind == 1:
            last = vectors[2 if halves == 1 else 3].astype(np.float64)
            terms += [last * x.sums] + ([vectors[2] * x.first_sums] if halves == 2 else [])
        want = acc[:, :16] + sum(terms)
        allowed = 0.0 if exact else 4e-7 * sum(np.abs(t) for t in terms) + 1e-6
        assert (np.abs(out - want) <= allowed).all()


def test_sizes_of_blocks_are_constants() -> None:
    @compiled
    def run(x, n):
        simd.store_block(x, 64, simd.zeros(n))

    with pytest.raises(TypingError, match="known when the kernel is compiled"):
        run(np.zeros(16, np.float32), 1)


FLOATS = np.random.default_rng(1).standard_normal((8, 24)).astype(np.float32)
VECTOR, OTHER = np.random.default_rng(2).standard_normal((2, 16)).astype(np.float32)


@pytest.mark.parametrize("n", TOKENS)
def test_block_memory(n: int) -> None:
    out = np.full((n, 24), np.nan, np.float32)

    @compiled
    def run(x, y):
        simd.store_block(y, 96, simd.add_blocks(simd.load_block(x, 96, n), simd.zeros(n)))

    run(FLOATS, out)
    np.testing.assert_array_equal(out[:, :16], FLOATS[:n, :16])
    assert np.isnan(out[:, 16:]).all()


@pytest.mark.parametrize("n", TOKENS)
def test_block_arithmetic(n: int) -> None:
    out = np.empty((3, n, 16), np.float32)
    x = FLOATS[:n, :16]

    @compiled
    def run(rows, vector, out, floats):
        block, v = simd.load_block(rows, 96, n), simd.load_f32x16(vector)
        simd.store_block(out, 64, simd.add_blocks(block, block))
        simd.store_block(out + n * 64, 64, simd.scale_block(block, floats, 96))
        simd.store_block(out + 2 * n * 64, 64, simd.fma_splat_strided(block, v, floats, 96))

    run(FLOATS, VECTOR, out, FLOATS)
    np.testing.assert_array_equal(out[0], x + x)
    np.testing.assert_array_equal(out[1], x * FLOATS[:n, :1])
    np.testing.assert_allclose(out[2], x + VECTOR * FLOATS[:n, :1], rtol=1e-6, atol=1e-6)


def test_sums_of_blocks_keep_their_order() -> None:
    """(x + y) + x, not y + 2 x, which is 4 more."""
    x, y, out = np.full(16, 1.5, np.float32), np.full(16, 2**25, np.float32), np.empty(16, np.float32)

    @compiled
    def run(x, y, out):
        first = simd.load_block(x, 64, 1)
        simd.store_block(out, 64, simd.add_blocks(simd.add_blocks(first, simd.load_block(y, 64, 1)), first))

    run(x, y, out)
    assert set(out) == {2**25}


@pytest.mark.parametrize("n", TOKENS)
def test_fma_blocks(n: int) -> None:
    out = np.empty((n, 16), np.float32)

    @compiled
    def run(x, y, vector, out):
        acc = simd.fma_blocks(simd.load_block(x, 96, n), simd.load_block(y, 96, n), simd.load_f32x16(vector))
        simd.store_block(out, 64, acc)

    run(FLOATS, FLOATS[:, 8:], VECTOR, out)
    np.testing.assert_allclose(out, FLOATS[:n, :16] + FLOATS[:n, 8:] * VECTOR, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", TOKENS)
def test_masked_lanes_are_not_touched(n: int) -> None:
    """For 0 to 16 lanes, of rows that end where memory does."""
    out = np.empty((n, 16), np.float32)

    @compiled
    def run(x, stride, lanes, y):
        block = simd.load_block_masked(x, stride, lanes, n)
        simd.store_block(y, 64, block)
        simd.store_block_masked(x, stride, lanes, simd.add_blocks(block, block))

    for lanes in range(17):
        memory = fenced((n - 1) * 80 + 4 * lanes).view(np.float32)
        before = np.random.default_rng(lanes).standard_normal(len(memory)).astype(np.float32)
        memory[:] = before
        run(memory, 80, lanes, out)
        want = before.copy()
        for t in range(n):
            row = slice(20 * t, 20 * t + lanes)
            np.testing.assert_array_equal(out[t, :lanes], before[row])
            assert not out[t, lanes:].any()
            want[row] *= 2
        np.testing.assert_array_equal(memory, want)


def test_arguments_and_pointers() -> None:
    found = np.zeros(8, np.float64)
    numbers = [np.arange(4).astype(t) - 2 for t in (np.float32, np.int32, np.int64, np.int8, np.uint8)]

    @kernels(record("out whole half:f4 f32 i32 i64 i8 u8"))
    def take():
        return take_arguments

    def take_arguments(a, task):
        out = f64_pointer(a.out)
        out[0] = a.whole
        out[1] = a.half
        out[2] = task
        out[3] = simd.f32_pointer(a.f32)[1]
        out[4] = simd.i32_pointer(a.i32)[1]
        out[5] = simd.i64_pointer(a.i64)[1]
        out[6] = simd.i8_pointer(a.i8)[1]
        out[7] = simd.u8_pointer(a.u8)[1]

    f64_pointer = memory._pointer_to(types.float64, ir.DoubleType())

    pointed = dict(zip(("f32", "i32", "i64", "i8", "u8"), numbers, strict=True))
    call = KernelCall(take(), 1, out=found, whole=-(2**62), half=-0.1, **pointed)
    compiled(call_kernel)(call.kernel.address, call.args, 5)
    np.testing.assert_array_equal(found, [-(2**62), np.float32(-0.1), 5, -1, -1, -1, -1, 255])


def call_kernel(function, args, task):
    simd.call(function, args, task)


def test_pairs_of_16_bits_times_pairs() -> None:
    """Sums of both products, with the largest numbers there are; floats are rounded to even on their way."""
    rng = np.random.default_rng(3)
    floats = (rng.integers(-65534, 65535, (2, 16)) / 2).astype(np.float32)
    floats[:, :4] = [[-32767, 32767, 0.5, 1.5], [2.5, -0.5, 32767, -32767]]
    codes = rng.integers(-128, 128, (32, 2)).astype(np.int8)
    pairs, wide, sums = np.empty((16, 2), np.int16), np.empty((32, 2), np.int16), np.empty((3, 16), np.float32)
    parts = np.empty((2, 32), np.int16)

    @compiled
    def run(floats, codes, pairs, wide, parts, sums):
        simd.store_pairs(pairs, simd.load_f32x16(floats), simd.load_f32x16(floats + 64))
        simd.widen_bytes(wide, codes)
        simd.widen_bytes(wide + 64, codes + 32)
        simd.part_pairs(parts, parts + 64, codes)
        total = simd.add_splat_pairs(simd.zero_sums(3), pairs, wide, 8)
        simd.store_block(sums, 64, simd.to_floats(simd.add_splat_pairs(total, pairs, wide + 4, 8)))

    run(floats, codes, pairs, wide, parts, sums)
    np.testing.assert_array_equal(pairs, np.rint(floats).T)
    np.testing.assert_array_equal(wide, codes)
    np.testing.assert_array_equal(parts, codes.T)
    twice = codes.astype(np.int64)[:6].reshape(3, 2, 2).sum(axis=1)
    np.testing.assert_array_equal(sums, (twice @ pairs.T.astype(np.int64)).astype(np.float32))


def test_four_bits_of_words() -> None:
    words = np.random.default_rng(4).integers(0, 1 << 32, 16, np.uint32)
    out, pairs = np.empty((8, 16), np.int16), np.empty((6, 16, 2), np.int16)

    @compiled
    def run(words, out, pairs):
        for i in range(8):
            simd.store_nibbles(out + 32 * i, words, 4 * i)
        for i in range(6):
            simd.store_nibble_pairs(pairs + 64 * i, words, 4 * i)

    run(words, out, pairs)
    np.testing.assert_array_equal(out, (words >> np.arange(0, 32, 4)[:, None] & 15).astype(np.int64) - 8)
    np.testing.assert_array_equal(pairs[..., 0], out[:6])
    np.testing.assert_array_equal(pairs[..., 1], out[2:])


def test_stack_is_aligned_and_each_is_its_own() -> None:
    out = np.zeros(3, np.int64)

    @compiled
    def run(out):
        a, b = simd.stack(3), simd.stack(1000)
        simd.i64_pointer(out)[0], simd.i64_pointer(out)[1] = a, b
        for i in range(1000):
            simd.u8_pointer(b)[i] = 7
        for i in range(3):
            simd.u8_pointer(a)[i] = i
        for i in range(1000):
            simd.i64_pointer(out)[2] += simd.u8_pointer(b)[i]

    run(out)
    assert out[0] % 64 == out[1] % 64 == 0
    assert out[2] == 7000


def test_atomic_adds_of_several_threads_are_all_counted() -> None:
    counter, seen, errors = np.zeros(1, np.int64), np.zeros((4, 20000), np.int64), []

    @compiled.inline
    def count(counter, seen, n):
        for i in range(n):
            simd.i64_pointer(seen)[i] = simd.atomic_add(counter, 3)
            simd.pause()
        simd.yield_thread()
        return simd.atomic_load(counter)

    assert count(counter.ctypes.data, seen.ctypes.data, 0) == 0

    def work(row: np.ndarray) -> None:
        if count(counter.ctypes.data, row.ctypes.data, len(row)) < 3 * len(row):
            errors.append(row)

    threads = [threading.Thread(target=work, args=[row]) for row in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert counter[0] == 3 * seen.size
    np.testing.assert_array_equal(np.sort(seen.ravel()), np.arange(0, 3 * seen.size, 3))
