"""The time that this process has spent compiling kernels, so that it does not count as a model's speed."""

from __future__ import annotations

import time

NOTICE_S = 1.0
"""Seconds of compiling after which it is said where there is no terminal."""


class _Spent:
    seconds = 0.0


def spent(seconds: float) -> None:
    """Count seconds that the caller waited for a compiler."""
    _Spent.seconds += seconds


def compile_seconds() -> float:
    """Seconds that were counted so far."""
    return _Spent.seconds


def clock() -> float:
    """Seconds that stand still while kernels are compiled, from an arbitrary start."""
    return time.perf_counter() - _Spent.seconds
