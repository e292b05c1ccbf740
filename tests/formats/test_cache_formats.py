"""The table of cache types: sizes, what is left of numbers, and that it is the one that all who ask for a type know."""

from __future__ import annotations

from typing import get_args, get_type_hints

import ml_dtypes
import numpy as np
import pytest

from octavo.cli.options import Where
from octavo.errors import UsageError
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.formats.rotation import rotate, rotate_back
from octavo.graph.builder import CacheType
from octavo.runtime.engine.engine_limits import require_heads
from octavo.server.serve_options import EngineOptions

X = np.random.default_rng(0).standard_normal((5, 3, 64)).astype(np.float32)


def test_one_table() -> None:
    names = set(CACHE_FORMATS)
    assert set(get_args(CacheType)) == names
    assert set(get_args(get_type_hints(Where)["kv"])) == names
    assert set(get_args(get_type_hints(EngineOptions)["cache_type"])) == names


@pytest.mark.parametrize(
    ("name", "dynamic", "static"),
    [("f32", 512, 512), ("f16", 256, 256), ("q8_0", 136, 136), ("int8", 132, 128), ("fp8", 132, 128), ("int4", 72, 72)],
)
def test_bytes_of_a_head_of_128(name: str, dynamic: int, static: int) -> None:
    assert CACHE_FORMATS[name].row_bytes(128) == dynamic
    assert CACHE_FORMATS[name].row_bytes(128, static=True) == static


def test_dynamic_int8() -> None:
    step = np.abs(X).max(axis=-1, keepdims=True) / 127
    found = CACHE_FORMATS["int8"].rounded(X)
    assert (np.abs(found - X) <= 0.501 * step).all()
    np.testing.assert_allclose(found / step, np.rint(found / step), atol=1e-3)


def test_dynamic_fp8() -> None:
    scale = np.abs(X).max(axis=-1, keepdims=True) / np.float32(448)
    expected = (X / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    np.testing.assert_array_equal(CACHE_FORMATS["fp8"].rounded(X), expected)


@pytest.mark.parametrize(("name", "top"), [("int8", 127), ("fp8", 448)])
def test_static_scales_cut_off(name: str, top: float) -> None:
    scale = np.array([1, 0.5, 2], np.float32) / np.float32(top)
    found = CACHE_FORMATS[name].rounded(X, scale)
    most = scale[:, None] * top
    assert (np.abs(found) <= most * 1.0001).all()
    within = np.abs(X) < most
    assert (~within).any()
    assert np.abs(found - X)[within].max() < 0.13
    np.testing.assert_allclose(np.abs(found)[~within], np.broadcast_to(most, X.shape)[~within], rtol=1e-6)


@pytest.mark.parametrize("dim", [32, 96, 128])
def test_rotation(dim: int) -> None:
    """By a matrix: orthogonal, in blocks of a power of two, which spreads a channel and what all have in common."""
    block = {32: 32, 96: 32, 128: 128}[dim]
    turned = rotate(np.eye(dim, dtype=np.float32))  # row i: what channel i becomes
    np.testing.assert_allclose(turned @ turned.T, np.eye(dim), atol=1e-6)
    inside = np.kron(np.eye(dim // block), np.ones((block, block)))
    np.testing.assert_allclose(np.abs(turned), inside * block**-0.5, atol=1e-6)
    np.testing.assert_allclose(rotate_back(turned), np.eye(dim), atol=1e-6)
    assert np.abs(rotate(np.ones((1, dim), np.float32))).max() <= 2**0.5 + 1e-6


def test_int4() -> None:
    """In the rotated room each number is a whole one, from -8 to 7, of steps that 32 have in common."""
    found = rotate(CACHE_FORMATS["int4"].rounded(X)).reshape(-1, 32)
    groups = rotate(X).reshape(-1, 32)
    largest = np.abs(groups).max(axis=1, keepdims=True)
    step = largest / 8
    numbers = found / step
    np.testing.assert_allclose(numbers, np.rint(numbers), atol=0.02)
    assert (np.abs(found - groups) <= 1.01 * step).all()
    np.testing.assert_array_equal(np.sign(found)[np.abs(groups) == largest], np.sign(groups)[np.abs(groups) == largest])
    assert ((found - groups) ** 2).mean() < ((groups - groups.mean()) ** 2).mean() * 0.01


def test_zeros_stay() -> None:
    for kept in CACHE_FORMATS.values():
        assert not kept.rounded(np.zeros((2, 1, 32), np.float32)).any()


def test_heads_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="cache_type q8_0 needs heads of a multiple of 32 values; these have 48"):
        require_heads("q8_0", 48)
    with pytest.raises(UsageError, match="cache_type int4 needs heads of a multiple of 32 values; these have 48"):
        require_heads("int4", 48)
    require_heads("int8", 48)
