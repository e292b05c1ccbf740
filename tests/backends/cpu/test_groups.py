"""Rows of groups on the CPU: what is packed is what the format says, products are those of the weights, and memory is
no more than a tenth above the file's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.cpu.weights.pack import smallest_layout
from octavo.formats import Planes, QTensor, dequantize, group_format
from octavo.formats import pack as planes_packed
from octavo.formats.activation import activation
from octavo.formats.float8 import float8_format
from octavo.formats.group import BITS, GROUPS
from octavo.formats.spec import BlockFormat
from octavo.graph.builder import weight
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply
from octavo.jit import host_cpu
from tests.backends.cpu.test_pack import rows_of
from tests.backends.row_products import nmse
from tests.formats.groups import random_tensor
from tests.sampling import slow

COMMON = [group_format(4, 128, "F16", "zero"), group_format(4, 16, "F16", "zero")]
RARE = [
    group_format(4, 128),
    group_format(8, 32, "F32", "zero"), group_format(3, 64, "BF16", "minimum"), group_format(2, 128, "F16", "zero"),
    group_format(5, 32, "BF16"), group_format(6, 64, "F32", "minimum"), group_format(8, 128, "BF16"),
    group_format(8, 64, "F16", "minimum"), group_format(4, 32, "BF16", "zero"),
    group_format(4, 16), group_format(3, 16), group_format(5, 16, "F32", "minimum"),
]
SOME = [*COMMON, *map(slow, RARE)]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [*COMMON, *RARE], ids=lambda f: f.name)
def test_packed_rows_are_those_of_the_format(fmt: BlockFormat) -> None:
    stored = random_tensor(fmt, 17, 384)
    ids = np.array([16, 0, 3, 3], np.int32)
    np.testing.assert_allclose(rows_of(stored, ids), dequantize(stored)[ids], rtol=1e-6, atol=2e-6)


TILES_OF_AVX512 = """
from octavo.backends.cpu.matmul import quantize_kernel as quantize
quantize.TILES = 16, 8
from tests.backends.cpu.test_groups import COMMON, test_products
test_products(COMMON[0], 19)
"""


@pytest.mark.slow
@pytest.mark.skipif(host_cpu.is_arm(), reason="under qemu-user there is no process to start")
def test_zero_points_are_taken_off_codes_in_tiles_of_many_tokens(tmp_path: Path) -> None:
    """Tiles that only CPUs with AVX-512 take, in a process with kernels of its own."""
    settings = {**os.environ, "OCTAVO_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", TILES_OF_AVX512], env=settings, check=True)


@pytest.mark.parametrize("tokens", [1, slow(19)])
@pytest.mark.parametrize("fmt", SOME, ids=lambda f: f.name)
def test_products(fmt: BlockFormat, tokens: int) -> None:
    stored, backend = random_tensor(fmt, 35, 384), CpuBackend(threads=2)
    x = np.random.default_rng(tokens).standard_normal((tokens, 384)).astype(np.float32) + 0.2
    given = Node("input", (), ("tokens", 384), "f32", name="x")
    codes = apply("quantize", given, format="q8_1")
    product = apply("mul_mat", weight(stored), codes)
    binder = backend.begin_plan(Graph.of(product))
    memory = backend.view(backend.allocate(backend.nbytes((tokens, 384), "q8_1")), 0, (tokens, 384), "q8_1")
    out = np.full((tokens, 35), np.nan, np.float32)
    binder.bind(codes, [x], memory)()
    binder.bind(product, [backend.load(stored), memory], out)()
    rounded = activation("q8_1").quantize
    assert rounded is not None
    assert nmse(out, rounded(x).dequantize().astype(np.float64) @ dequantize(stored).T.astype(np.float64)) < 1e-11


@pytest.mark.parametrize("below", ["offset", "zero", "minimum"])
def test_memory_is_hardly_more_than_the_file(below: str) -> None:
    for bits in BITS:
        for group in GROUPS:
            fmt = group_format(bits, group, "F16", below)  # type: ignore[arg-type]
            assert smallest_layout(fmt).tile_bytes(256) <= 1.1 * 16 * fmt.row_bytes(256), fmt.name


def fp8_blocks() -> QTensor:
    """Rows of e4m3 numbers, every one but NaN, with a scale for each 128."""
    fmt, rng = float8_format(128), np.random.default_rng(5)
    q = rng.integers(0, 127, (35, 384), dtype=np.uint8) | rng.integers(0, 2, (35, 384), dtype=np.uint8) << 7
    return QTensor(fmt, q.shape, planes_packed(Planes(q, d=rng.uniform(1e-3, 1e-2, (35, 3)).astype(np.float32)), fmt))


@pytest.mark.slow
def test_blocks_of_fp8() -> None:
    stored, backend, ids = fp8_blocks(), CpuBackend(threads=2), np.array([34, 0, 17], np.int32)
    np.testing.assert_allclose(rows_of(stored, ids), dequantize(stored)[ids], rtol=1e-6)
    x = np.random.default_rng(6).standard_normal((3, 384)).astype(np.float32)
    given, out = Node("input", (), ("tokens", 384), "f32", name="x"), np.full((3, 35), np.nan, np.float32)
    packed = backend.load(stored)
    assert packed.data.nbytes + packed.scale.nbytes <= 1.1 * stored.nbytes * 48 / 35
    node = apply("mul_mat", weight(stored), given)
    backend.begin_plan(Graph.of(node)).bind(node, [packed, x], out)()
    assert nmse(out, x.astype(np.float64) @ dequantize(stored).T.astype(np.float64)) < 1e-11
