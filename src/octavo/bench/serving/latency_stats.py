"""What replies come to: percentiles, rates, and how many kept to limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octavo.bench.serving.stream_reader import StreamedReply
from octavo.errors import UsageError

QUANTILES = 101
"""Points that are kept of a distribution: each percentile from 0 to 100."""

LIMITS = ("ttft", "tpot", "e2e")
"""What a limit of goodput can be on."""


def distribution(seconds: Sequence[float]) -> dict[str, Any] | None:
    """Mean, and all percentiles, in milliseconds; None of nothing. Between two values percentiles are linear."""
    if not seconds:
        return None
    values = 1e3 * np.asarray(seconds, np.float64)
    points = np.percentile(values, np.linspace(0, 100, QUANTILES))
    rounded = [round(float(p), 3) for p in points]
    named = {f"p{p}": rounded[p] for p in (50, 90, 99)}
    return {"n": len(values), "mean": round(float(values.mean()), 3), **named, "percentiles": rounded}


def read_limits(text: str | None) -> dict[str, float]:
    """The seconds of `ttft:2000,tpot:200`, which are milliseconds. Raises UsageError for anything else."""
    found: dict[str, float] = {}
    for part in (text or "").split(",") if text else ():
        name, _, value = part.strip().partition(":")
        try:
            milliseconds = float(value)
        except ValueError:
            milliseconds = -1.0
        if name not in LIMITS or not 0 < milliseconds < float("inf"):
            allowed = "ttft, tpot and e2e in milliseconds, as ttft:2000,tpot:200"
            raise UsageError(f"--goodput is {text!r} (allowed: {allowed})")
        found[name] = milliseconds / 1e3
    return found


def keeps(reply: StreamedReply, limits: Mapping[str, float]) -> bool:
    """Whether a reply came to its end within all limits; a reply of one token has no TPOT to exceed."""
    return reply.good and all((getattr(reply, name) or 0.0) <= most for name, most in limits.items())


def summary(replies: Sequence[StreamedReply], limits: Mapping[str, float]) -> dict[str, Any]:
    """A run's rates and distributions. Rates are over the time from the first request sent to the last text."""
    good = [r for r in replies if r.good]
    failures = [r.error or "no text" for r in replies if not r.good]
    out: dict[str, Any] = {"requests": len(replies), "failed": len(failures), "failures": sorted(set(failures))[:8]}
    if not good:
        return out
    seconds = max(r.arrivals[-1] for r in good) - min(r.sent for r in good)
    tokens, prompts = sum(r.tokens for r in good), [r.prompt_tokens for r in good if r.prompt_tokens is not None]
    cached = [r.cached_tokens for r in good if r.cached_tokens is not None]
    kept = sum(keeps(r, limits) for r in good)
    return out | {
        "seconds": seconds, "output_tokens": tokens,
        "input_tokens": sum(prompts) if len(prompts) == len(good) else None,
        "cached_tokens": sum(cached) if len(cached) == len(good) else None, "output_rate": tokens / seconds,
        "accepted_tokens": sum(r.accepted for r in good), "rejected_tokens": sum(r.rejected for r in good),
        "total_rate": (tokens + sum(prompts)) / seconds if len(prompts) == len(good) else None,
        "request_rate": len(good) / seconds, "goodput": kept / seconds if limits else None,
        "kept": kept / len(replies) if limits else None, "ttft": distribution([r.ttft for r in good]),
        "itl": distribution([gap for r in good for gap in r.gaps]),
        "tpot": distribution([r.tpot for r in good if r.tpot is not None]), "e2e": distribution([r.e2e for r in good]),
    }
