"""A text as windows of a context each, and a model's logits over one of them.

As llama.cpp's perplexity tool does it: the text is cut into windows of `context` tokens, the first of each replaced by
BOS where the model wants one; a window is run by itself, and the tokens of its second half are scored, so that each has
at least half a context before it. Or all but the first are, those at a window's beginning with little before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.calibrate.texts import Mask
from octavo.errors import UsageError
from octavo.formats.spec import F32
from octavo.runtime import Engine, Model
from octavo.runtime.cache.page_pool import Sequence as CachedSequence
from octavo.runtime.engine.batch import Feed

I64 = npt.NDArray[np.int64]

LEAST_CONTEXT = 4
LOGIT_BYTES = 64 << 20
"""Most memory for the logits of a step."""


@dataclass(frozen=True, eq=False)
class TextWindow:
    """Tokens that are run together, and which of them are scored: bool, the first half never, unless `every` can be."""

    tokens: list[int]
    scored: Mask
    every: bool = False

    @property
    def first(self) -> int:
        """The first token whose logits are wanted: they are for the one after it."""
        return 0 if self.every else len(self.tokens) // 2


def windows(
    model: Model, tokens: Sequence[int], context: int, chunks: int | None = None,
    scored: Sequence[bool] | Mask | None = None, every: bool = False
) -> list[TextWindow]:
    """The windows of a text, at most `chunks`; what is left over at its end is not used.

    `scored` says of each token whether it counts (default: all do); `every` has those of a first half scored too.
    Raises UsageError for a text shorter than a window, a context longer than the model's, and where no token counts.
    """
    most = max(LEAST_CONTEXT, model.engine.n_ctx)
    if context < LEAST_CONTEXT:
        raise UsageError(f"context is {context} (allowed: {LEAST_CONTEXT} or more)", argument="context")
    if context > most:
        allowed = f"{LEAST_CONTEXT} to {most}, what the model was loaded for"
        raise UsageError(f"context is {context} (allowed: {allowed})", argument="context")
    if chunks is not None and chunks < 1:
        raise UsageError(f"chunks is {chunks} (allowed: 1 or more)", argument="chunks")
    if len(tokens) < context:
        raise UsageError(
            f"the text has {len(tokens)} tokens, less than one window of {context}; --ctx-size takes shorter ones"
        )
    if scored is not None and len(scored) != len(tokens):
        raise UsageError(f"scored is for {len(scored)} tokens (allowed: {len(tokens)}, as the text has)")
    counts = np.ones(len(tokens), bool) if scored is None else np.asarray(scored, bool)
    bos = model.tokenizer.bos_id if model.tokenizer.add_bos else None
    found = []
    for start in range(0, len(tokens) - context + 1, context)[:chunks]:
        taken = list(tokens[start : start + context])
        mask = counts[start : start + context].copy()
        mask[: 1 if every else context // 2 + 1] = False
        if bos is not None:
            taken[0] = bos
        found.append(TextWindow(taken, mask, every))
    if not any(w.scored.any() for w in found):
        raise UsageError("no token of the text's windows is to be scored: mark some in the second half of a window")
    return found


def outputs_for(n_vocab: int, context: int) -> int:
    """Logits of a step (`EngineConfig.n_outputs`) that evaluation in windows of `context` wants: half of it at best."""
    return max(1, min(LOGIT_BYTES // (4 * n_vocab), context - context // 2))


def steps(window: TextWindow, n_batch: int, n_outputs: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, outputs): how a window is fed so that the logits from `window.first` on come out."""
    size, first = len(window.tokens), window.first
    parts = -(-(size - first) // n_outputs)
    most = -(-(size - first) // parts)
    start = 0
    while start < size:
        stop = min(start + n_batch, size)
        if stop > first:
            stop = min(stop, max(start, first) + most)
        yield start, stop, max(0, stop - max(start, first))
        start = stop


def logits(engine: Engine, window: TextWindow, n_batch: int, n_outputs: int) -> Iterator[tuple[F32, I64]]:
    """The logits [n, n_vocab] of a window's scored tokens, some at a time, and those tokens [n].

    n_batch, n_outputs: tokens and logits of a step, at most what the engine takes. The cache is given back at the end.
    """
    sequence = CachedSequence()
    targets = np.asarray(window.tokens, np.int64)
    try:
        for start, stop, outputs in steps(window, n_batch, n_outputs):
            rows = engine.step([Feed(sequence, window.tokens[start:stop], outputs)])
            at = np.arange(stop - outputs + 1, min(stop + 1, len(targets)))
            wanted = window.scored[at]
            if wanted.any():
                rows = rows[: len(at)]
                yield (rows if wanted.all() else rows[wanted]), targets[at[wanted]]
    finally:
        engine.release(sequence)


def step_sizes(*engines: Engine) -> tuple[int, int]:
    """Tokens and logits of a step that all of `engines` take."""
    return min(e.limits["tokens"] for e in engines), min(e.limits["outputs"] for e in engines)
