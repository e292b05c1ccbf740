"""What each op means, in float64 torch or plain loops: written from the words in graph.ops, not from the NumPy code."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

import numpy as np
import torch

F64 = np.ndarray


def t64(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x)).double()


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> F64:
    return torch.nn.functional.rms_norm(t64(x), (x.shape[-1],), t64(weight), eps).numpy()


def mul_mat(weight: np.ndarray, x: np.ndarray) -> F64:
    return torch.nn.functional.linear(t64(x), t64(weight)).numpy()


def mul_mat_id(weight: np.ndarray, x: np.ndarray, ids: np.ndarray) -> F64:
    out = np.empty((*ids.shape, weight.shape[1]))
    for t in range(ids.shape[0]):
        for j in range(ids.shape[1]):
            row = x[t] if x.ndim == 2 else x[t, j]
            out[t, j] = weight[ids[t, j]].astype(np.float64) @ row.astype(np.float64)
    return out


def rope(x: np.ndarray, positions: np.ndarray, freqs: np.ndarray, scale: float, interleaved: bool) -> F64:
    """Each pair as a complex number, turned by e^(i * angle)."""
    out = x.astype(np.float64)
    half = len(freqs)
    for t, position in enumerate(positions):
        for h in range(x.shape[1]):
            for i in range(half):
                a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
                turned = complex(x[t, h, a], x[t, h, b]) * cmath.exp(1j * float(position) * float(freqs[i])) * scale
                out[t, h, a], out[t, h, b] = turned.real, turned.imag
    return out


def attention(
    q: np.ndarray, keys: list[np.ndarray], values: list[np.ndarray], lengths: list[int], scale: float, window: int = 0,
    reach: int = 0,
) -> F64:
    """torch's own attention, sequence by sequence: keys and values [S, Hkv, D] in order, the last `length` of which
    have queries, q [sum of lengths, H, D]."""
    out, start = [], 0
    for k, v, length in zip(keys, values, lengths, strict=True):
        if not length:
            continue
        mask = torch.ones(length, len(k), dtype=torch.bool).tril(len(k) - length + reach)
        if window:
            mask = mask.triu(len(k) - length - window + 1)
        heads = (t64(a).transpose(0, 1) for a in (q[start : start + length], k, v))
        got = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, scale=scale, enable_gqa=True)
        out.append(got.transpose(0, 1).reshape(length, -1).numpy())
        start += length
    return np.concatenate(out)


def capped_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, cap: float) -> F64:
    """Attention of one sequence, q, k and v [T, H, D], with scores up to `cap`, written out number by number."""
    out = np.zeros(q.shape)
    for t, h in np.ndindex(*q.shape[:2]):
        scores = [cap * math.tanh(float(q[t, h].astype(float) @ k[i, h]) * scale / cap) for i in range(t + 1)]
        weights = np.exp(np.array(scores) - max(scores))
        out[t, h] = weights @ v[: t + 1, h].astype(float) / weights.sum()
    return out.reshape(len(q), -1)


def sloped_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, slopes: Sequence[float], *, causal: bool = False
) -> F64:
    """Attention of one sequence to all of itself, q, k and v [T, H, D], a slope for each head, number by number.

    causal  a token sees those before it and itself only
    """
    out = np.zeros(q.shape)
    for t, h in np.ndindex(*q.shape[:2]):
        seen = t + 1 if causal else len(q)
        scores = [float(q[t, h].astype(float) @ k[i, h]) * scale - slopes[h] * abs(t - i) for i in range(seen)]
        weights = np.exp(np.array(scores) - max(scores))
        out[t, h] = weights @ v[:seen, h].astype(float) / weights.sum()
    return out.reshape(len(q), -1)


def attention_in_chunks(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, chunk: int, sinks: np.ndarray | None
) -> F64:
    """Attention of one sequence, q, k and v [T, H, D], to positions of a query's own chunk, number by number."""
    out = np.zeros(q.shape)
    for t, h in np.ndindex(*q.shape[:2]):
        own = range(t // chunk * chunk, t + 1)
        weights = np.exp([float(q[t, h].astype(float) @ k[i, h]) * scale for i in own])
        whole = weights.sum() + (0.0 if sinks is None else math.exp(float(sinks[h])))
        out[t, h] = weights @ v[own.start : own.stop, h].astype(float) / whole
    return out.reshape(len(q), -1)


def geglu(gate: np.ndarray, up: np.ndarray) -> F64:
    return (torch.nn.functional.gelu(t64(gate), approximate="tanh") * t64(up)).numpy()


def swiglu(gate: np.ndarray, up: np.ndarray) -> F64:
    return (torch.nn.functional.silu(t64(gate)) * t64(up)).numpy()


def soft_max(x: np.ndarray) -> F64:
    return torch.softmax(t64(x), -1).numpy()


def soft_cap(x: np.ndarray, cap: float) -> F64:
    return np.array([cap * math.tanh(v / cap) for v in x.reshape(-1).tolist()]).reshape(x.shape)


def top_k(x: np.ndarray, k: int) -> np.ndarray:
    return np.array([sorted(range(len(row)), key=lambda i: (-row[i], i))[:k] for row in x.tolist()])
