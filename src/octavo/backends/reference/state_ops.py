"""The definition of ops that keep a state of each sequence, in float32 NumPy, see `graph.state_ops`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from octavo.formats.spec import F32, AnyArray


def sequences(each: AnyArray, starts: AnyArray) -> Iterator[tuple[int, int, int]]:
    """The number of each sequence that has tokens, and where these begin and end; `each` has a row for a sequence."""
    bounds = [*range(len(each) + 1 - len(starts)), *starts]
    return ((i, start, stop) for i, (start, stop) in enumerate(pairwise(bounds)) if start < stop)


def _before(state: F32, slot: int, position: int) -> F32:
    """The state that a step goes on with, whose first token of the sequence is at a position."""
    kept: F32 = state[slot]
    return kept if position else np.zeros_like(kept)


def _softplus(x: F32) -> F32:
    result: F32 = np.logaddexp(x, np.float32(0))
    return result


def _sigmoid(x: F32) -> F32:
    result: F32 = np.reciprocal(1 + np.exp(-x))
    return result


def causal_conv(x: F32, taps: F32, state: F32, *where: AnyArray, silu: bool = False) -> F32:
    positions, starts, slots, *bias = where
    kept, channels = state.shape[1:]
    weights = taps.reshape(kept + 1, -1, channels)
    sums = np.empty((len(x), *weights.shape[1:]), np.float32)
    for sequence, start, stop in sequences(slots, starts):
        slot = slots[sequence]
        before = _before(state, slot, positions[start])
        values = np.concatenate([before, x[start:stop]])  # [K - 1 + tokens, C]
        sums[start:stop] = sum(values[i : i + stop - start, None] * weights[i] for i in range(kept + 1))
        state[slot] = values[-kept:]
    out: F32 = sums.reshape(len(x), -1)
    out = out + bias[0] if bias else out
    return out / (1 + np.exp(-out)) if silu else out


def gated_delta_rule(
    q: F32, k: F32, v: F32, alpha: F32, beta: F32, ssm_a: F32, dt_bias: F32, state: F32, *where: AnyArray, tiled: bool
) -> F32:
    positions, starts, slots = where
    tokens, heads, size = v.shape
    step = _softplus(alpha + dt_bias).reshape(tokens, heads, -1)  # of a head, or of each of its rows
    decay = np.exp(ssm_a[:, None] * step)[..., None]  # [T, H, 1 or K, 1]
    weight, out = np.reciprocal(1 + np.exp(-beta)), np.empty((tokens, heads, size), np.float32)
    at = np.arange(heads)
    at = at % k.shape[1] if tiled else at // (heads // k.shape[1])
    for sequence, start, stop in sequences(slots, starts):
        matrix = _before(state, slots[sequence], positions[start])  # [H, K, V]
        for t in range(start, stop):
            matrix = matrix * decay[t]
            change = weight[t, :, None] * (v[t] - np.einsum("hkv,hk->hv", matrix, k[t, at]))
            matrix = matrix + k[t, at, :, None] * change[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", matrix, q[t, at])
        state[slots[sequence]] = matrix
    return out.reshape(tokens, heads * size)


def selective_scan(
    x: F32, b: F32, c: F32, dt: F32, ssm_a: F32, dt_bias: F32, ssm_d: F32, state: F32, *where: AnyArray
) -> F32:
    positions, starts, slots = where
    tokens, heads, size = x.shape
    step = _softplus(dt + dt_bias)  # [T, H]
    decay, out = np.exp(ssm_a * step), np.empty((tokens, heads, size), np.float32)
    group = np.arange(heads) // (heads // b.shape[1])
    for sequence, start, stop in sequences(slots, starts):
        matrix = _before(state, slots[sequence], positions[start])  # [H, N, P]
        for t in range(start, stop):
            change = step[t, :, None] * x[t]
            matrix = decay[t, :, None, None] * matrix + b[t, group, :, None] * change[:, None, :]
            out[t] = np.einsum("hnp,hn->hp", matrix, c[t, group]) + ssm_d[:, None] * x[t]
        state[slots[sequence]] = matrix
    return out.reshape(tokens, heads * size)


def channel_scan(x: F32, b: F32, c: F32, dt: F32, ssm_a: F32, ssm_d: F32, state: F32, *where: AnyArray) -> F32:
    positions, starts, slots = where
    step, ssm_a = _softplus(dt), ssm_a.reshape(state.shape[1:])  # [T, C], [N, C]
    change, out = step * x, np.empty_like(x)
    for sequence, start, stop in sequences(slots, starts):
        matrix = _before(state, slots[sequence], positions[start])  # [N, C]
        for t in range(start, stop):
            matrix = np.exp(ssm_a * step[t]) * matrix + b[t, :, None] * change[t]
            out[t] = c[t] @ matrix + ssm_d * x[t]
        state[slots[sequence]] = matrix
    return out


def wkv7(
    r: F32, w: F32, k: F32, v: F32, a: F32, vectors: F32, state: F32, *where: AnyArray, eps: float | None
) -> F32:
    positions, starts, slots, *mixed = where
    _, heads, size, _ = state.shape
    w0, a0, k_k, k_a, r_k, weight, bias, *v0 = vectors.reshape(-1, heads * size)
    decay, rate = np.exp(np.float32(-np.exp(-0.5)) * _sigmoid(w + w0)), _sigmoid(a + a0)
    if mixed:
        first, gate = mixed
        v = v + (first - v) * _sigmoid(gate + v0[0])
    r, k, v, decay, rate = (x.reshape(-1, heads, size) for x in (r, k, v, decay, rate))
    k_k, k_a, r_k = (x.reshape(heads, size) for x in (k_k, k_a, r_k))
    unit = k * k_k
    unit = unit / np.maximum(np.linalg.norm(unit, axis=2, keepdims=True), np.float32(1e-12))
    k = k * (1 + (rate - 1) * k_a)
    out = np.empty_like(r)
    for sequence, start, stop in sequences(slots, starts):
        matrix = _before(state, slots[sequence], positions[start])  # [H, N of keys, N of values]
        for t in range(start, stop):
            known = np.einsum("hkv,hk->hv", matrix, unit[t])
            matrix = decay[t, :, :, None] * matrix - (unit[t] * rate[t])[:, :, None] * known[:, None, :]
            matrix = matrix + k[t, :, :, None] * v[t, :, None, :]
            out[t] = np.einsum("hkv,hk->hv", matrix, r[t])
        state[slots[sequence]] = matrix
    y: F32 = out.reshape(len(r), -1)
    if eps is not None:
        centred = out - out.mean(axis=2, keepdims=True)
        normed = centred / np.sqrt(np.mean(np.square(centred), axis=2, keepdims=True) + np.float32(eps))
        y = normed.reshape(len(r), -1) * weight + bias
    own: F32 = np.sum(r * k * r_k, axis=2, keepdims=True) * v
    return y + own.reshape(len(r), -1)


def wkv6(
    r: F32, w: F32, k: F32, v: F32, vectors: F32, state: F32, *where: AnyArray, eps: float
) -> F32:
    positions, starts, slots = where
    _, heads, size, _ = state.shape
    w0, u, weight, bias = vectors.reshape(4, -1)
    decay = np.exp(-np.exp(w + w0))
    r, k, v, decay = (x.reshape(-1, heads, size) for x in (r, k, v, decay))
    out = np.sum(r * k * u.reshape(heads, size), axis=2, keepdims=True) * v
    for sequence, start, stop in sequences(slots, starts):
        matrix = _before(state, slots[sequence], positions[start])  # [H, N of keys, N of values]
        for t in range(start, stop):
            out[t] += np.einsum("hkv,hk->hv", matrix, r[t])
            matrix = decay[t, :, :, None] * matrix + k[t, :, :, None] * v[t, :, None, :]
        state[slots[sequence]] = matrix
    centred = out - out.mean(axis=2, keepdims=True)
    normed = centred / np.sqrt(np.mean(np.square(centred), axis=2, keepdims=True) + np.float32(eps))
    y: F32 = normed.reshape(len(r), -1) * weight + bias
    return y
