"""Products of one token with points of four values, whose programs take row after row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.matmul.matvec_persistent.codebook_launch import COPIES, PointsStreamShape, multiply, shape_of
from octavo.backends.gpu.weights.layout import layout_of
from octavo.formats import by_name
from octavo.formats.group import row_named
from tests.backends.gpu.one_token import check_product_of_one_token
from tests.sampling import slow


@pytest.mark.parametrize("name", ["IQ3_XXS", "IQ3_S"])
@pytest.mark.parametrize(
    ("n", "k", "shape"),
    [
        (70, 1024, (1, 2)),
        *map(slow, (
            (5, 4096, (1, 2)), (3, 2304, (1, 16)), (5, 14336, (4, 2)), (70_001, 2048, (1, 16)), (9, 256, (1,)),
        )),
    ],
)
def test_rows(name: str, n: int, k: int, shape: tuple[int, ...]) -> None:
    """Programs with no, some and all of their rows, more turns than a warp has lanes, and lanes without a tile."""
    streamed = PointsStreamShape(*shape)
    if target().arch.startswith("sm_"):
        streamed = replace(streamed, copies=COPIES)
    check_product_of_one_token(lambda c, *of_product: multiply(c, streamed, *of_product), name, n, k)


def test_which_rows_it_takes() -> None:
    """Many of up to 4096 values, and long ones, of points of four values; on NVIDIA's GPUs, whose shared memory need
    not be asked for."""
    sizes = [(n, kp) for n in (1024, 4096, 14336, 28672) for kp in (2048, 4096, 8192, 14336, 28672)]
    for name in ("IQ3_XXS", "IQ3_S"):
        grid: Any = layout_of(row_named(name), "f16").grid
        taken = {size: shape for size in sizes if (shape := shape_of(grid, *size, "sm_90"))}
        assert {size: (shape.warps, shape.rows) for size, shape in taken.items()} == {
            (28672, 4096): (1, 16), (4096, 14336): (4, 2), (14336, 14336): (4, 2), (28672, 14336): (4, 2),
        }
        assert all(4 * grid.count * shape.copies <= 32 << 10 for shape in taken.values())
        assert not any(shape_of(grid, *size, arch) for size in sizes for arch in ("gfx942", "interpreter"))
    other = layout_of(row_named("IQ2_XS"), "f16").grid
    assert not any(shape_of(grid, *size, "sm_90") for size in sizes for grid in (other, None))


def test_whose_negatives_differ_in_all_bits_but_the_lowest() -> None:
    for name in ("IQ3_XXS", "IQ3_S", "IQ2_XS"):
        grid = layout_of(row_named(name), "f16").grid
        assert grid is not None
        table = np.array(by_name(name).table, np.int8)
        assert grid.odd == (name == "IQ3_S")
        if grid.odd:
            np.testing.assert_array_equal(table ^ np.int8(-2), -table)
