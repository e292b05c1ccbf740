"""What an engine has done, and what it has to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """Requests and pages now, and what was done so far.

    running, waiting     requests in the steps, and in the queue
    empty, cached, held  pages of the KV cache; together they are all
    drafts               of tokens to come that were verified: how many, their tokens, and how many of these were right
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
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
