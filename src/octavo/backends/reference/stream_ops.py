"""The definition of ops on several streams of a token, and of activations that few models have."""

from __future__ import annotations

import numpy as np

from octavo.formats.spec import F32


def keep_largest(x: F32, *, spread: float) -> F32:
    around: F32 = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(around * around, axis=-1, keepdims=True))
    result: F32 = np.maximum(around - np.float32(spread) * deviation, 0)
    return result


def predict_streams(x: F32, coefs: F32) -> F32:
    tokens, streams, _ = x.shape
    result: F32 = x + coefs.reshape(tokens, streams, streams) @ x
    return result


def correct_streams(x: F32, first: F32, coefs: F32) -> F32:
    result: F32 = x + (1 + coefs)[:, :, None] * (first - x[:, 0])[:, None]
    return result


def add_to_others(x: F32, row: F32) -> F32:
    return np.concatenate([x[:, :1], x[:, 1:] + row[:, None]], axis=1)


def as_large_as(x: F32, like: F32, *, least: float) -> F32:
    wanted = np.mean(like * like, axis=-1)[:, None, None]
    found = np.maximum(np.mean(x * x, axis=-1, keepdims=True), np.float32(least))
    result: F32 = x * np.sqrt(wanted / found)
    return result
