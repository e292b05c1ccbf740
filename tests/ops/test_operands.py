"""Operands as they may come: at odd addresses, of any strides, read-only, in another byte order, of none or one row.

A result is that of the same numbers in plain arrays, to the bit, or a typed error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from octavo import ops
from octavo.backends.cpu.matmul.w8a8 import gemm
from octavo.bench.gemm.stored_formats import STORED
from octavo.errors import OctavoError, UsageError
from octavo.formats import QTensor, by_name, dequantize, quantize_reference
from octavo.formats.rows import pack_int4
from octavo.ops import definition
from octavo.ops.op_products import MOST_K
from octavo.ops.w4a8 import W4A8Weight
from tests.sampling import slow, some

RNG = np.random.default_rng(11)
N, K = 35, 256

Array = np.ndarray[Any, Any]


def gaussian(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def at_odd_address(x: Array) -> Array:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    there = memory[1:].view(x.dtype).reshape(x.shape)
    there[...] = x
    return there


def backwards(x: Array) -> Array:
    turned = tuple(slice(None, None, -1) for _ in x.shape)
    return np.ascontiguousarray(x[turned])[turned]


def columns_first(x: Array) -> Array:
    return np.asfortranarray(x)


def every_other(x: Array) -> Array:
    wide = np.zeros([2 * size for size in x.shape], x.dtype)
    there = wide[tuple(slice(None, None, 2) for _ in x.shape)]
    there[...] = x
    return there


def read_only(x: Array) -> Array:
    copy = x.copy()
    copy.flags.writeable = False
    return copy


WAYS = (at_odd_address, backwards, columns_first, every_other, read_only)


def int8(m: int) -> tuple[Callable[..., Any], list[Any]]:
    a, scale_a, zero_a = ops.quantize_int8(gaussian(m, 130) + 0.3, "token", symmetric=False)
    b, scale_b = ops.quantize_int8(gaussian(N, 130), "channel")

    def product(a: Any, b: Any, scale_a: Any, scale_b: Any, zero_a: Any, bias: Any, residual: Any) -> Any:
        return ops.int8_gemm(a, b, scale_a, scale_b, zero_a=zero_a, bias=bias, residual=residual, activation="silu")

    return product, [a, b, scale_a, scale_b, zero_a, gaussian(N), gaussian(m, N).astype(np.float16)]


def w4a8(group: Any, m: int) -> tuple[Callable[..., Any], list[Any]]:
    a, scale_a = ops.quantize_int8(gaussian(m, K), "token")
    w = ops.quantize_w4a8(gaussian(N, K), group)

    def product(a: Any, packed: Any, scale_a: Any, channels: Any, groups: Any, bias: Any, residual: Any) -> Any:
        return ops.w4a8_gemm(a, W4A8Weight(packed, channels, groups), scale_a, bias=bias, residual=residual)

    bias, residual = gaussian(N).astype(definition.out_type("bf16")), gaussian(m, N)
    return product, [a, w.packed, scale_a, w.channel_scale, w.group_scale, bias, residual]


def fp8(by: tuple[Any, Any], m: int) -> tuple[Callable[..., Any], list[Any]]:
    (a, scale_a), (b, scale_b) = ops.quantize_fp8(gaussian(m, K), "e4m3", by[0]), ops.quantize_fp8(
        gaussian(200, K), "e4m3", by[1]
    )
    return ops.fp8_gemm, [a, b, scale_a, scale_b]


OPERATIONS: dict[str, Callable[[int], tuple[Callable[..., Any], list[Any]]]] = {
    "int8": int8,
    "w4a8": lambda m: w4a8(None, m),
    "w4a8-g128": lambda m: w4a8(128, m),
    "fp8": lambda m: fp8(("token", "channel"), m),
    "fp8-blocks": lambda m: fp8((128, "block"), m),
    "quantize int8": lambda m: (lambda x: ops.quantize_int8(x, "token", symmetric=False), [gaussian(m, K)]),
    "quantize fp8": lambda m: (lambda x: ops.quantize_fp8(x, "e5m2", "block"), [gaussian(m, 200)]),
    "quantize q8_1": lambda m: (ops.quantize_q8_1, [gaussian(m, K)]),
    "matmul": lambda m: (lambda x: ops.matmul(x, quantize_reference(gaussian(N, K) * 0 + 1, by_name("Q4_0"))),
                         [gaussian(m, K).astype(np.float16)]),
}


def same(found: Any, expected: Any) -> None:
    """Of one array or several, every bit."""
    if not isinstance(found, tuple):
        found, expected = (found,), (expected,)
    for f, e in zip(found, expected, strict=True):
        assert (f.dtype, f.shape) == (e.dtype, e.shape)
        assert f.tobytes() == e.tobytes()


@pytest.mark.parametrize("m", some([5, 0, 1, 21], 1))
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_every_way_to_lie_in_memory(way: Callable[[Array], Array], name: str, m: int) -> None:
    function, plain = OPERATIONS[name](m)
    same(function(*(None if x is None else way(x) for x in plain)), function(*plain))


@pytest.mark.parametrize("name", [slow(name) if name == "w4a8-g128" else name for name in OPERATIONS])
@pytest.mark.parametrize("m", some([9, 1], 1))
def test_tensors_of_any_strides(name: str, m: int) -> None:
    function, plain = OPERATIONS[name](m)
    tensors = [None if x is None else ops_tensor(columns_first(x)) for x in plain]
    found, expected = function(*tensors), function(*plain)
    if not isinstance(found, tuple):
        found, expected = (found,), (expected,)
    for f, e in zip(found, expected, strict=True):
        same(numpy_of(f), e)


def ops_tensor(x: Array) -> torch.Tensor:
    """A tensor with the array's strides."""
    from octavo.ops.place import to_torch

    plain = to_torch(np.ascontiguousarray(x.T)) if x.ndim == 2 else to_torch(x.copy())
    tensor: torch.Tensor = plain.t() if x.ndim == 2 else plain
    return tensor


def numpy_of(x: torch.Tensor) -> Array:
    from octavo.ops.place import to_numpy

    array: Array = to_numpy(x)
    return array


def test_one_row_that_all_share() -> None:
    """Strides of 0."""
    a, scale_a = ops.quantize_int8(gaussian(1, 64), "token")
    b, scale_b = ops.quantize_int8(gaussian(N, 64), "channel")
    residual = gaussian(1, N)
    for rows in (3, 17):
        wide = [np.broadcast_to(x, (rows, x.shape[1])) for x in (a, scale_a, residual)]
        y = ops.int8_gemm(wide[0], b, wide[1], scale_b, residual=wide[2])
        same(y, ops.int8_gemm(*(np.ascontiguousarray(x) for x in (wide[0], b, wide[1], scale_b)),
                              residual=np.ascontiguousarray(wide[2])))
        tensors = [torch.from_numpy(x).expand(rows, -1) for x in (a, scale_a, residual)]
        y = ops.int8_gemm(tensors[0], torch.from_numpy(b), tensors[1], torch.from_numpy(scale_b), residual=tensors[2])
        assert y.shape == (rows, N)
        assert bool((y == y[0]).all())


def result_or_error(function: Callable[..., Any], arguments: list[Any]) -> Any:
    try:
        return function(*arguments)
    except OctavoError as error:
        return error


@pytest.mark.parametrize("name", ["int8", "w4a8-g128", "fp8", "fp8-blocks"])
def test_another_byte_order_is_no_other_number(name: str) -> None:
    """Either the right result or a typed error, whichever operand it is."""
    function, plain = OPERATIONS[name](5)
    expected = function(*plain)
    swapped = [i for i, x in enumerate(plain) if x is not None and x.dtype.kind in "fi" and x.dtype.itemsize > 1]
    for i in swapped:
        given = [x.astype(x.dtype.newbyteorder()) if i == j else x for j, x in enumerate(plain)]
        found = result_or_error(function, given)
        if isinstance(found, OctavoError):
            assert given[i].dtype.str in str(found)
        else:
            same(found, expected)
    assert swapped


@pytest.mark.parametrize("m", [0, 1, 9])
def test_no_values_and_no_rows(m: int) -> None:
    fp8_type, half = definition.fp8_dtype("e4m3"), by_name("F16")
    one, bias = np.ones((), np.float32), gaussian(4)
    for k, n in ((0, 4), (64, 0), (0, 0)):
        a, b = np.zeros((m, k), fp8_type), np.zeros((n, k), fp8_type)
        assert ops.fp8_gemm(a, b, one, one, bias=bias[:n]).tolist() == [bias[:n].tolist()] * m
        weight = QTensor(half, (n, k), np.zeros((n, 2 * k), np.uint8))
        assert not ops.matmul(np.zeros((m, k), np.float32), weight).any()
        x = np.zeros((m, k), np.float32)
        for granularity in ("tensor", "token"):
            assert all(not np.any(part) for part in ops.quantize_int8(x, granularity))  # type: ignore[arg-type]
            assert ops.quantize_fp8(x, "e4m3", granularity)[0].shape == (m, k)  # type: ignore[arg-type]
        assert ops.quantize_q8_1(np.zeros((m, 0), np.float32))[0].shape == (m, 0)


def test_4_bit_sums_hold_at_their_limit() -> None:
    """At K = 131,072 groups whose weights are all -128 make a sum of 2^31."""
    k = MOST_K + 1
    assert k == 131_072
    codes = np.full((2, k), -8, np.int8)
    codes[1] = 7
    weight = W4A8Weight(pack_int4(codes), np.ones(2, np.float32), np.full((2, k // 128), 16, np.float16))
    for length in (k - 128, k):
        part = W4A8Weight(weight.packed[:, : length // 2], weight.channel_scale, weight.group_scale[:, : length // 128])
        for m in (1, 9):
            y = ops.w4a8_gemm(np.full((m, length), -128, np.int8), part, np.float32(1))
            assert y.tolist() == [[np.float32(length * 2**14), np.float32(-length * 128 * 112)]] * m


def test_products_of_several_threads_at_once() -> None:
    """A thread fills in the arguments of its own calls only."""
    rng = np.random.default_rng(0)
    cases = []
    for i in range(4):
        a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((5, 256), (48, 256)))
        cases.append((a, b, np.float32(i + 1)))
    expected = [definition.int8_gemm(a, b, s, s) for a, b, s in cases]
    wrong: list[int] = []

    def work(i: int) -> None:
        a, b, s = cases[i]
        right = [np.array_equal(ops.int8_gemm(a, b, s, s), expected[i]) for _ in range(50)]
        if not all(right):
            wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_plans_are_forgotten_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "PLANS_KEPT", 3)
    b = RNG.integers(-128, 128, (16, 64)).astype(np.int8)
    one = np.float32(1)
    for m in (1, 2, 3, 9, 1, 30, 2):
        a = RNG.integers(-128, 128, (m, 64)).astype(np.int8)
        same(ops.int8_gemm(a, b, one, one), definition.int8_gemm(a, b, one, one))
    assert len(gemm._kept.plans) <= 3


def test_kinds_of_tensors_that_there_is_no_array_of() -> None:
    sparse = torch.eye(64).to_sparse()
    with pytest.raises(UsageError, match=r"a tensor is torch.sparse_coo, not torch.strided"):
        ops.quantize_int8(sparse, "token")


@pytest.mark.few(2)
@pytest.mark.parametrize("name", some(STORED, 2))
@pytest.mark.parametrize("m", [1, 5])
def test_few_tokens_of_floats_are_multiplied_in_registers(name: str, m: int) -> None:
    """As exactly as float32, of numbers of any size, and without decoding the weight."""
    fmt = STORED[name]
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((m, 512)) * 10 ** rng.uniform(-20, 20, (m, 1))).astype(np.float32)
    x[:, :40] = 0
    x[0, 50:60] *= 1e4
    weight = quantize_reference(rng.standard_normal((37, 512)).astype(np.float32), fmt)
    exact = x.astype(np.float64) @ dequantize(weight).astype(np.float64).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.ops.weight_only.decode", None)
        y = ops.matmul(x, weight)
    of_row = np.linalg.norm(exact, axis=1, keepdims=True) / np.sqrt(37)
    assert (np.abs(y - exact) / of_row).max() < 3e-6
    np.testing.assert_array_equal(ops.matmul(x, weight), y)


def test_what_is_not_finite_stays_so_in_its_row() -> None:
    weight = quantize_reference(np.ones((5, 64), np.float32), by_name("Q8_0"))
    x = np.ones((3, 64), np.float32)
    x[1, 3], x[2, 4] = np.nan, np.inf
    y = ops.matmul(x, weight)
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()
    assert np.isinf(y[2]).all()
