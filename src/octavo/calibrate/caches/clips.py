"""Where static int8 scales of a KV cache cut off: the magnitude of each head with which attention errs least.

Codes of a smaller magnitude are finer, and what lies beyond it is cut off. What an error of a value or a key does to
the results of attention is known to first order: with weights p of a query i, its result o and keys j,

    of value j   p_ij^2 |dv_j|^2
    of key j     p_ij^2 |v_j - o_i|^2 (scale q_i . dk_j)^2

which are summed over queries, as if errors of different tokens and channels had nothing to do with each other. What is
left is a weight for each number of a key and for each value, and a head's magnitude is the one with the least
weighted squared error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from octavo.formats.rows import INT8_TOP
from octavo.formats.spec import F32
from octavo.graph.alibi import alibi_slopes
from octavo.quantizers.matrix_tiles import run_tiles, spans
from octavo.quantizers.statistics.channels import ChannelStatistics

TOKENS = 8192
"""Tokens by which magnitudes are chosen, at most: whole samples, but one at least."""
QUERIES = 256
"""Queries whose weights are there at a time."""
SHARES: F32 = np.arange(0.5, 1.0125, 0.025).astype(np.float32)
"""Shares of the largest magnitude at which a head may be cut off."""


def importance(q: F32, k: F32, v: F32, attrs: Mapping[str, Any], sinks: F32 | None = None) -> tuple[F32, F32]:
    """How errors of a sequence's keys and values count: weights of keys [T, Hkv, D] and of values [T, Hkv].

    q [T, H, D], k and v [T, Hkv, D], and `attrs` and `sinks` [H] are those of op `attention`, without reach.
    """
    of_keys, of_values = np.zeros(k.shape, np.float32), np.zeros(k.shape[:2], np.float32)
    run_tiles(partial(_of_head, q, k, v, attrs, sinks, of_keys, of_values, head) for head in range(k.shape[1]))
    return of_keys, of_values


def _of_head(
    q: F32, k: F32, v: F32, attrs: Mapping[str, Any], sinks: F32 | None, of_keys: F32, of_values: F32, kv_head: int
) -> None:
    """Add up a head of keys and values, over all queries that read it."""
    group, keys, values = q.shape[1] // k.shape[1], k[:, kv_head], v[:, kv_head]
    size, cap, alibi = (values**2).sum(axis=1), np.float32(attrs.get("cap", 0.0)), float(attrs.get("alibi", 0.0))
    for head in range(kv_head * group, (kv_head + 1) * group):
        for part in spans(len(q), QUERIES):
            asked, end = q[part, head] * np.float32(attrs["scale"]), part.stop
            x = asked @ keys[:end].T  # [queries, keys]
            slope: F32 = np.ones(1, np.float32)
            if cap:
                bent = np.tanh(x / cap)
                x, slope = cap * bent, (1 - bent**2) ** 2
            if alibi:
                between = np.arange(part.start, end)[:, None] - np.arange(end)
                x -= alibi_slopes(q.shape[1], alibi)[head] * between
            x[_hidden(part, end, int(attrs.get("window", 0)))] = -np.inf
            top = x.max(axis=1, keepdims=True)
            x = np.exp(x - top)
            total = x.sum(axis=1, keepdims=True)
            if sinks is not None:
                total += np.exp(sinks[head] - top)
            x /= total
            out = x @ values[:end]
            x *= x
            of_values[:end, kv_head] += x.sum(axis=0)
            x *= np.maximum((out**2).sum(axis=1, keepdims=True) + size[:end] - 2 * out @ values[:end].T, 0) * slope
            of_keys[:end, kv_head] += x.T @ asked**2


def _hidden(queries: slice, end: int, window: int) -> Any:
    """Which of `end` keys each query does not see, bool [queries, end]; a window below 0 is that of a chunk."""
    at, keys = np.arange(queries.start, queries.stop)[:, None], np.arange(end)
    hidden = keys > at
    if window:
        hidden |= keys <= at - (window if window > 0 else at % -window + 1)
    return hidden


def best_share(x: F32, weights: F32, largest: float) -> float:
    """Of SHARES of `largest` the one with the least weighted squared error of x [T, D] as int8 numbers.

    `weights` are [T, D] or [T, 1]. The largest where several are equally good.
    """
    errors = []
    for share in SHARES[::-1]:
        scale = np.float32(largest) * share / np.float32(INT8_TOP)
        kept = np.clip(np.rint(x / scale), -INT8_TOP, INT8_TOP) * scale
        errors.append(float((weights * (kept - x) ** 2).sum(dtype=np.float64)))
    return float(SHARES[::-1][int(np.argmin(errors))])


@dataclass(eq=False)
class CacheClips:
    """Chooses magnitudes of one layer after the other."""

    _seen: dict[str, list[tuple[F32, F32]]] = field(default_factory=dict)

    def add(self, names: tuple[str, str], q: F32, k: F32, v: F32, attrs: Mapping[str, Any], sinks: F32 | None) -> None:
        """Look at a sequence's attention; `names` are those of its caches of keys and of values."""
        weights = importance(q, k, v, attrs, sinks)
        for name, x, of_x in zip(names, (k, v), (weights[0], weights[1][..., None]), strict=True):
            self._seen.setdefault(name, []).append((np.array(x, np.float32), of_x))

    def chosen(self, caches: Mapping[str, ChannelStatistics]) -> dict[str, F32]:
        """Magnitudes float32 [heads] of caches of which all was counted, by name; what was seen of them is let go."""
        found: dict[str, F32] = {}
        for name in [name for name in caches if name in self._seen]:
            magnitudes = largest_magnitudes(caches[name])
            x, weights = (np.concatenate(parts) for parts in zip(*self._seen.pop(name), strict=True))
            run_tiles(partial(_choose, x, weights, magnitudes, head) for head in range(len(magnitudes)))
            found[name] = magnitudes
        return found


def _choose(x: F32, weights: F32, magnitudes: F32, head: int) -> None:
    """Take a share of a head's magnitude, by x [T, heads, D] and weights of that shape, or with one of all D."""
    if magnitudes[head] > 0:
        magnitudes[head] *= best_share(x[:, head], weights[:, head], float(magnitudes[head]))


def largest_magnitudes(measured: ChannelStatistics) -> F32:
    """The largest magnitude of each head of a cache, float32 [heads]."""
    largest: F32 = np.maximum(measured.max, -measured.min).max(axis=1).astype(np.float32)
    return largest
