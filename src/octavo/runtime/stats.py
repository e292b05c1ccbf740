"""What an engine has done, and what it has to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """Requests and pages now, and what was done so far.

    running, waiting     requests in the steps, and in the queue
    empty, cached, held  pages of the KV cache; together they are all
    prompt_tokens        of requests as often as they began; of these, `cached_tokens` were in the cache
    """

    running: int
    waiting: int
    empty: int
    cached: int
    held: int
    steps: int
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
