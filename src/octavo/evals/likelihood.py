"""Perplexity: exp of the mean negative log-likelihood that a model gives the tokens of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.calibrate.texts import Mask
from octavo.evals.scores import negative_log_likelihoods
from octavo.evals.stats import Estimate, exp_mean, mean
from octavo.evals.windows import logits, step_sizes, windows
from octavo.runtime import Model

Progress = Callable[[int, int, float], None]
"""Is told windows done, of how many, and the value so far."""


@dataclass(frozen=True)
class Perplexity:
    """A model on a text.

    perplexity  exp(nll)
    nll         mean negative log-likelihood of a scored token, nats
    tokens      that were scored
    chunks      windows that were run
    context     tokens of a window
    """

    perplexity: Estimate
    nll: Estimate
    tokens: int
    chunks: int
    context: int


def perplexity(
    model: Model, tokens: Sequence[int], *, context: int = 512, chunks: int | None = None,
    scored: Sequence[bool] | Mask | None = None, progress: Progress | None = None
) -> Perplexity:
    """The perplexity of a text, as llama.cpp's perplexity tool defines it (see `windows`), with its standard error.

    chunks  most windows to run (default: all)
    scored  of each token, whether it counts (default: all do)

    Raises UsageError for a text shorter than a window, a context beyond the engine's, and where no token counts.
    """
    found = windows(model, tokens, context, chunks, scored)
    parts = []
    for i, window in enumerate(found):
        for rows, targets in logits(model.engine, window, *step_sizes(model.engine)):
            parts.append(negative_log_likelihoods(rows, targets))
        if progress is not None:
            progress(i + 1, len(found), exp_mean(np.concatenate(parts)).value if parts else float("nan"))
    nll = np.concatenate(parts)
    return Perplexity(exp_mean(nll), mean(nll), len(nll), len(found), context)
