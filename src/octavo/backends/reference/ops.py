# mypy: no-warn-return-any
"""The definition of every op, in float32 NumPy. Shapes and words are in `graph.ops` and `graph.*_ops`.

A weight is an array, or something that gives rows by `w[ids]`, an expert by `w[e]` and the transpose by `w.T`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from octavo.backends.reference import math
from octavo.backends.reference.state_ops import (  # noqa: F401
    causal_conv,
    channel_scan,
    gated_delta_rule,
    selective_scan,
    sequences,
    wkv6,
    wkv7,
)
from octavo.formats.activation import activation
from octavo.formats.spec import F32, AnyArray
from octavo.graph.alibi import alibi_slopes
from octavo.graph.node import Shape
from octavo.graph.pointwise import POINTWISE, Pointwise

Weight = Any


def __getattr__(name: str) -> Any:
    """A pointwise op's expression, with NumPy's functions."""
    if name not in POINTWISE:
        raise AttributeError(f"{name} is not defined")
    return _definition(POINTWISE[name])


@cache
def _definition(op: Pointwise) -> Callable[..., Any]:
    function, cases = op.rebuilt(math), op.numbers

    def define(*inputs: AnyArray, **numbers: float) -> AnyArray:
        given = {n: np.float32(value) if isinstance(cases[n], float) else value for n, value in numbers.items()}
        return function(*inputs, **given)

    return define


def get_rows(table: Weight, rows: AnyArray) -> F32:
    return table[rows]


def rms_norm(x: F32, weight: F32, *, eps: float) -> F32:
    mean: F32 = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    root: F32 = np.sqrt(mean + np.float32(eps))
    return x / root * weight


def layer_norm(x: F32, weight: F32, *bias: F32, eps: float) -> F32:
    around: F32 = x - x.mean(axis=-1, keepdims=True)
    y = rms_norm(around, weight, eps=eps)
    return y + bias[0] if bias else y


def keep_largest(x: F32, *, spread: float) -> F32:
    around: F32 = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(around * around, axis=-1, keepdims=True))
    return np.maximum(around - np.float32(spread) * deviation, 0)


def as_large_as(x: F32, like: F32, *, least: float) -> F32:
    wanted = np.mean(like * like, axis=-1)[:, None, None]
    found = np.maximum(np.mean(x * x, axis=-1, keepdims=True), np.float32(least))
    return x * np.sqrt(wanted / found)


def mul_mat(weight: Weight, x: F32) -> F32:
    return x @ weight.T


def lora(x: F32, rows: AnyArray, starts: AnyArray, table: Any, y: F32, *, part: int | None = None) -> F32:
    out = y.copy()
    for slot, pairs in enumerate(table.pairs):
        tokens, first = rows[starts[slot] : starts[slot + 1]], 0
        for size, pair in zip(table.sizes, pairs, strict=True) if part is None else [(y.shape[1], pairs[part])]:
            if pair is not None and len(tokens):
                a, b = pair
                out[tokens, first : first + size] += x[tokens] @ a.T @ b.T
            first += size
    return out


def mul_mat_id(weight: Weight, x: F32, ids: AnyArray) -> F32:
    x = np.broadcast_to(x if x.ndim == 3 else x[:, None], (*ids.shape, x.shape[-1]))
    out = np.empty((*ids.shape, weight.shape[1]), np.float32)
    for expert in np.unique(ids):
        chosen = ids == expert
        out[chosen] = x[chosen] @ weight[expert].T
    return out


def rope(x: F32, positions: AnyArray, freqs: F32, *, scale: float, interleaved: bool) -> F32:
    half = len(freqs)
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    )
    angle = positions.astype(np.float32)[:, None, None] * freqs
    cos, sin = np.cos(angle) * np.float32(scale), np.sin(angle) * np.float32(scale)
    a, b = x[..., first], x[..., second]
    out = x.copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def slice_heads(x: F32, *, start: int, size: int) -> F32:
    return x[..., start : start + size]


def join_heads(a: F32, b: F32) -> F32:
    return np.concatenate([a, b], axis=-1)


def set_rows(cache: AnyArray, values: F32, rows: AnyArray) -> AnyArray:
    cache[rows] = values
    return cache


def attention(
    q: F32, k: AnyArray, v: AnyArray, *where: AnyArray, scale: float, page_size: int,
    window: int = 0, cap: float = 0.0, reach: int = 0, value_dim: int = 0, alibi: float = 0.0,
) -> F32:
    positions, starts, pages, *sinks = where
    tokens, heads, dim = q.shape
    group = heads // k.shape[1]
    size = value_dim or dim
    out = np.empty((tokens, heads, size), np.float32)
    for sequence, start, stop in sequences(pages, starts):
        at = positions[start:stop]
        seen = np.arange(at.max() + 1)
        rows = pages[sequence, seen // page_size].astype(np.int64) * page_size + seen % page_size
        keys, values = (np.repeat(c[rows].astype(np.float32), group, axis=1) for c in (k, v))
        scores = np.einsum("thd,shd->hts", q[start:stop], keys, optimize=True) * np.float32(scale)
        scores = _definition(POINTWISE["soft_cap"])(scores, cap=cap) if cap else scores
        if alibi:
            scores -= alibi_slopes(heads, alibi)[:, None, None] * np.abs(seen - at[:, None])
        first = at // -window * -window if window < 0 else at + 1 - (window or len(seen))
        visible = (seen <= at[:, None] + reach) & (seen >= first[:, None])
        scores = np.where(visible, scores, -np.inf)
        if sinks:
            column = np.broadcast_to(sinks[0][:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate([scores, column], axis=-1)
        shares = soft_max(scores)[..., : len(seen)]
        out[start:stop] = np.einsum("hts,shd->thd", shares, values[..., :size], optimize=True)
    return out.reshape(tokens, heads * size)


def add_rows(x: F32, rows: F32, ids: AnyArray) -> F32:
    return x + rows.reshape(-1, x.shape[2])[ids]


def soft_max(x: F32) -> F32:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def top_k(x: F32, *, k: int) -> AnyArray:
    return np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int32)


def top_candidates(x: F32, *, k: int) -> AnyArray:
    bad = (~np.isfinite(x)).sum(axis=1, keepdims=True, dtype=np.int32)
    ids = top_k(x, k=k)
    return np.concatenate([bad, ids, gather(x, ids).view(np.int32)], axis=1)


def merge_candidates(x: AnyArray, *, k: int, firsts: tuple[int, ...]) -> AnyArray:
    parts = x.reshape(len(x), len(firsts), 1 + 2 * k)
    places = (parts[..., 1 : 1 + k] + np.array(firsts, np.int32)[:, None]).reshape(len(x), -1)
    values = np.ascontiguousarray(parts[..., 1 + k :]).view(np.float32).reshape(len(x), -1)
    best = np.argsort(-values, axis=1, kind="stable")[:, :k]
    found = (np.take_along_axis(each, best, axis=1) for each in (places, values.view(np.int32)))
    return np.concatenate([parts[..., 0].sum(axis=1, keepdims=True, dtype=np.int32), *found], axis=1)


def local_places(places: AnyArray, *, first: int, count: int) -> AnyArray:
    rows, columns = places[:, 0], places[:, 1] - first
    return np.stack([np.where((columns >= 0) & (columns < count), rows, -1), columns], axis=1).astype(np.int32)


def draw(found: AnyArray, settings: AnyArray) -> AnyArray:
    k = found.shape[1] // 2
    places, values = found[:, 1 : 1 + k], np.ascontiguousarray(found[:, 1 + k :]).view(np.float32)
    numbers = np.ascontiguousarray(settings).view(np.float64)
    columns = drawn_columns(values, numbers)[:, None]
    unknown = (places >= numbers[:, 5:]).sum(axis=1, keepdims=True, dtype=np.int32)
    return np.concatenate([found[:, :1], np.take_along_axis(places, columns, axis=1), unknown], axis=1)


def drawn_columns(values: F32, settings: AnyArray) -> AnyArray:
    """The column that each row takes of logits [n, K], which are largest first, and -inf after the last one.

    settings float64 [n, 5 or more] are the first numbers that op `draw` takes.
    """
    k, top_p, min_p, temperature, uniform = settings[:, :5].T[:, :, None]  # [n, 1] each
    below = values.astype(np.float64) - values[:, :1]
    shares = np.where(np.arange(values.shape[1]) < k, np.exp(below), 0.0)
    sums = np.cumsum(shares, axis=1)  # from left to right, so columns that are added change nothing
    kept = (shares > 0) & (sums - shares < top_p * sums[:, -1:]) & (shares >= min_p)
    sums = np.cumsum(np.where(kept, np.exp(below / temperature), 0.0), axis=1)
    last = values.shape[1] - 1 - np.argmax(kept[:, ::-1], axis=1)
    return np.minimum((sums <= uniform * sums[:, -1:]).sum(axis=1), last)


def log_sum_exp(x: F32) -> F32:
    top = x.max(axis=1, keepdims=True)
    return top + np.log(np.exp(x - top).sum(axis=1, keepdims=True))


def adjust(x: F32, places: AnyArray, changes: F32) -> F32:
    real = places[:, 0] >= 0
    (rows, columns), (scale, more) = places[real].T, changes[real].T
    values = x[rows, columns]
    x[rows, columns] = np.where(values > 0, values / scale, values * scale) + more
    return x


def mask(x: F32, rows: AnyArray, masks: AnyArray) -> F32:
    allowed = (masks[..., None] >> np.arange(32, dtype=np.int32)) & 1
    for row, bits in zip(rows, allowed.reshape(len(rows), -1), strict=True):
        if row >= 0:
            x[row, bits[: x.shape[1]] == 0] = -np.inf
    return x


def keep_groups(x: F32, *, groups: int, used: int, best: int) -> F32:
    apart = x.reshape(len(x), groups, -1)
    sums = np.sort(apart, axis=-1)[..., -best:].sum(axis=-1)
    kept = np.zeros(sums.shape, bool)
    np.put_along_axis(kept, top_k(sums, k=used), True, axis=1)
    return np.where(kept[..., None], apart, np.float32(-np.inf)).reshape(x.shape)


def numbers(positions: AnyArray, *, count: int) -> AnyArray:
    return np.tile(np.arange(count, dtype=np.int32), (len(positions), 1))


def gather(x: F32, ids: AnyArray) -> F32:
    return x[ids] if x.ndim == 1 else np.take_along_axis(x, ids, axis=-1)


def sparse_shares(x: F32, ids: AnyArray, *, tolerance: float) -> F32:
    left, shares = x.astype(np.float32), np.empty(ids.shape, np.float32)
    for j in range(ids.shape[1]):
        top = np.take_along_axis(x, ids[:, j : j + 1], axis=1)
        near = top - left <= np.float32(tolerance) * np.maximum(np.abs(x), top)
        shares[:, j] = 1 / np.where(near, np.exp(np.where(near, left - top, 0)), 0).sum(axis=1)
        np.put_along_axis(left, ids[:, j : j + 1], np.float32(-np.inf), axis=1)
    return shares


def take_columns(x: F32, order: F32) -> F32:
    return x[:, order.astype(np.int64)]


def take_columns_id(x: F32, orders: F32, ids: AnyArray) -> F32:
    return x[np.arange(len(x))[:, None, None], orders.reshape(-1, x.shape[1])[ids].astype(np.int64)]


def normalize(x: F32) -> F32:
    return x / x.sum(axis=-1, keepdims=True)


def weighted_sum(x: F32, weights: F32) -> F32:
    return np.einsum("tkn,t...k->t...n", x, weights)


def largest_magnitude(x: F32) -> F32:
    return np.abs(x).max(axis=-1, keepdims=True)


def quantize(x: F32, *largest: F32, format: str, static_scale: float | None = None) -> F32:
    kind = activation(format)
    if largest:
        return quantize(np.concatenate([x, *largest], axis=-1), format=format)[..., :-1]
    if static_scale is not None:
        assert kind.given is not None
        return kind.given(x, static_scale).dequantize()
    assert kind.quantize is not None
    return kind.quantize(x).dequantize()


def copy(x: AnyArray) -> AnyArray:
    return x


def reshape(x: AnyArray, *, shape: Shape) -> AnyArray:
    return x.reshape(x.shape[0], *(d for d in shape[1:] if isinstance(d, int)))


def columns(x: AnyArray, *, start: int, size: int) -> AnyArray:
    return x[..., start : start + size]


def after(x: AnyArray, event: AnyArray) -> AnyArray:
    return x


def mul_mat_concat(x: F32, *weights: Weight) -> F32:
    return np.concatenate([mul_mat(w, x) for w in weights], axis=1)


def mul_mat_concat_add(x: F32, *weights_and_biases: Any) -> F32:
    count = len(weights_and_biases) // 2
    return mul_mat_concat(x, *weights_and_biases[:count]) + np.concatenate(weights_and_biases[count:])


def mul_mat_add(weight: Weight, x: F32, *terms: F32) -> F32:
    total = mul_mat(weight, x)
    for term in terms:
        total = total + term
    return total


def mul_mat_id_concat(weight: Weight, x: F32, ids: AnyArray, *others: Weight) -> F32:
    return np.concatenate([mul_mat_id(w, x, ids) for w in (weight, *others)], axis=-1)


def mul_mat_id_gated(
    weight: Weight, gate: F32, up: F32, ids: AnyArray, *biases: F32, gating: str, **numbers: float
) -> F32:
    if biases:
        gate, up = (add_rows(x, rows, ids) for x, rows in zip((gate, up), biases, strict=True))
    return mul_mat_id(weight, _definition(POINTWISE[gating])(gate, up, **numbers), ids)


def soft_max_top_k(x: F32, *, k: int) -> AnyArray:
    return top_k(soft_max(x), k=k)


def sum_experts(
    x: F32, logits: F32, ids: AnyArray, *term: F32, normalized: bool, biased: bool = False
) -> F32:
    if biased:
        x, term = add_rows(x, term[0], ids), term[1:]
    shares = gather(soft_max(logits), ids)
    total = weighted_sum(x, normalize(shares) if normalized else shares)
    return total + term[0] if term else total


def rope_set_rows(
    q: F32, k: F32, v: F32, k_cache: AnyArray, v_cache: AnyArray, positions: AnyArray, rows: AnyArray, freqs: F32,
    *norms: F32, scale: float, interleaved: bool, eps: float = 0.0,
) -> F32:
    if norms:
        q, k = rms_norm(q, norms[0], eps=eps), rms_norm(k, norms[1], eps=eps)
    set_rows(k_cache, rope(k, positions, freqs, scale=scale, interleaved=interleaved), rows)
    set_rows(v_cache, v, rows)
    return rope(q, positions, freqs, scale=scale, interleaved=interleaved)
