"""Products of one token whose programs take row after row."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch

from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch import device_values
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.dispatch import persistent
from octavo.backends.gpu.matmul.launch import product
from octavo.backends.gpu.matmul.matvec_persistent import launch as matvec_persistent
from octavo.backends.gpu.matmul.matvec_persistent.kernel import matvec_persistent_kernel
from octavo.backends.gpu.matmul.matvec_persistent.launch import epilogue_shape, multiply
from octavo.backends.gpu.matmul.matvec_persistent.persistent_shape import PersistentShape, has_signed_halves
from octavo.backends.gpu.weights.layout import layout_of
from octavo.backends.gpu.weights.load import load
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name
from tests.backends.gpu.matmul.one_token import check_product_of_one_token
from tests.sampling import slow


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name",
    ["Q4_K", "Q8_0", "IQ2_XS", "NVFP4",
     *map(slow, ("Q4_0", "Q5_K", "Q6_K", "IQ4_XS", "Q3_K", "Q5_0", "IQ4_NL", "IQ3_S", "IQ3_XXS", "IQ1_S"))],
)
@pytest.mark.parametrize(
    ("n", "k", "shape"),
    [
        (35, 1024, (1,)),
        *map(slow, (
            (5, 2304, (2,)), (5, 4352, (4,)), (40, 14336, (4,)), (1, 1024, (1,)), (60, 4096, (1,)),
            (70_001, 2048, (1,)), (35, 1024, (1, 4, 1)), (70, 2304, (2, 2, 4)),
        )),
    ],
)
def test_rows(name: str, n: int, k: int, shape: tuple[int, ...]) -> None:
    """Programs with no, some and all of their rows, and lanes without a chunk."""
    streamed = PersistentShape(*cast(Any, shape))
    check_product_of_one_token(lambda c, *of: multiply(c, streamed, *of), name, n, k)


def test_what_takes_it() -> None:
    """One token, and two not; formats of two bits, exponents for scales or minima of one level not."""
    c, rng = Context(target()), np.random.default_rng(0)
    n, k = (8192, 4096) if c.target.arch.startswith("sm_") else (4, 1024)
    w: Any = load(random_matrix("w", by_name("Q4_K"), (n, k), rng), c.target.device)
    x = torch.zeros(1 << 16, dtype=torch.uint8, device=c.target.device)
    kernels = []
    for tokens in (1, 2):
        y = torch.empty(tokens, n, device=c.target.device)
        (call,) = product(c, w, device_values.Activation(x, tokens, k), y, ())
        kernels.append(getattr(call, "kernel", None) is matvec_persistent_kernel)
    assert kernels == [not c.target.arch.startswith("gfx"), False]
    for name in ("Q2_K", "Q4_1", "Q5_1", "MXFP4", "TQ1_0", "TQ2_0"):
        other: Any = load(random_matrix("w", by_name(name), (4, 1024), rng), "cpu")
        found = [persistent(other.layout, 28672, k, arch) for k in (2048, 4096) for arch in ("sm_90", "interpreter")]
        assert not any(found)


def test_rows_of_four_bits() -> None:
    """Where steps were faster on a card: of Q4_0 with 4096 values."""
    q4_0 = layout_of(by_name("Q4_0"), "f16")
    sizes = [(n, kp) for n in (1024, 4096, 6144, 28672, 128256) for kp in (2048, 4096, 14336)]
    assert [size for size in sizes if persistent(q4_0, *size, "sm_90")] == [(6144, 4096), (28672, 4096)]
    assert not persistent(layout_of(by_name("Q4_0"), "f32"), 6144, 4096, "sm_90")


def test_rows_of_several_planes_and_of_tables() -> None:
    """Where steps were faster: joined matrices, and long rows of 3 and 5 bits."""
    sizes = [(6144, 4096), (28672, 4096), (128256, 4096), (4096, 14336), (12288, 2048), (2048, 6144), (8192, 28672)]
    wide, long = {(28672, 4096): 1}, {(28672, 4096): 1, (4096, 14336): 8}
    for name, expected in (
        ("IQ4_NL", wide), ("IQ4_XS", wide), ("IQ3_S", wide), ("IQ2_XS", long), ("Q3_K", long), ("Q5_0", long),
        ("Q5_K", long),
    ):
        found = {size: persistent(layout_of(by_name(name), "f16"), *size, "sm_90") for size in sizes}
        assert {size: shape.warps for size, shape in found.items() if shape} == expected


@pytest.mark.parametrize(
    ("table", "taken"),
    [
        ((*range(8), *range(-8, 0)), True), ((*range(-127, -119), *range(8)), True),
        ((*range(-128, -120), *range(8)), False), (tuple(range(16)), False), ((1, -1) * 8, False),
    ],
)
def test_tables_whose_halves_have_signs(table: tuple[int, ...], taken: bool) -> None:
    """Magnitudes of each half are looked up apart, in seven bits."""
    assert has_signed_halves(table) == taken


def test_lanes_of_long_rows() -> None:
    w: Any = load(random_matrix("w", by_name("Q4_K"), (4, 256), np.random.default_rng(0)), "cpu")
    lengths = (4096, 6144, 8192, 14336)
    warps = {kp: shape.warps for kp in lengths if (shape := persistent(w.layout, 8192, kp, "sm_90"))}
    assert warps == {4096: 1, 6144: 2, 8192: 2, 14336: 4}
    assert persistent(w.layout, 8192, 28672, "sm_90") is None


def test_which_epilogues_are_fused() -> None:
    """Q8_0, with whole units for programs, unless these leave many multiprocessors without work."""
    rng = np.random.default_rng(0)
    loaded: list[Any] = [load(random_matrix("w", by_name(name), (4, 256), rng), "cpu") for name in ("Q8_0", "Q4_K")]
    eight, four = (w.layout for w in loaded)
    for kp in (2048, 4096, 6144, 14336):
        for ends in ("rms_norm", "swiglu"):
            shape = epilogue_shape(eight, 8192, kp, "sm_90", ends)
            assert shape is not None
            assert 16 * (1 + (ends == "swiglu")) % (shape.rows * shape.ahead) == 0
            assert epilogue_shape(four, 8192, kp, "sm_90", ends) is None
            assert epilogue_shape(eight, 8192, kp, "gfx942", ends) is None
    assert epilogue_shape(eight, 128256, 4096, "sm_90", "rms_norm") is None
    with patch.object(matvec_persistent, "multiprocessors", lambda: 132):
        assert epilogue_shape(eight, 4096, 14336, "sm_90", "rms_norm") is not None
        assert epilogue_shape(eight, 3072, 8192, "sm_90", "rms_norm") is None
