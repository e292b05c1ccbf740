"""Ops with states: what they mean, and that steps may divide sequences in any way. Those of GPUs are in `gpu/`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.formats.spec import F32
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from tests.backends.state_ops import (
    CHANNELS,
    FILTERS,
    GRAPHS,
    HEADS,
    KEY_HEADS,
    KEYS,
    MIXED,
    SCANNED,
    SIZE,
    SSM_A,
    TAPS,
    VECTORS,
    WITH_KERNELS,
    Steps,
    divided,
    whole,
)


def test_convolutions_are_those_of_torch() -> None:
    steps = Steps("causal_conv", ReferenceBackend())
    rng, channels = np.random.default_rng(1), steps.values["x"].shape[2]
    taps, bias = rng.uniform(-1, 1, (TAPS, channels)), torch.from_numpy(rng.uniform(-1, 1, channels))
    for x, found in zip(steps.values["x"], whole("causal_conv", ReferenceBackend()), strict=True):
        padded = torch.nn.functional.pad(torch.from_numpy(x.T.astype(float))[None], (TAPS - 1, 0))
        y = torch.nn.functional.conv1d(padded, torch.from_numpy(taps.T[:, None].copy()), bias, groups=len(x.T))[0].T
        np.testing.assert_allclose(found, torch.nn.functional.silu(y).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("op", "rows_apart"), [("gated_delta_rule", 1), ("gated_delta_rule_by_row", KEYS)])
def test_the_delta_rule_number_by_number(op: str, rows_apart: int) -> None:
    """As one matrix for all that a token does to a state: S = (I - weight k k^T) decay S + weight k v^T.

    decay is a diagonal matrix, of one number or of one for each row.
    """
    steps = Steps(op, ReferenceBackend())
    found = whole(op, ReferenceBackend())
    ssm_a, dt_bias = np.linspace(-4, -0.1, HEADS), np.linspace(-1, 1, HEADS * rows_apart)
    for sequence, rows in enumerate(found):
        q, k, v, alpha, beta = (steps.values[n][sequence].astype(float) for n in ("q", "k", "v", "alpha", "beta"))
        for head in range(HEADS):
            state = np.zeros((k.shape[2], v.shape[2]))
            of_keys = head * KEY_HEADS // HEADS
            for t in range(len(q)):
                at = slice(head * rows_apart, (head + 1) * rows_apart)
                decay = np.exp(ssm_a[head] * np.log(1 + np.exp(alpha[t, at] + dt_bias[at])))[:, None]
                weight = 1 / (1 + math.exp(-beta[t, head]))
                key = k[t, of_keys]
                forget = np.eye(len(key)) - weight * np.outer(key, key)
                state = forget @ (decay * state) + weight * np.outer(key, v[t, head])
                got = rows[t].reshape(HEADS, -1)[head]
                np.testing.assert_allclose(got, q[t, of_keys] @ state, rtol=1e-4, atol=1e-5)


def test_the_selective_scan_as_one_matrix() -> None:
    """As what each token is to each other one: y_i = sum of exp(rate * steps of j + 1 to i) (c_i . b_j) step_j x_j."""
    steps, found = Steps("selective_scan", ReferenceBackend()), whole("selective_scan", ReferenceBackend())
    ssm_a, dt_bias, ssm_d = (np.linspace(*ends, HEADS) for ends in SCANNED.values())
    for sequence, rows in enumerate(found):
        x, b, c, dt = (steps.values[n][sequence].astype(float) for n in ("x", "b", "c", "dt"))
        step = np.log(1 + np.exp(dt + dt_bias))  # [T, H]
        for head in range(HEADS):
            group, sums = head * KEY_HEADS // HEADS, np.cumsum(ssm_a[head] * step[:, head])
            decay = np.tril(np.exp(sums[:, None] - sums))
            scores, values = decay * (c[:, group] @ b[:, group].T), x[:, head]
            want = scores @ (step[:, head, None] * values) + ssm_d[head] * values
            np.testing.assert_allclose(rows.reshape(len(x), HEADS, -1)[:, head], want, rtol=1e-4, atol=1e-5)


def test_the_channel_scan_as_one_matrix() -> None:
    """As what each token is to each other one, of each channel: decays of each of its numbers, times c_i b_j."""
    steps, found = Steps("channel_scan", ReferenceBackend()), whole("channel_scan", ReferenceBackend())
    ssm_d = np.linspace(*SCANNED["ssm_d"], CHANNELS)
    for sequence, rows in enumerate(found):
        x, b, c, dt = (steps.values[n][sequence].astype(float) for n in ("x", "b", "c", "dt"))
        step = np.log(1 + np.exp(dt))  # [T, C]
        for channel in range(0, CHANNELS, 7):
            sums = np.cumsum(step[:, channel])[:, None] * SSM_A[:, channel].astype(float)  # [T, N]
            decay = np.exp(np.minimum(sums[:, None] - sums, 0))  # [T, T, N]
            scores = np.tril(np.einsum("in,ijn,jn->ij", c, decay, b))
            want = scores @ (step[:, channel] * x[:, channel]) + ssm_d[channel] * x[:, channel]
            np.testing.assert_allclose(rows[:, channel], want, rtol=1e-4, atol=1e-5)


def test_filters_of_two_tokens() -> None:
    """As RWKV's shift of tokens: each filter of a channel is a sum of a token's value and of the one before."""
    steps, taps = Steps("token_shift", ReferenceBackend()), FILTERS.reshape(2, 2, CHANNELS)
    for x, found in zip(steps.values["x"], whole("token_shift", ReferenceBackend()), strict=True):
        before = np.concatenate([np.zeros((1, CHANNELS)), x[:-1]])
        want = np.concatenate([before * taps[0, i] + x * taps[1, i] for i in range(2)], axis=1)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_time_mixing_of_rwkv7_as_its_paper_has_it() -> None:
    """With a matrix of values times keys, S = S (diag(decay) - u^T (rate * u)) + v^T k, a head by itself."""
    steps, found = Steps("wkv7", ReferenceBackend()), whole("wkv7", ReferenceBackend())
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    for sequence, rows in enumerate(found):
        given = [steps.values[n][sequence].astype(float).reshape(-1, HEADS, SIZE) for n in MIXED]
        for head in range(HEADS):
            w0, a0, k_k, k_a, r_k, weight, bias, v0 = VECTORS.astype(float).reshape(8, HEADS, SIZE)[:, head]
            state = np.zeros((SIZE, SIZE))
            for t in range(len(rows)):
                r, w, k, v, a, first, gate = (x[t, head] for x in given)
                decay, rate = np.exp(-sigmoid(w + w0) / math.sqrt(math.e)), sigmoid(a + a0)
                share, unit = sigmoid(gate + v0), k * k_k
                v, unit = (1 - share) * v + share * first, unit / np.linalg.norm(unit)
                k = k + k * (rate - 1) * k_a
                state = state @ (np.diag(decay) - np.outer(unit, rate * unit)) + np.outer(v, k)
                y = state @ r
                want = (y - y.mean()) / np.sqrt(y.var() + 64e-5) * weight + bias + (r * k * r_k).sum() * v
                np.testing.assert_allclose(rows[t].reshape(HEADS, SIZE)[head], want, rtol=1e-4, atol=1e-4)


def test_time_mixing_of_rwkv6_as_its_paper_has_it() -> None:
    """As sums over all tokens before: y = sum of v_j (r . decays between * k_j), and of its own with u."""
    steps, found = Steps("wkv6", ReferenceBackend()), whole("wkv6", ReferenceBackend())
    for sequence, rows in enumerate(found):
        given = [steps.values[n][sequence].astype(float).reshape(-1, HEADS, SIZE) for n in MIXED[:4]]
        for head in range(HEADS):
            w0, u, weight, bias = VECTORS[:4].astype(float).reshape(4, HEADS, SIZE)[:, head]
            r, w, k, v = (x[:, head] for x in given)
            g = np.concatenate([np.zeros((1, SIZE)), np.cumsum(-np.exp(w + w0), axis=0)])  # before each token
            for t in range(len(rows)):
                shares = np.exp(g[t] - g[1 : t + 1]) * k[:t]  # [t, N] of the tokens before
                y = (shares @ r[t]) @ v[:t] + (r[t] * u * k[t]).sum() * v[t]
                want = (y - y.mean()) / np.sqrt(y.var() + 64e-5) * weight + bias
                np.testing.assert_allclose(rows[t].reshape(HEADS, SIZE)[head], want, rtol=1e-4, atol=1e-4)


def test_steps_of_any_size() -> None:
    """softplus of steps whose exponentials are 0 or more than a float holds, on the CPU as in double precision."""
    x = np.float32([-200, -100, -87.5, -30, -20, -1, -1e-4, 0, 1e-4, 0.5, 1, 20, 30, 90, 200, 1000])
    steps = Steps("channel_scan", CpuBackend(threads=1))
    steps.values["dt"][0, 0] = np.tile(x, CHANNELS // len(x))
    steps.values["b"][0, 0], steps.values["c"][0, 0], steps.values["x"][0, 0] = np.eye(KEYS)[0], np.eye(KEYS)[0], 1
    (found,) = steps.step((0, 1))
    ssm_d = np.linspace(*SCANNED["ssm_d"], CHANNELS, dtype=np.float32)
    want = np.logaddexp(steps.values["dt"][0, :1].astype(float), 0) + ssm_d
    np.testing.assert_allclose(found, want, rtol=3e-7)


@pytest.mark.few(2)
@pytest.mark.parametrize("op", GRAPHS)
def test_steps_divide_sequences_in_any_way(op: str) -> None:
    """On the CPU to the bit."""
    if op in WITH_KERNELS:
        for found, want in zip(divided(op, CpuBackend(threads=2)), whole(op, CpuBackend(threads=2)), strict=True):
            np.testing.assert_array_equal(found, want)
    close(divided(op, ReferenceBackend()), whole(op, ReferenceBackend()))


def test_the_cpu_says_which_sizes_it_has_no_kernel_for() -> None:
    g = GraphBuilder()
    conv = g.causal_conv(Node("input", (), ("tokens", 24), "f32", name="x"), np.zeros((TAPS, 24), np.float32), 0)
    assert CpuBackend().supports(conv) == (False, "24 channels (allowed: multiples of 16)")


def close(found: list[F32], want: list[F32]) -> None:
    for rows, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-6)
