"""Products and attention by matrix tiles (AMX); `test_amx.py` runs this where tiles are emulated.

On a machine that has tiles: `pytest tests/backends/cpu/tiled_products.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from octavo import ops
from octavo.backends.cpu import CpuBackend
from octavo.backends.cpu.matmul.stored_weight import StoredWeight
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.formats.group import row_named
from octavo.formats.spec import AnyArray
from octavo.jit import host_cpu
from tests.backends.cpu.test_same_numbers import Attention

SIZES = {"small": (49, 37, 256), "many rows": (57, 1040, 1280), "many tokens": (529, 16, 256)}
FORMATS = ["Q4_K", "Q6_K", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_K", "Q2_K", "Q3_K", "IQ4_NL", "MXFP4", "NVFP4",
           "GROUP4_128_Z_F16"]


@pytest.mark.parametrize(("name", "size"), [
    *((name, "small") for name in FORMATS), *(("Q4_K", size) for size in SIZES), ("Q6_K", "many rows"),
])
def test_blocks(name: str, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As near to what VNNI computes of the same codes as two factors of bfloat16 are, each token by itself."""
    assert host_cpu.has_tiles()
    m, n, k = SIZES[size]
    tensor, x = quantize_reference(drawn(n, k), row_named(name)), drawn(m, k)
    weight = StoredWeight(tensor)
    found, back = weight.product(x), weight.product(x[::-1])
    np.testing.assert_array_equal(back, found[::-1])
    monkeypatch.setattr(host_cpu, "why_no_tiles", lambda: "switched off")
    assert nmse(found, weight.product(x)) < 5e-6


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 64), (37, 37, 256), (101, 1040, 128), (70, 20, 4224)])
def test_int8(m: int, n: int, k: int) -> None:
    """Held to NumPy's integers, and the float32 products after them."""
    assert host_cpu.has_tiles()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (rows, k), np.int8) for rows in (m, n))
    scale_a, scale_b = (rng.random(rows, np.float32) for rows in (m, n))
    exact = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.float32)
    found = ops.int8_gemm(a, b, scale_a, scale_b)
    np.testing.assert_allclose(found, exact * scale_a[:, None] * scale_b, rtol=1e-6)


@pytest.mark.parametrize(("name", "sizes", "most"), [
    ("BF16", [(16, 37, 96), (33, 1040, 80), (529, 40, 530), (19, 20, 33)], 5e-6),
    ("F16", [(16, 37, 96), (35, 1030, 48), (21, 20, 33)], 1e-9),
    ("FP8_128", [(16, 37, 256), (33, 1040, 128)], 5e-6),
])
def test_floats(name: str, sizes: list[tuple[int, int, int]], most: float) -> None:
    """Each token with the numbers that it has beside any others."""
    assert host_cpu.has_tiles()
    for m, n, k in sizes:
        tensor, x = quantize_reference(drawn(n, k), row_named(name)), drawn(m, k)
        weight = StoredWeight(tensor)
        found, expected = weight.product(x), x.astype(np.float64) @ dequantize(tensor).astype(np.float64).T
        assert nmse(found, expected) < most
        np.testing.assert_array_equal(weight.product(x[-16:][::-1]), found[-16:][::-1])


def test_numbers_that_are_none() -> None:
    """NaN and infinity of weights stay, with any payload, and no row but theirs has them."""
    for name, odd in (("F16", 0x7FFF), ("F16", 0xFC00), ("BF16", 0x7FFF), ("BF16", 0xFFFF)):
        tensor = quantize_reference(drawn(20, 64), by_name(name))
        tensor.data.view(np.uint16)[3, 5] = odd
        found = StoredWeight(tensor).product(drawn(17, 64))
        assert (np.isfinite(found) == (np.arange(20) != 3)).all(), (name, odd)


@pytest.mark.parametrize("attrs", [{}, {"window": 200, "cap": 5.0}])
def test_attention(attrs: dict[str, float]) -> None:
    """As near to what vectors compute as two bfloat16 are to a number, each token by itself."""
    tiles, vectors = (Attention("f16", backend=CpuBackend(threads=2, exact=exact), **attrs) for exact in (False, True))
    for first, count in ((3, 61), (250, 57), (0, 64)):
        positions = list(range(first, first + count))
        found = tiles.at(positions)
        assert nmse(found, vectors.at(positions)) < 1e-9
        np.testing.assert_array_equal(tiles.at(positions[:49]), found[:49])


def nmse(found: AnyArray, expected: AnyArray) -> float:
    return float(((found - expected) ** 2).mean() / (expected**2).mean())


def drawn(m: int, k: int) -> AnyArray:
    return np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
