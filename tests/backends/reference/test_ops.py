"""The reference backend's ops against independent float64 definitions, over odd numbers of tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from octavo.backends.reference import ReferenceBackend, ops
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.formats.activation import activation
from octavo.graph.factors import LowRank
from tests.backends import op_oracle

TOKENS = [1, 2, 3, 5, 31, 33]
NMSE = 1e-12  # float32 against float64; the tests of backends allow 1e-7


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Normalised mean squared error; infinite for another shape."""
    if got.shape != want.shape:
        return np.inf
    return float(((got - want) ** 2).sum() / (np.asarray(want, np.float64) ** 2).sum())


def uniform(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("tokens", TOKENS)
def test_get_rows(tokens: int) -> None:
    table = uniform(40, 7)
    rows = np.random.default_rng(tokens).integers(0, 40, tokens)
    np.testing.assert_array_equal(ops.get_rows(table, rows), np.stack([table[r] for r in rows.tolist()]))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("shape", [(32,), (3, 17)])
def test_rms_norm(tokens: int, shape: tuple[int, ...]) -> None:
    x, weight = 30 * uniform(tokens, *shape), uniform(shape[-1], seed=1)
    assert error(ops.rms_norm(x, weight, eps=1e-5), op_oracle.rms_norm(x, weight, 1e-5)) < NMSE
    tiny = x * np.float32(1e-4)
    assert error(ops.rms_norm(tiny, weight, eps=1e-5), op_oracle.rms_norm(tiny, weight, 1e-5)) < NMSE


@pytest.mark.parametrize("tokens", TOKENS)
def test_mul_mat(tokens: int) -> None:
    weight, x = uniform(19, 33), uniform(tokens, 33)
    assert error(ops.mul_mat(weight, x), op_oracle.mul_mat(weight, x)) < NMSE


@pytest.mark.parametrize("tokens", TOKENS)
def test_lora(tokens: int) -> None:
    """Number by number: of three adapters one is empty, and some tokens have none."""
    table = ReferenceBackend().adapters((3, 4, 13, 6, 5))
    pairs = [[(uniform(r, 13, seed=s), uniform(n, r, seed=s)) for n in (6, 5)] for s, r in ((1, 4), (2, 1))]
    for slot, of_slot in zip((0, 2), pairs, strict=True):
        table.put(slot, [LowRank(*(quantize_reference(f, by_name("F32"), "f") for f in pair)) for pair in of_slot])
    x, y, chosen = uniform(tokens, 13), uniform(tokens, 11), np.random.default_rng(tokens).integers(0, 4, tokens)
    rows, starts = np.argsort(chosen, kind="stable"), np.array([(chosen < s).sum() for s in range(4)])
    want = y.astype(np.float64)
    for t, slot in enumerate(chosen.tolist()):
        for (a, b), columns in zip(pairs[slot // 2] if slot in (0, 2) else (), (slice(6), slice(6, 11)), strict=False):
            want[t, columns] += b.astype(np.float64) @ (a.astype(np.float64) @ x[t].astype(np.float64))
    assert error(ops.lora(x, rows, starts, table, y), want) < NMSE
    assert error(ops.lora(x, rows, starts, table, y[:, 6:], part=1), want[:, 6:]) < NMSE


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("per_expert", [False, True], ids=["x2d", "x3d"])
@pytest.mark.parametrize(("experts", "used"), [(4, 1), (4, 4), (8, 3)])
def test_mul_mat_id(tokens: int, per_expert: bool, experts: int, used: int) -> None:
    rng = np.random.default_rng(tokens)
    ids = np.stack([rng.permutation(experts)[:used] for _ in range(tokens)]).astype(np.int32)
    weight = uniform(experts, 11, 13)
    x = uniform(tokens, used, 13) if per_expert else uniform(tokens, 13)
    assert error(ops.mul_mat_id(weight, x, ids), op_oracle.mul_mat_id(weight, x, ids)) < NMSE


ROPE = {"plain": (8, 16, 1.0), "partial": (3, 16, 1.0), "scaled": (8, 16, 1.25), "one pair": (1, 2, 1.0)}


def rope_case(name: str, tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    half, dim, scale = ROPE[name]
    freqs = (10000.0 ** (-np.arange(half) / half)).astype(np.float32)
    positions = np.random.default_rng(tokens).integers(0, 500, tokens).astype(np.int32)
    return uniform(tokens, 3, dim), positions, freqs, scale


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", ROPE)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(tokens: int, name: str, interleaved: bool) -> None:
    x, positions, freqs, scale = rope_case(name, tokens)
    before = x.copy()
    got = ops.rope(x, positions, freqs, scale=scale, interleaved=interleaved)
    # an angle of up to 500 radians has 500 * 2^-24 of rounding in float32
    assert error(got, op_oracle.rope(x, positions, freqs, scale, interleaved)) < 1e-9
    np.testing.assert_array_equal(got[..., 2 * len(freqs) :], x[..., 2 * len(freqs) :])
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("name", ["plain", "partial", "scaled"])
def test_rope_with_the_other_pairing_is_caught(name: str) -> None:
    """A wrong kernel does not pass: the comparison that holds rope fails by far with its pairs swapped."""
    x, positions, freqs, scale = rope_case(name, 5)
    swapped = ops.rope(x, positions, freqs, scale=scale, interleaved=True)
    assert error(swapped, op_oracle.rope(x, positions, freqs, scale, False)) > 1e-2
    shifted = ops.rope(x, positions + 1, freqs, scale=scale, interleaved=False)
    assert error(shifted, op_oracle.rope(x, positions, freqs, scale, False)) > 1e-3


def test_set_rows_writes_those_rows_only() -> None:
    for dtype in (np.float32, np.float16):
        cache, values = np.zeros((12, 2, 3), dtype), uniform(3, 2, 3)
        assert ops.set_rows(cache, values, np.array([7, 0, 11])) is cache
        want = np.zeros((12, 2, 3), dtype)
        for value, row in zip(values, (7, 0, 11), strict=True):
            want[row] = value.astype(dtype)
        np.testing.assert_array_equal(cache, want)


@pytest.mark.parametrize("tokens", TOKENS)
def test_elementwise(tokens: int) -> None:
    a, b, row = 8 * uniform(tokens, 9), uniform(tokens, 9, seed=1), uniform(9, seed=2)
    assert error(ops.swiglu(a, b), op_oracle.swiglu(a, b)) < NMSE
    assert error(ops.geglu(a, b), op_oracle.geglu(a, b)) < NMSE
    assert error(ops.gelu_erf(a), torch.nn.functional.gelu(op_oracle.t64(a)).numpy()) < NMSE
    assert error(ops.gelu(a), op_oracle.geglu(a, np.ones_like(a))) < NMSE
    assert error(ops.soft_cap(a, cap=5.0), op_oracle.soft_cap(a, 5.0)) < NMSE
    assert error(ops.sigmoid(a), op_oracle.t64(a).sigmoid().numpy()) < NMSE
    for other in (b, row):
        assert error(ops.add(a, other), (op_oracle.t64(a) + op_oracle.t64(other)).numpy()) < NMSE
        assert error(ops.mul(a, other), (op_oracle.t64(a) * op_oracle.t64(other)).numpy()) < NMSE


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("best", [1, 2])
def test_keep_groups(tokens: int, best: int) -> None:
    x = uniform(tokens, 12)
    x[:, 4:8] = x[:, :4]  # of equal groups the first
    got = ops.keep_groups(x, groups=3, used=2, best=best)
    for row, kept in zip(x.tolist(), got.tolist(), strict=True):
        sums = [sum(sorted(row[4 * i : 4 * i + 4])[-best:]) for i in range(3)]
        chosen = sorted(range(3), key=lambda i: (-sums[i], i))[:2]
        assert kept == [value if i // 4 in chosen else -math.inf for i, value in enumerate(row)]


@pytest.mark.parametrize("tokens", TOKENS)
def test_sparse_shares(tokens: int) -> None:
    """As transformers computes the shares of Phi-3.5-MoE, whose two experts may both have nearly all."""
    x = uniform(tokens, 12)
    x[0] -= 3  # none is over 0
    want, places = sparsemixer(torch.from_numpy(x), jitter_eps=0.15, training=False)
    ids = ops.top_k(x, k=2)
    np.testing.assert_array_equal(ids, places.numpy())
    np.testing.assert_allclose(ops.sparse_shares(x, ids, tolerance=0.3), want.numpy(), rtol=1e-6)
    assert tokens < 5 or ((want > 0.1) & (want < 1)).any()


def test_parts_of_heads_and_numbers() -> None:
    x = uniform(3, 2, 9)
    parts = ops.slice_heads(x, start=0, size=4), ops.slice_heads(x, start=4, size=5)
    assert [part.shape[2] for part in parts] == [4, 5]
    np.testing.assert_array_equal(ops.join_heads(*parts), x)
    assert ops.numbers(np.zeros(2, np.int32), count=3).tolist() == [[0, 1, 2]] * 2


def test_floor_divide() -> None:
    assert ops.floor_divide(np.array([[0, 5, 6], [7, 2, 1]], np.int32), by=3).tolist() == [[0, 1, 2], [2, 0, 0]]


@pytest.mark.parametrize("tokens", TOKENS)
def test_clamped_swiglu(tokens: int) -> None:
    gate, up = 8 * uniform(tokens, 9), 8 * uniform(tokens, 9, seed=1)
    g, u = op_oracle.t64(gate).clamp(max=3.0), op_oracle.t64(up).clamp(-3.0, 3.0)
    got = ops.clamped_swiglu(gate, up, slope=1.702, limit=3.0)
    assert error(got, (g * torch.sigmoid(1.702 * g) * (u + 1)).numpy()) < NMSE


@pytest.mark.parametrize("tokens", TOKENS)
def test_add_rows(tokens: int) -> None:
    x, rows = uniform(tokens, 2, 5), uniform(4, 5, seed=1)
    ids = np.random.default_rng(tokens).integers(0, 4, (tokens, 2)).astype(np.int32)
    want = [[x[t, j] + rows[ids[t, j]] for j in range(2)] for t in range(tokens)]
    np.testing.assert_array_equal(ops.add_rows(x, rows.reshape(-1), ids), np.array(want))


@pytest.mark.parametrize("tokens", TOKENS)
def test_layer_norm(tokens: int) -> None:
    x, weight, bias = 5 + 30 * uniform(tokens, 17), uniform(17, seed=1), uniform(17, seed=2)
    for given in ((), (bias,)):
        want = torch.nn.functional.layer_norm(*map(op_oracle.t64, (x,)), (17,), *map(op_oracle.t64, (weight, *given)))
        assert error(ops.layer_norm(x, weight, *given, eps=1e-5), want.numpy()) < NMSE


@pytest.mark.parametrize("tokens", TOKENS)
def test_scale_by_position(tokens: int) -> None:
    x, positions = uniform(tokens, 3, 5), np.arange(tokens, dtype=np.int32) * 7
    scales = [1 + 0.3 * math.log(1 + (p + 1) // 8) for p in positions.tolist()]
    got = ops.scale_by_position(x, positions[:, None, None], length=8, factor=0.3, offset=1)
    assert error(got, x.astype(np.float64) * np.array(scales)[:, None, None]) < NMSE


@pytest.mark.parametrize("tokens", TOKENS)
def test_rare_activations(tokens: int) -> None:
    x = 3 * uniform(tokens, 17)
    wide = op_oracle.t64(x)
    assert error(ops.clamp(x, low=-1.5, high=0.5), wide.clamp(-1.5, 0.5).numpy()) < NMSE
    assert error(ops.clamp(x, low=0.0, high=math.inf), torch.relu(wide).numpy()) < NMSE
    assert error(ops.relu_squared(x), torch.relu(wide).square().numpy()) < NMSE
    below = 0.7 * (torch.expm1(wide.clamp(max=-1e-3)) - wide)
    want = torch.where(wide > 0, 0.8 * wide**2, below) + 0.5 * wide
    assert error(ops.xielu(x, positive=0.8, negative=0.7, beta=0.5, least=-1e-3), want.numpy()) < NMSE


@pytest.mark.parametrize("tokens", TOKENS)
def test_keep_largest(tokens: int) -> None:
    x = 5 + 3 * uniform(tokens, 17)
    wide = op_oracle.t64(x)
    cut = wide.mean(-1, keepdim=True) + 0.7 * wide.std(-1, unbiased=False, keepdim=True)
    assert error(ops.keep_largest(x, spread=0.7), torch.relu(wide - cut).numpy()) < NMSE


@pytest.mark.parametrize("tokens", TOKENS)
def test_streams(tokens: int) -> None:
    """AltUp's two steps, written as in the paper, and what goes around them."""
    x, row, coefs = uniform(tokens, 3, 7), uniform(tokens, 7, seed=1), uniform(tokens, 9, seed=2)
    wide, one, matrix = (op_oracle.t64(value) for value in (x, row, coefs))
    want = wide + torch.einsum("tsr,trd->tsd", matrix.reshape(tokens, 3, 3), wide)
    assert error(ops.add(x, ops.weighted_sum(x, coefs.reshape(tokens, 3, 3))), want.numpy()) < NMSE
    want = wide + torch.einsum("ts,td->tsd", matrix[:, :3] + 1, one - wide[:, 0])
    assert error(ops.correct_streams(x, coefs[:, :3, None], row[:, None], x[:, :1]), want.numpy()) < NMSE
    want = wide + torch.tensor([0.0, 1.0, 1.0])[:, None] * one[:, None]
    others = np.broadcast_to(np.array([0, 1, 1], np.float32)[:, None], (tokens, 3, 1))
    assert error(ops.add_to_streams(x, others, row[:, None]), want.numpy()) < NMSE
    small = np.concatenate([x[:, :1] * np.float32(1e-4), x[:, 1:]], axis=1)
    sizes = torch.linalg.vector_norm(op_oracle.t64(small), dim=-1, keepdim=True).clamp(min=(7 * 1e-3) ** 0.5)
    want = op_oracle.t64(small) / sizes * torch.linalg.vector_norm(one, dim=-1)[:, None, None]
    assert error(ops.as_large_as(small, row, least=1e-3), want.numpy()) < NMSE


@pytest.mark.parametrize("tokens", TOKENS)
def test_soft_max_of_large_values(tokens: int) -> None:
    x = 100 * uniform(tokens, 11)
    x[:, 3] = -np.inf
    got = ops.soft_max(x)
    assert error(got, op_oracle.soft_max(x)) < 1e-11
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("k", [1, 2, 8])
def test_top_k_takes_the_lower_of_equals(tokens: int, k: int) -> None:
    x = np.random.default_rng(tokens).integers(0, 3, (tokens, 8)).astype(np.float32)
    got = ops.top_k(x, k=k)
    np.testing.assert_array_equal(got, op_oracle.top_k(x, k))
    picked = ops.gather(x, got)
    np.testing.assert_array_equal(picked, np.array([[x[t, i] for i in got[t]] for t in range(tokens)]))


def test_columns_in_an_order() -> None:
    got = ops.take_columns(np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([2, 0, 1], np.float32))
    np.testing.assert_array_equal(got, [[3, 1, 2], [6, 4, 5]])
    orders, ids = np.array([2, 0, 1, 0, 2, 1], np.float32), np.array([[1, 0], [0, 0]], np.int32)
    got = ops.take_columns_id(np.array([[1, 2, 3], [4, 5, 6]], np.float32), orders, ids)
    np.testing.assert_array_equal(got, [[[1, 3, 2], [3, 1, 2]], [[6, 4, 5], [6, 4, 5]]])


@pytest.mark.parametrize("tokens", TOKENS)
def test_shares_of_experts(tokens: int) -> None:
    x, weights = uniform(tokens, 3, 10), np.abs(uniform(tokens, 3)) + np.float32(0.1)
    shares = op_oracle.t64(weights) / op_oracle.t64(weights).sum(-1, keepdim=True)
    assert error(ops.normalize(weights), shares.numpy()) < NMSE
    want = np.zeros((tokens, 10))
    for t in range(tokens):
        for j in range(3):
            want[t] += x[t, j].astype(np.float64) * float(weights[t, j])
    assert error(ops.weighted_sum(x, weights), want) < NMSE


def test_views_share_memory() -> None:
    x = uniform(5, 12)
    views = {"reshape": ops.reshape(x, shape=("tokens", 3, 4)), "columns": ops.columns(x, start=2, size=7),
             "after": ops.after(x, x)}
    assert views["reshape"].shape == (5, 3, 4)
    np.testing.assert_array_equal(views["columns"], x[:, 2:9])
    assert all(np.shares_memory(x, v) for v in views.values())


@pytest.mark.parametrize("format_name", ["q8_1"])
def test_quantize_is_what_the_activation_format_keeps(format_name: str) -> None:
    x = uniform(3, 64)
    quantizer = activation(format_name).quantize
    assert quantizer is not None
    got = ops.quantize(x, format=format_name)
    np.testing.assert_array_equal(got, quantizer(x).dequantize())
    assert 0 < np.abs(got - x).max() <= 0.51 / 127


@pytest.mark.parametrize("tokens", TOKENS)
def test_fused_ops_are_their_compositions(tokens: int) -> None:
    x, up, row, residual = uniform(tokens, 32), uniform(24, 32, seed=1), uniform(24), uniform(tokens, 24)
    gate = uniform(24, 32)
    want = {
        "mul_mat_concat": np.concatenate([x @ gate.T, x @ up[:5].T], axis=1),
        "mul_mat_add": x @ gate.T + row + residual,
    }
    got = {
        "mul_mat_concat": ops.mul_mat_concat(x, gate, up[:5]),
        "mul_mat_add": ops.mul_mat_add(gate, x, row, residual),
    }
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_set_rows_is_its_composition(tokens: int, normed: bool, interleaved: bool) -> None:
    q, k, v = uniform(tokens, 4, 8), uniform(tokens, 2, 8), uniform(tokens, 2, 8, seed=1)
    positions, rows = np.arange(3, 3 + tokens), np.random.default_rng(0).permutation(50)[:tokens]
    freqs, norms, turn = uniform(3), (uniform(8), uniform(8, seed=1)), {"scale": 1.5, "interleaved": interleaved}
    caches = [np.zeros((50, 2, 8), np.float16) for _ in range(4)]
    got = ops.rope_set_rows(
        q, k, v, caches[0], caches[1], positions, rows, freqs, *(norms if normed else ()), **turn, eps=1e-6
    )
    if normed:
        q, k = ops.rms_norm(q, norms[0], eps=1e-6), ops.rms_norm(k, norms[1], eps=1e-6)
    np.testing.assert_array_equal(got, ops.rope(q, positions, freqs, **turn))
    ops.set_rows(caches[2], ops.rope(k, positions, freqs, **turn), rows)
    ops.set_rows(caches[3], v, rows)
    np.testing.assert_array_equal(caches[0], caches[2])
    np.testing.assert_array_equal(caches[1], caches[3])


@pytest.mark.parametrize("format_name", ["F16", "Q8_0", "Q4_K"])
def test_weights_that_stay_packed_give_the_same(format_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.backends.reference.backend.KEPT_BYTES", 0)
    matrix = quantize_reference(uniform(40, 256), by_name(format_name))
    experts = quantize_reference(uniform(4, 10, 256), by_name(format_name))
    x, ids = uniform(5, 256), np.array([[0, 3], [1, 2], [3, 0], [2, 2], [1, 0]])
    for load, kept in ((ReferenceBackend().load, False), (dequantize, True)):
        m, e = load(matrix), load(experts)
        assert isinstance(m, np.ndarray) == kept
        got = ops.get_rows(m, np.array([7, 0, 7])), ops.mul_mat(m, x), ops.mul_mat_id(e, x, ids)
        if not kept:
            packed = got
    for a, b in zip(packed, got, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("k", [1, 5])
def test_top_candidates(tokens: int, k: int) -> None:
    x = np.random.default_rng(tokens).integers(0, 3, (tokens, 8)).astype(np.float32)
    x[0, :2] = np.nan, np.inf
    x[-1, 3] = -np.inf
    got = ops.top_candidates(x, k=k)
    assert got.shape == (tokens, 1 + 2 * k)
    np.testing.assert_array_equal(got[:, 0], [sum(not math.isfinite(v) for v in row) for row in x.tolist()])
    finite = np.isfinite(x).all(1)
    np.testing.assert_array_equal(got[finite, 1 : 1 + k], op_oracle.top_k(x, k)[finite].reshape(-1, k))
    for t in np.flatnonzero(finite):
        assert got[t, 1 + k :].view(np.float32).tolist() == [x[t, i] for i in got[t, 1 : 1 + k]]
