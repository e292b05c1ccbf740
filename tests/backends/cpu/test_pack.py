"""The kernels' own layout of weights: what is read back from it is what the format says, and it is hardly larger."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.cpu.device.large_pages import Arena
from octavo.backends.cpu.weights import pack as packing
from octavo.backends.cpu.weights.layout import ROWS, STEP
from octavo.backends.cpu.weights.pack import TiledFloatWeight, TiledWeight, pack
from octavo.formats import FORMATS, QTensor, by_name, channel_format, dequantize, quantize_reference, unpack
from octavo.formats.spec import BlockFormat
from octavo.graph.builder import weight
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply
from octavo.jit import host_cpu
from octavo.jit.program import KernelCall
from tests.jit.kernel_functions import pack_codes
from tests.sampling import slow, some

QUANTIZED = [f for f in FORMATS if not f.is_float]
QUICK = [f if f.name in ("Q4_K", "Q6_K", "Q5_1", "Q8_0", "IQ4_NL", "IQ3_S", "TQ1_0") else slow(f) for f in QUANTIZED]
"""Those whose layouts differ in kind run by default."""
FLOATS = [by_name(name) for name in ("F32", "F16", "BF16", "F64")]


def tensor(fmt: BlockFormat, *shape: int, scale: float = 1.0) -> QTensor:
    values = np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
    return quantize_reference(values * np.float32(scale), fmt)


def rows_of(stored: QTensor, ids: np.ndarray) -> np.ndarray:
    """Rows of a matrix, through the CPU's packed layout and its get_rows kernel."""
    backend = CpuBackend(threads=2)
    node = apply("get_rows", weight(stored), Node("input", (), ("tokens",), "i32", name="rows"))
    out = np.full((len(ids), stored.shape[1]), np.nan, np.float32)
    backend.begin_plan(Graph.of(node)).bind(node, [backend.load(stored), ids], out)()
    return out


def largest_term(stored: QTensor) -> np.ndarray:
    """[N, 1]: a bound for scale * code and minimum in each row, whose difference is rounded."""
    values = np.abs(dequantize(stored)).max(axis=1, keepdims=True)
    return 2 * values if stored.format.has_min else values


@pytest.mark.parametrize("n", some([1, 15, 16, 17, 40], 2))
@pytest.mark.parametrize("fmt", QUICK, ids=lambda f: f.name)
def test_packed_rows_are_those_of_the_format(fmt: BlockFormat, n: int) -> None:
    stored = tensor(fmt, n, 512)
    ids = np.random.default_rng(n).permutation(np.r_[np.arange(n), 0]).astype(np.int32)
    error = np.abs(rows_of(stored, ids) - dequantize(stored)[ids])
    assert (error <= 1e-6 * largest_term(stored)[ids]).all()


@pytest.mark.parametrize("k", [7, 32, 33, 264])
@pytest.mark.parametrize("fmt", FLOATS, ids=lambda f: f.name)
def test_packed_floats_are_exact(fmt: BlockFormat, k: int) -> None:
    for n in (1, 16, 19):
        stored = tensor(fmt, n, k)
        ids = np.r_[np.arange(n), 0].astype(np.int32)
        np.testing.assert_array_equal(rows_of(stored, ids), dequantize(stored)[ids])


@pytest.mark.parametrize("fmt", [by_name(name) for name in ("Q4_K", "IQ4_NL", "BF16")], ids=lambda f: f.name)
def test_experts_are_packed_as_each_alone(fmt: BlockFormat) -> None:
    stored = tensor(fmt, 3, 17, 512)
    together = pack(stored, 2, Arena())
    for e in range(3):
        alone = pack(QTensor(fmt, (17, 512), stored.data[e]), 1, Arena())
        assert type(alone) is type(together)
        np.testing.assert_array_equal(together.data[e], alone.data[0])


def test_threads_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tensor(by_name("Q6_K"), 100, 512)
    want = pack(stored, 1, Arena()).data
    for name in ("CHUNK_VALUES", "MAPPED_VALUES"):
        monkeypatch.setattr(packing, name, 512 * 20)
    for threads in (1, 3):
        np.testing.assert_array_equal(pack(stored, threads, Arena()).data, want)


@pytest.mark.parametrize(("threads", "parts"), [(1, 2), (2, 4), (16, 4)])
def test_python_is_asked_for_few_parts(threads: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a format lies in blocks as they are read, all of a thread's rows but for what keeps others busy."""
    calls: list[KernelCall] = []
    run = KernelCall.run
    monkeypatch.setattr(KernelCall, "run", lambda call: calls.append(call) or run(call))
    pack(tensor(by_name("Q4_0"), 2048, 1024), threads, Arena())
    assert len(calls) == parts


def with_exponents(fmt: BlockFormat, exponents: list[int]) -> QTensor:
    """A matrix whose blocks have these exponent bytes in turn."""
    stored = tensor(fmt, 17, 256)
    blocks = stored.data.reshape(17, -1, fmt.block_bytes).copy()
    blocks[..., 0] = np.resize(np.array(exponents, np.uint8), blocks.shape[:2])
    return QTensor(fmt, (17, 256), blocks.reshape(17, -1))


SCALES: dict[str, Any] = {
    "exponent": lambda: tensor(by_name("MXFP4"), 17, 256),
    "exponent, whole range": lambda: with_exponents(by_name("MXFP4"), [2, 127, 128, 240, 100]),
    "f32 for subnormal scales": lambda: with_exponents(by_name("MXFP4"), [0, 1, 127, 90]),
    "f16 of an 8-bit scale": lambda: tensor(by_name("NVFP4"), 17, 256),
    "f16": lambda: tensor(by_name("Q4_0"), 17, 256),
    "f32": lambda: tensor(by_name("Q8_K"), 17, 256),
}


@pytest.mark.parametrize(
    "name", [name if name in ("exponent", "exponent, whole range", "f16") else slow(name) for name in SCALES]
)
def test_scales_are_stored_as_small_as_is_exact(name: str) -> None:
    stored = SCALES[name]()
    packed = pack(stored, 1, Arena())
    assert isinstance(packed, TiledWeight)
    assert packed.layout.scale == name.split(maxsplit=1)[0].strip(",")
    ids = np.arange(17, dtype=np.int32)
    error = np.abs(rows_of(stored, ids) - dequantize(stored))
    assert (error <= 1e-6 * largest_term(stored)).all()


@pytest.mark.parametrize("fmt", QUICK, ids=lambda f: f.name)
def test_codes_lie_as_the_layout_says(fmt: BlockFormat) -> None:
    """Vector j of a block holds codes 4 j to 4 j + 3 of its 16 rows."""
    stored = tensor(fmt, 17, 512)
    packed = pack(stored, 1, Arena())
    assert isinstance(packed, TiledWeight)
    layout, q = packed.layout, np.zeros((32, 512), np.uint8)
    q[:17] = unpack(stored).q
    if fmt.table and layout.table is None:
        q = (np.array(fmt.table)[q] + 128).astype(np.uint8)
    supers = packed.data[0].reshape(2, -1, layout.super_bytes)[..., layout.head_bytes :]
    blocks = supers.reshape(2, -1, layout.block_bytes)[..., layout.block_bytes - layout.code_bytes :]
    for tile, block in np.ndindex(*blocks.shape[:2]):
        codes = q[ROWS * tile : ROWS * (tile + 1), STEP * block : STEP * (block + 1)]
        vectors = codes.reshape(ROWS, 8, 4).transpose(1, 0, 2)
        rows = 16 if tile == 0 else 1
        want, got = (x.reshape(-1, 16, 4)[:, :rows] for x in (pack_codes(vectors, layout.bits), blocks[tile, block]))
        np.testing.assert_array_equal(got, want)


MOST = {"Q2_K": 1.2, "Q3_K": 1.04, "Q4_K": 1.03, "Q5_K": 1.03, "IQ4_XS": 1.02, "NVFP4": 1.12, "TQ1_0": 1.23,
        "IQ1_S": 2.13, "IQ1_M": 2.04, "IQ2_XXS": 1.61, "IQ2_XS": 1.55, "IQ2_S": 1.4, "IQ3_XXS": 1.41,
        "IQ3_S": 1.26}
"""How much larger than in the file a matrix may be, 1 for all others: scales of 4 and 6 bits take a byte each, those of
NVFP4 an f16, entries of codebooks the codes of their values, three or four bits, and ternary digits two bits."""


def size_ratio(fmt: BlockFormat) -> float:
    """Bytes in the packed layout over bytes in the file, of a matrix of whole tiles."""
    stored = tensor(fmt, 2 * ROWS, 1024)
    return pack(stored, 1, Arena()).data.nbytes / stored.data.nbytes


@pytest.mark.parametrize("fmt", QUICK, ids=lambda f: f.name)
def test_packed_weights_are_hardly_larger(fmt: BlockFormat) -> None:
    if fmt.table and not host_cpu.has_byte_shuffle():
        return  # codes are decoded to bytes there
    assert size_ratio(fmt) <= MOST.get(fmt.name, 1.0)


def test_floats_keep_their_size_but_for_the_widest() -> None:
    assert [size_ratio(f) for f in FLOATS] == [1, 1, 1, 0.5]
    assert isinstance(pack(tensor(FLOATS[1], 3, 8), 1, Arena()), TiledFloatWeight)


def test_numbers_of_8_bits_stay_so() -> None:
    values = np.random.default_rng(3).standard_normal((21, 50)).astype(np.float32)
    stored = quantize_reference(values, channel_format("FP8", 50))
    stored.data[4, 11], stored.data[20, 12] = 0x7F, 0xFF
    packed = pack(stored, 2, Arena())
    assert isinstance(packed, TiledFloatWeight)
    assert (packed.kind, packed.data.nbytes) == ("e4m3", 32 * 50)
    want = dequantize(stored)
    assert np.isnan(want).sum() == 2
    want[[4, 20]] = np.nan  # what a product with the row is
    np.testing.assert_array_equal(rows_of(stored, np.arange(21, dtype=np.int32)), want)
