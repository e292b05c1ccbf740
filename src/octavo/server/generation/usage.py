"""What a job took: counts of tokens as OpenAI has them, and times as llama-server has them."""

from __future__ import annotations

from typing import Any

from octavo.server.engine.protocol import Progress
from octavo.server.generation.work import Choice, Work


def usage(work: Work) -> dict[str, Any]:
    """Tokens of a job. A prompt counts once, whatever the number of its replies; a token that ends one counts too."""
    prompts = sum(map(len, work.job.prompts))
    cached = sum(choice.begun.cached for choice in work.choices[:: work.job.n] if choice.begun is not None)
    completion = sum(choice.tokens for choice in work.choices)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": completion,
        "total_tokens": prompts + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in work.choices)},
    }


def progress_of(choice: Choice, at: Progress) -> dict[str, int]:
    """How far a prompt is read, as llama-server tells it."""
    return {"total": choice.n_prompt, "cache": at.cached, "processed": at.read, "time_ms": round(1000 * at.seconds)}


def timings(choice: Choice, at: Progress | None = None) -> dict[str, Any]:
    """How long the parts of a reply took, in milliseconds; `at`: as far as its prompt was read then.

    A token's time is from the one before it: the first, which the prompt's time ends with, has none.
    """
    cached, n_prompt, prompt, n, seconds = 0, choice.n_prompt, 0.0, choice.tokens, choice.seconds
    if at is not None:
        cached, n_prompt, prompt, n, seconds = at.cached, at.read - at.cached, at.seconds, 0, 0.0
    elif choice.begun is not None:
        cached, n_prompt, prompt = choice.begun.cached, choice.n_prompt - choice.begun.cached, choice.begun.prompt
    later = max(n - 1, 0)
    drafts = {} if choice.drafted is None else dict(zip(("draft_n", "draft_n_accepted"), choice.drafted, strict=True))
    return {
        "cache_n": cached,
        "prompt_n": n_prompt,
        "prompt_ms": 1000 * prompt,
        "prompt_per_token_ms": 1000 * prompt / n_prompt if n_prompt else 0.0,
        "prompt_per_second": n_prompt / prompt if prompt else 0.0,
        "predicted_n": n,
        "predicted_ms": 1000 * seconds,
        "predicted_per_token_ms": 1000 * seconds / later if later else 0.0,
        "predicted_per_second": later / seconds if seconds else 0.0,
        **drafts,
    }
