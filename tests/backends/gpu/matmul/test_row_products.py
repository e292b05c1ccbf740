"""Products of weights of rows on the GPU, kernels interpreted, held to their definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.device import torch_device
from octavo.backends.gpu.matmul.w8a8 import row_scales
from octavo.formats import QTensor
from octavo.formats.spec import F32
from tests.backends import row_products as rows
from tests.backends.comparison import QUANTIZED

SHORT = 1e-12 if torch_device.target().arch == "interpreter" else 1e-6  # tensor cores may keep 14 bits of a sum of fp8
UNFOLDED = row_scales.MOST_TOKENS
"""Tokens up to which scales of groups multiply sums instead of codes, of rows that are not copied."""
ROUNDED = 1e-5  # a norm in another order may move a value over half a step


def exact(name: str) -> float:
    return SHORT if name == "FP8" else 1e-12


def product(tensor: QTensor, x: F32) -> Any:
    """`rows.product`, with scales of groups as they are used."""
    of_sums = tensor.format.folds and len(x) <= UNFOLDED
    return rows.unfolded(tensor, x) if of_sums else rows.product(tensor, x)


@pytest.fixture(scope="module")
def gpu() -> GpuBackend:
    return GpuBackend()


@pytest.mark.parametrize("n_tokens", [1, 2, 4, 5, 13, 33])
@pytest.mark.parametrize("name", rows.NAMES)
def test_products(gpu, name, n_tokens):
    tensor, x = rows.matrix(name, 37, 256), rows.random(n_tokens, 256)
    ops, (y,) = rows.run(gpu, rows.one_product(tensor), {"x": x})
    assert ops == ["quantize", "mul_mat"]
    assert rows.nmse(y, product(tensor, x)) < exact(name)


def test_sums_of_groups_are_near_the_definition():
    """As near as products of other formats with rounded activations are to theirs."""
    tensor, x = rows.matrix("INT4_G128", 37, 256), rows.random(4, 256)
    assert rows.nmse(rows.unfolded(tensor, x), rows.product(tensor, x)) < QUANTIZED / 5


@pytest.mark.few(4)
@pytest.mark.parametrize("n_tokens", [7, 21, 64, 90])
@pytest.mark.parametrize("name", ["INT8", "FP8"])
def test_tiles_that_programs_share(gpu, name, n_tokens):
    """A card's programs have a part of the steps each, the last with fewer rows and values than a tile."""
    tensor, x = rows.matrix(name, 300, 1168), rows.random(n_tokens, 1168)
    _, (y,) = rows.run(gpu, rows.one_product(tensor), {"x": x})
    assert rows.nmse(y, rows.product(tensor, x)) < exact(name)


@pytest.mark.parametrize("k", [33, 100])
@pytest.mark.parametrize("name", ["INT8", "FP8"])
def test_rows_of_any_length(gpu, name, k):
    tensor, x = rows.matrix(name, 19, k), rows.random(6, k)
    _, (y,) = rows.run(gpu, rows.one_product(tensor), {"x": x})
    assert rows.nmse(y, rows.product(tensor, x)) < exact(name)


@pytest.mark.parametrize("name", rows.NAMES)
def test_a_bias_and_a_residual(gpu, name):
    tensor, x = rows.matrix(name, 37, 256), rows.random(3, 256)
    bias, residual = rows.random(37, seed=2), rows.random(3, 37, seed=3)
    ops, (y,) = rows.run(gpu, rows.with_terms(tensor, bias), {"x": x, "residual": residual})
    assert ops == ["quantize", "mul_mat_add"]
    assert rows.nmse(y, product(tensor, x) + bias + residual) < exact(name)


@pytest.mark.parametrize("name", rows.NAMES)
def test_products_of_a_norm_are_one(gpu, name):
    """Weights of one layout are joined, and stay what they were."""
    tensors = [rows.matrix(name, n, 256, seed=n) for n in (37, 16, 5)]
    x, norm = rows.random(3, 256), 1 + rows.random(256, seed=4) / 10
    ops, made = rows.run(gpu, rows.normed(tensors, norm), {"x": x})
    assert ops[:2] == [rows.quantized("rms_norm", name), "mul_mat_concat"]
    for tensor, y in zip(tensors, made, strict=True):
        assert rows.nmse(y, product(tensor, rows.norm_of(x, norm))) < ROUNDED


@pytest.mark.parametrize(("name", "n_tokens"), [("INT8", 1), ("INT4_G128", 3), ("FP8", 2)])
def test_products_of_a_norm_with_biases_are_one(gpu, name, n_tokens):
    tensors = [rows.matrix(name, n, 256, seed=n) for n in (37, 16, 5)]
    biases = [rows.random(len(t.data), seed=9) for t in tensors]
    x, norm = rows.random(n_tokens, 256), 1 + rows.random(256, seed=4) / 10
    ops, made = rows.run(gpu, rows.biased(tensors, norm, biases), {"x": x})
    assert ops[:2] == [rows.quantized("rms_norm", name), "mul_mat_concat_add"]
    for tensor, bias, y in zip(tensors, biases, made, strict=True):
        assert rows.nmse(y, product(tensor, rows.norm_of(x, norm)) + bias) < ROUNDED


@pytest.mark.parametrize("name", rows.NAMES)
def test_products_of_swiglu(gpu, name):
    tensor, gate, up = rows.matrix(name, 37, 384), rows.random(3, 384), rows.random(3, 384, seed=5)
    ops, (y,) = rows.run(gpu, rows.gated(tensor), {"gate": gate, "up": up})
    assert ops == [rows.quantized("swiglu", name), "mul_mat"]
    assert rows.nmse(y, product(tensor, rows.swiglu_of(gate, up))) < ROUNDED


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("name", ["INT8", "FP8"])
def test_long_rows_are_divided(gpu, name, monkeypatch):
    """Several programs have a row of SwiGLU, with the same codes: one of zeros, one with NaN in one part only."""
    monkeypatch.setattr(row_scales, "DIVIDED_ROW", 256)
    monkeypatch.setattr(row_scales, "ROW_PART", 128)
    tensor, gate, up = rows.matrix(name, 37, 384), rows.random(4, 384), rows.random(4, 384, seed=5)
    gate[1], up[2, 200] = 0, np.nan
    _, (y,) = rows.run(gpu, rows.gated(tensor), {"gate": gate, "up": up})
    assert not y[1].any()
    assert np.isnan(y[2]).all()
    kept = [0, 3]
    assert rows.nmse(y[kept], rows.product(tensor, rows.swiglu_of(gate[kept], up[kept]))) < ROUNDED
    monkeypatch.undo()
    _, (whole,) = rows.run(gpu, rows.gated(tensor), {"gate": gate, "up": up})
    np.testing.assert_array_equal(y[kept], whole[kept])


@pytest.mark.parametrize("name", rows.NAMES)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_token_of_zeros_and_one_with_nan(gpu, name):
    tensor, x = rows.matrix(name, 37, 256), rows.random(4, 256)
    x[1], x[2, 7] = 0, np.nan
    _, (y,) = rows.run(gpu, rows.one_product(tensor), {"x": x})
    assert not y[1].any()
    assert np.isnan(y[2]).all()
    assert np.isfinite(y[[0, 3]]).all()


@pytest.mark.parametrize("n_tokens", [3])
@pytest.mark.parametrize("name", ["INT8", "FP8"])
def test_a_static_scale_is_that_of_all_tokens(gpu, name, n_tokens):
    """What is beyond the codes is cut off; of the second weight, which has another scale, elsewhere."""
    tensors = [rows.matrix(name, n, 256, seed=n) for n in (37, 16)]
    x, norm = rows.random(n_tokens, 256), 1 + rows.random(256, seed=4) / 10
    _, (y,) = rows.run(gpu, rows.one_product(tensors[0], 0.01), {"x": x})
    assert np.abs(x).max() > 0.01 * 127
    assert rows.nmse(y, rows.product(tensors[0], x, 0.01)) < exact(name)
    ops, made = rows.run(gpu, rows.normed(tensors, norm, (0.01, 0.005)), {"x": x})
    assert ops.count("quantize") == 2
    for tensor, scale, found in zip(tensors, (0.01, 0.005), made, strict=True):
        assert rows.nmse(found, rows.product(tensor, rows.norm_of(x, norm), scale)) < ROUNDED


def test_products_of_swiglu_with_a_static_scale(gpu):
    tensor, gate, up = rows.matrix("INT8", 37, 384), rows.random(3, 384), rows.random(3, 384, seed=5)
    ops, (y,) = rows.run(gpu, rows.gated(tensor, 0.02), {"gate": gate, "up": up})
    assert ops == ["swiglu:int8_static", "mul_mat"]
    assert rows.nmse(y, rows.product(tensor, rows.swiglu_of(gate, up), 0.02)) < ROUNDED


@pytest.mark.parametrize("name", ["INT8", "FP8"])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_static_scale_does_not_hide_what_is_no_number(gpu, name):
    tensor, x = rows.matrix(name, 37, 256), rows.random(4, 256)
    x[0, 3], x[2, 7] = np.inf, np.nan
    _, (y,) = rows.run(gpu, rows.one_product(tensor, 0.01), {"x": x})
    assert np.isnan(y[[0, 2]]).all()
    assert rows.nmse(y[[1, 3]], rows.product(tensor, x[[1, 3]], 0.01)) < exact(name)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_weight_that_is_nan_is_not_lost(gpu, caplog):
    tensor, x = rows.matrix("FP8", 37, 256), rows.random(2, 256)
    tensor.data[5, 4 + 17] = 0x7F
    _, (y,) = rows.run(gpu, rows.one_product(tensor), {"x": x})
    assert np.isnan(y[:, 5]).all()
    assert np.isfinite(np.delete(y, 5, axis=1)).all()
    assert "tensor w holds NaN or Inf" in caplog.text


def test_what_has_no_kernel_says_so(gpu):
    assert gpu.supports(rows.rows_of_table()) == (False, "no kernel for get_rows of INT8")


@pytest.mark.parametrize("name", rows.NAMES)
def test_no_tokens_make_no_rows(gpu, name, monkeypatch):
    """And no launches: the copy engine takes no tensors without rows."""
    made, launches = dict[str, int](), gpu.launches

    def counted(context, node, inputs, out):
        calls = launches(context, node, inputs, out)
        made[node.op] = len(calls)
        return calls

    monkeypatch.setattr(gpu, "launches", counted)
    _, (y,) = rows.run(gpu, rows.one_product(rows.matrix(name, 37, 256)), {"x": rows.random(0, 256)})
    assert y.shape == (0, 37)
    assert set(made.values()) == {0}
