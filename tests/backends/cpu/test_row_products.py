"""Products of weights of rows on the CPU, held to their definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.errors import GraphError
from octavo.formats import QTensor, channel_format, quantize_reference
from tests.backends import row_products as rows
from tests.sampling import some

EXACT = 1e-12  # integers, and float32 after them
ROUNDED = 1e-5  # a norm in another order may move a value over half a step


@pytest.fixture(scope="module")
def cpu() -> CpuBackend:
    return CpuBackend(threads=2, exact=True)


@pytest.mark.few(6)
@pytest.mark.parametrize("n_tokens", some([1, 2, 3, 5, 7, 8, 9, 16, 31, 33], 3))
@pytest.mark.parametrize("name", rows.NAMES)
def test_products(cpu, name, n_tokens):
    tensor, x = rows.matrix(name, 37, 256), rows.random(n_tokens, 256)
    ops, (y,) = rows.run(cpu, rows.one_product(tensor), {"x": x})
    assert ops == ["quantize", "mul_mat"]
    assert rows.nmse(y, rows.product(tensor, x)) < EXACT


@pytest.mark.parametrize("k", [2, 33, 100, 4224])
@pytest.mark.parametrize("n_tokens", [1, 6, 21])
@pytest.mark.parametrize("name", ["INT8", "FP8"])
def test_rows_of_any_length(cpu, name, k, n_tokens):
    tensor, x = rows.matrix(name, 19, k), rows.random(n_tokens, k)
    _, (y,) = rows.run(cpu, rows.one_product(tensor), {"x": x})
    assert rows.nmse(y, rows.product(tensor, x)) < EXACT


@pytest.mark.parametrize("name", ["INT4", "INT4_G128"])
def test_long_rows_of_nibbles(cpu, name):
    tensor, x = rows.matrix(name, 33, 4224), rows.random(21, 4224)
    _, (y,) = rows.run(cpu, rows.one_product(tensor), {"x": x})
    assert rows.nmse(y, rows.product(tensor, x)) < EXACT


@pytest.mark.parametrize("name", ["INT8", "INT4", "INT4_G128"])
def test_a_token_is_alike_alone_and_among_others(cpu, name):
    tensor, x = rows.matrix(name, 37, 4224), rows.random(19, 4224)
    _, (together,) = rows.run(cpu, rows.one_product(tensor), {"x": x})
    alone = [rows.run(cpu, rows.one_product(tensor), {"x": x[t : t + 1]})[1][0] for t in range(len(x))]
    assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("n_tokens", [1, 3, 17])
@pytest.mark.parametrize("name", ["INT8", "INT4", "INT4_G128"])
def test_a_bias_and_a_residual(cpu, name, n_tokens):
    tensor, x = rows.matrix(name, 37, 256), rows.random(n_tokens, 256)
    bias, residual = rows.random(37, seed=2), rows.random(n_tokens, 37, seed=3)
    ops, (y,) = rows.run(cpu, rows.with_terms(tensor, bias), {"x": x, "residual": residual})
    assert ops == ["quantize", "mul_mat_add"]
    assert rows.nmse(y, rows.product(tensor, x) + bias + residual) < EXACT


@pytest.mark.parametrize("n_tokens", [1, 3, 20])
@pytest.mark.parametrize("k", [256, 4224])
def test_products_of_a_norm(cpu, n_tokens, k):
    tensors = [rows.matrix("INT8", n, k, seed=n) for n in (37, 16, 5)]
    x, norm = rows.random(n_tokens, k), 1 + rows.random(k, seed=4) / 10
    ops, made = rows.run(cpu, rows.normed(tensors, norm), {"x": x})
    assert ops[:2] == ["rms_norm:int8_token", "mul_mat_concat"]
    for tensor, y in zip(tensors, made, strict=True):
        assert rows.nmse(y, rows.product(tensor, rows.norm_of(x, norm))) < ROUNDED


@pytest.mark.parametrize("n_tokens", [1, 20])
@pytest.mark.parametrize("name", rows.NAMES)
def test_products_of_swiglu(cpu, name, n_tokens):
    tensor, gate, up = rows.matrix(name, 37, 384), rows.random(n_tokens, 384), rows.random(n_tokens, 384, seed=5)
    ops, (y,) = rows.run(cpu, rows.gated(tensor), {"gate": gate, "up": up})
    assert ops == (["swiglu", "quantize", "mul_mat"] if name == "FP8" else [rows.quantized("swiglu", name), "mul_mat"])
    assert rows.nmse(y, rows.product(tensor, rows.swiglu_of(gate, up))) < ROUNDED


@pytest.mark.parametrize("name", rows.NAMES)
def test_a_token_of_zeros_and_one_with_nan(cpu, name):
    tensor, x = rows.matrix(name, 37, 256), rows.random(9, 256)
    x[3], x[5, 7] = 0, np.nan
    _, (y,) = rows.run(cpu, rows.one_product(tensor), {"x": x})
    assert not y[3].any()
    assert np.isnan(y[5]).all()
    assert np.isfinite(np.delete(y, 5, axis=0)).all()


@pytest.mark.parametrize("n_tokens", [1, 20])
@pytest.mark.parametrize("name", some(["INT8", "FP8", "INT4_G128"], 2))
def test_a_static_scale_is_that_of_all_tokens(cpu, name, n_tokens):
    """What is beyond the codes is cut off; of the second weight, which has another scale, elsewhere."""
    tensors = [rows.matrix(name, n, 256, seed=n) for n in (37, 16)]
    x, norm = rows.random(n_tokens, 256), 1 + rows.random(256, seed=4) / 10
    _, (y,) = rows.run(cpu, rows.one_product(tensors[0], 0.01), {"x": x})
    assert np.abs(x).max() > 0.01 * 127
    assert rows.nmse(y, rows.product(tensors[0], x, 0.01)) < EXACT
    ops, made = rows.run(cpu, rows.normed(tensors, norm, (0.01, 0.005)), {"x": x})
    assert ops.count("quantize") == 2
    for tensor, scale, found in zip(tensors, (0.01, 0.005), made, strict=True):
        assert rows.nmse(found, rows.product(tensor, rows.norm_of(x, norm), scale)) < ROUNDED


def test_products_of_a_norm_with_one_static_scale_are_one(cpu):
    tensors = [rows.matrix("INT8", n, 256, seed=n) for n in (37, 16)]
    x, norm = rows.random(3, 256), 1 + rows.random(256, seed=4) / 10
    ops, made = rows.run(cpu, rows.normed(tensors, norm, (0.01, 0.01)), {"x": x})
    assert ops[:2] == ["rms_norm:int8_static", "mul_mat_concat"]
    for tensor, y in zip(tensors, made, strict=True):
        assert rows.nmse(y, rows.product(tensor, rows.norm_of(x, norm), 0.01)) < ROUNDED


@pytest.mark.parametrize("name", ["INT8", "FP8"])
def test_a_static_scale_does_not_hide_what_is_no_number(cpu, name):
    tensor, x = rows.matrix(name, 37, 256), rows.random(4, 256)
    x[0, 3], x[2, 7] = np.inf, np.nan
    _, (y,) = rows.run(cpu, rows.one_product(tensor, 0.01), {"x": x})
    assert np.isnan(y[[0, 2]]).all()
    assert rows.nmse(y[[1, 3]], rows.product(tensor, x[[1, 3]], 0.01)) < EXACT


def test_largest_codes_of_the_longest_row_are_summed_exactly(cpu):
    k = (1 << 17) - 1
    tensor = quantize_reference(-np.ones((1, k), np.float32), channel_format("INT8", k))
    _, (y,) = rows.run(cpu, rows.one_product(tensor), {"x": np.ones((1, k), np.float32)})
    assert y[0, 0] == pytest.approx(-k, rel=1e-6)


def test_what_has_no_kernel_says_so(cpu):
    k = 1 << 17
    long = QTensor(channel_format("INT8", k), (1, k), np.zeros((1, k + 4), np.uint8), "w")
    with pytest.raises(GraphError, match=r"rows of 131072 values in int32 \(allowed: up to 131071\)"):
        rows.run(cpu, rows.one_product(long), {"x": np.zeros((1, k), np.float32)})
    assert cpu.supports(rows.rows_of_table()) == (False, "no kernel for get_rows of INT8")


@pytest.mark.parametrize("name", rows.NAMES)
def test_no_tokens_make_no_rows(cpu, name):
    _, (y,) = rows.run(cpu, rows.one_product(rows.matrix(name, 37, 256)), {"x": rows.random(0, 256)})
    assert y.shape == (0, 37)
