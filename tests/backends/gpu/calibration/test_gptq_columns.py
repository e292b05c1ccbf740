"""Error compensation on a device: against that of the CPU, and against a plain loop over columns in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu.calibration.clip_search import clip_search
from octavo.backends.gpu.calibration.gptq_columns import BLOCK, ColumnGrid, LevelTable, take_columns
from octavo.backends.gpu.device import torch_device
from octavo.calibrate import gptq
from octavo.calibrate.arrays import each_plane, on_host
from octavo.calibrate.hessian import factorize
from octavo.calibrate.methods.gptq.gptq_quantize import SHRINKS
from octavo.calibrate.methods.gptq.gptq_schemes import e4m3_row
from octavo.calibrate.methods.gptq.torch_sweep import Products
from octavo.calibrate.torch_rows import decoded, encoder_of
from octavo.errors import NonFiniteError, UsageError
from octavo.formats import BlockFormat, QTensor, channel_format, decode, quantize_reference, unpack
from octavo.formats.group import row_named
from tests.calibrate import naive
from tests.sampling import slow

Array = np.ndarray[Any, Any]
WHERE = torch_device.target().device
K = 256
ROWS = [
    "Q4_K", "GROUP4_128_F16", *map(slow, ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "NVFP4", "Q2_K",
    "Q3_K", "Q5_K", "Q6_K", "IQ4_XS", "GROUP4_64_Z_F16", "GROUP3_32_M_BF16", "GROUP8_128_F32", "GROUP2_32_Z_BF16",
    channel_format("INT4", K), channel_format("INT8", K), e4m3_row(channel_format("FP8", K))]),
]
"""Every kind of row that the CPU makes up for errors in."""


def weights(n: int = 20, k: int = K) -> Array:
    return np.random.default_rng(0).standard_normal((n, k)).astype(np.float32) / 16


def correlated(k: int = K) -> Array:
    """A Hessian of inputs of which a few directions are large."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4 * k, k)) @ (rng.standard_normal((k, k)) * np.exp(-np.arange(k) / 40)[:, None])
    x += 0.1 * rng.standard_normal(x.shape)
    return np.asarray(x.T @ x / len(x))


def placed(x: Array) -> torch.Tensor:
    return torch.from_numpy(x).to(WHERE)


def fmt_of(row: str | BlockFormat) -> BlockFormat:
    return row_named(row) if isinstance(row, str) else row


@pytest.mark.few(1)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: fmt_of(row).name)
def test_codes_are_those_of_the_cpu_but_for_ties(row: str | BlockFormat) -> None:
    fmt, w, h = fmt_of(row), weights(), correlated()
    once, found = gptq(w, h, fmt, rounds=0), gptq(placed(w), placed(h), fmt, rounds=0)
    same = 0.99 if fmt.bits < 8 else 0.95  # one that tips changes what follows in its row
    assert (found.planes.q == once.planes.q).mean() >= same
    assert found.before == pytest.approx(once.before, rel=2e-3)
    assert found.bound == pytest.approx(once.bound, rel=1e-3)
    assert found.after.sum() == pytest.approx(once.after.sum(), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("row", [ROWS[0], slow(ROWS[1]), *ROWS[2:]], ids=lambda row: fmt_of(row).name)
def test_scales_are_gone_through_again(row: str | BlockFormat) -> None:
    fmt, w, h = fmt_of(row), weights(), correlated()
    cpu, found = gptq(w, h, fmt), gptq(placed(w), placed(h), fmt)
    assert found.after.sum() == pytest.approx(cpu.after.sum(), rel=0.03)
    e = w - decode(unpack(QTensor(fmt, w.shape, found.packed)), fmt).astype(np.float64)
    assert found.after == pytest.approx(np.einsum("nk,kj,nj->n", e, h, e), rel=5e-3)
    assert (found.after <= found.before).all()


def test_a_plain_loop_over_columns_gives_the_same() -> None:
    """Levels of integers, of a table that ascends and of a mirrored one; a last block that is short."""
    k, n, size = BLOCK + 36, 21, 4
    rng = np.random.default_rng(3)
    w, step = rng.standard_normal((k, n)), rng.uniform(0.2, 0.4, (k // size, n))
    shift = rng.uniform(-0.1, 0.1, step.shape)
    m = np.tril(0.1 * rng.standard_normal((k, k)), -1) + np.eye(k)
    order = rng.permutation(k)
    for table, entries in (
        (None, np.arange(-4, 4)),
        ((-9, -5, -1, 2, 3, 7), None),
        ((0, 1, 3, 8, 0, -1, -3, -8), None),
    ):
        levels = np.array(sorted(set(table)) if entries is None else entries, np.float64)
        wanted = naive.gptq_columns(w, step, shift, m, order, levels)
        f32 = {name: placed(x.astype(np.float32)) for name, x in (("w", w), ("step", step), ("shift", shift), ("m", m))}
        got, made = torch.full((k, n), torch.nan, device=WHERE), torch.full((BLOCK, n), torch.nan, device=WHERE)
        choices = LevelTable.of(-4, 3, table, got.device)
        grid = ColumnGrid(
            got, f32["w"], f32["step"], 1 / f32["step"], f32["shift"], f32["w"][:, 0].contiguous(),
            placed(order.astype(np.int32)), choices.table, size,
        )
        base = f32["w"][placed(order)]
        for start in range(0, k, BLOCK):
            stop = min(start + BLOCK, k)
            m_here, off = f32["m"][start:stop, start:stop], made[: stop - start]
            take_columns(grid, choices, base[start:stop], m_here, off, start, again=False)
            base[stop:].addmm_(f32["m"][stop:, start:stop], made[: stop - start])
        assert (got.cpu().numpy() == wanted).mean() > 0.995


@pytest.mark.parametrize("name", ["GROUP4_128_F16", "GROUP4_64_Z_F16", "GROUP3_32_M_BF16", "GROUP8_32_F32"])
def test_plain_encoders_give_the_same_planes(name: str) -> None:
    fmt, w = row_named(name), weights(7)
    w[0, :32], w[1] = 0, -w[1].clip(0)
    encoder, want = encoder_of(fmt), unpack(quantize_reference(w, fmt))
    assert encoder is not None
    found = encoder(placed(w))
    for end, values in vars(each_plane(on_host, found)).items():
        np.testing.assert_array_equal(values, getattr(want, end))
    np.testing.assert_array_equal(decoded(each_plane(placed, want), fmt).cpu().numpy(), decode(want, fmt))


@pytest.mark.parametrize("name", ["GROUP4_128_F16", "GROUP4_64_Z_F16", "GROUP3_32_M_BF16"])
def test_groups_are_clipped_as_a_plain_search_says(name: str) -> None:
    fmt, w = row_named(name), weights(9)
    importance = np.random.default_rng(5).random(K).astype(np.float32)
    best, _ = naive.clip_search(w, importance, SHRINKS.tolist(), fmt)
    assert fmt.encode is not None
    groups, weighing = placed(w).view(len(w), -1, fmt.group), placed(importance).view(-1, fmt.group)
    found = clip_search(groups, weighing, SHRINKS.tolist(), fmt.encode.__name__, fmt.fields[0].kind, fmt.bits)
    assert len(np.unique(best)) > 3
    assert (found.cpu().numpy() == SHRINKS[best]).mean() > 0.97, "but for ties"


@pytest.mark.slow
def test_other_inputs_than_the_original_ones() -> None:
    rng, w, h = np.random.default_rng(8), weights(), correlated()
    cross = h + 0.05 * np.abs(h).max() * rng.standard_normal(h.shape) / K
    cpu = gptq(w, h, "Q4_K", cross=cross)
    found = gptq(placed(w), placed(h), "Q4_K", cross=placed(cross))
    assert found.before.sum() == pytest.approx(cpu.before.sum(), rel=0.01)
    assert found.after.sum() == pytest.approx(cpu.after.sum(), rel=0.05)


def test_factors_are_those_of_the_cpu() -> None:
    h = correlated()
    h[7] = h[:, 7] = 0
    for order in ("act", "natural"):
        cpu, found = factorize(h, order, 0.01), factorize(placed(h), order, 0.01)
        np.testing.assert_array_equal(found.order.cpu().numpy(), cpu.order)
        assert (found.damping, found.added) == pytest.approx((cpu.damping, cpu.added))
        for name in ("m", "weights", "hessian"):
            np.testing.assert_allclose(getattr(found, name).cpu().numpy(), getattr(cpu, name), rtol=1e-4, atol=1e-6)
    with pytest.raises(UsageError, match="positive semidefinite"):
        factorize(placed(h - 2 * np.eye(K) * h.max()), "act", 0.01)


@pytest.mark.parametrize("split", [False, True])
def test_products_of_numbers_in_two_parts(split: bool) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((300, 300), (300, 9)))
    products, total = Products(placed(a), BLOCK, split=split), torch.ones((300, 9), device=WHERE)
    for columns in (slice(0, 2 * BLOCK), slice(2 * BLOCK, 300)):
        products.add(total, slice(None), columns, products.factor(placed(b)[columns]))
    products.add(total[7:], slice(7, None), slice(BLOCK, 2 * BLOCK), products.factor(placed(b)[BLOCK : 2 * BLOCK]))
    want = 1 + a.astype(np.float64) @ b
    want[7:] += a[7:, BLOCK : 2 * BLOCK].astype(np.float64) @ b[BLOCK : 2 * BLOCK]
    np.testing.assert_allclose(total.cpu().numpy(), want, rtol=1e-4, atol=3e-5)


def test_what_does_not_fit_is_refused() -> None:
    w, h = placed(weights()), placed(np.eye(K))
    with pytest.raises(UsageError, match=r"hessian of shape \(4, 4\)"):
        gptq(w, h[:4, :4], "Q4_K")
    with pytest.raises(UsageError, match="cross of shape"):
        gptq(w, h, "Q4_K", cross=h[:4, :4])
    with pytest.raises(NonFiniteError, match="weight: inf at row 1, column 2"):
        gptq(torch.where(torch.arange(w.numel(), device=WHERE).view(w.shape) == K + 2, torch.inf, w), h, "Q4_K")
    with pytest.raises(UsageError, match="hessian is -1 at column 0"):
        gptq(w, -h, "Q4_K")
    assert len(gptq(w[:0], h, "Q4_K").packed) == 0
