"""How far a model is from another one, its base, in what it predicts: Kullback-Leibler divergence and its company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.calibrate.texts import Mask
from octavo.errors import UsageError
from octavo.evals.likelihood import Progress
from octavo.evals.scores import Comparison, compare
from octavo.evals.stats import Estimate, Spread, exp_mean, mean, root_mean_square
from octavo.evals.windows import logits, step_sizes, windows
from octavo.runtime import Model
from octavo.text import Tokenizer


@dataclass(frozen=True)
class Divergence:
    """A model beside its base on a text, a value a scored token.

    kl                      mean KL divergence of the model from the base, nats
    kl_spread               how the divergences lie
    same_top                share of tokens where both find the same one likeliest
    perplexity, base_perplexity
    perplexity_ratio        perplexity / base_perplexity
    perplexity_difference   perplexity - base_perplexity
    correlation             of the two models' log-likelihoods
    delta_p                 mean change in the probability of the right token
    rms_delta_p             its root mean square
    delta_p_spread          how those changes lie
    tokens, chunks, context as of Perplexity
    """

    kl: Estimate
    kl_spread: Spread
    same_top: Estimate
    perplexity: Estimate
    base_perplexity: Estimate
    perplexity_ratio: Estimate
    perplexity_difference: Estimate
    correlation: float
    delta_p: Estimate
    rms_delta_p: Estimate
    delta_p_spread: Spread
    tokens: int
    chunks: int
    context: int


def divergence(
    model: Model, base: Model, tokens: Sequence[int], *, context: int = 512, chunks: int | None = None,
    scored: Sequence[bool] | Mask | None = None, progress: Progress | None = None
) -> Divergence:
    """Run both models over a text, window by window, and compare what they predict (see `windows`).

    The definitions are those of llama.cpp's perplexity tool with --kl-divergence, which keeps the base's logits in 16
    bits; here both are as computed. Raises UsageError for models of unlike vocabularies, and as `perplexity` does.
    """
    check_vocabularies(model, base)
    found = windows(model, tokens, context, chunks, scored)
    windows(base, tokens, context, chunks, scored)
    sizes = step_sizes(model.engine, base.engine)
    parts: list[Comparison] = []
    for i, window in enumerate(found):
        pairs = zip(logits(model.engine, window, *sizes), logits(base.engine, window, *sizes), strict=True)
        parts += [compare(rows, base_rows, targets) for (rows, targets), (base_rows, _) in pairs]
        if progress is not None:
            progress(i + 1, len(found), float(np.concatenate([p.kl for p in parts]).mean()) if parts else float("nan"))
    return summary(Comparison.join(parts), len(found), context)


def summary(found: Comparison, chunks: int, context: int) -> Divergence:
    """The estimates of what was counted of each token."""
    ppl, base = exp_mean(found.nll), exp_mean(found.nll_base)
    delta_p = np.exp(-found.nll) - np.exp(-found.nll_base)
    linear = ppl.value * found.nll - base.value * found.nll_base  # the difference, to first order
    slope = mean(linear)
    moves = found.nll.std() * found.nll_base.std()
    return Divergence(
        kl=mean(found.kl), kl_spread=Spread.of(found.kl), same_top=mean(found.same_top.astype(np.float64)),
        perplexity=ppl, base_perplexity=base, perplexity_ratio=exp_mean(found.nll - found.nll_base),
        perplexity_difference=Estimate(ppl.value - base.value, slope.error),
        correlation=float(np.corrcoef(found.nll, found.nll_base)[0, 1]) if moves else float("nan"),
        delta_p=mean(delta_p), rms_delta_p=root_mean_square(delta_p), delta_p_spread=Spread.of(delta_p),
        tokens=len(found.nll), chunks=chunks, context=context,
    )


def check_vocabularies(model: Model, base: Model) -> None:
    """Raises UsageError, naming a token, where two models do not mean the same by their token ids."""
    require_one_vocabulary(*((m.file.path, m.tokenizer, m.n_vocab) for m in (model, base)))


def require_one_vocabulary(*models: tuple[str, Tokenizer, int]) -> None:
    """Raises UsageError, naming a token, where two models do not mean the same by their token ids.

    models  of both: path, tokenizer and how many logits it has

    Tokens that fill up an embedding mean nothing, whatever they are called; a vocabulary may leave them out at its end.
    """
    paths = " and ".join(path for path, _, _ in models)
    (_, mine, size), (_, theirs, other) = models
    if size != other:
        raise UsageError(f"{paths} have {size} and {other} tokens; divergence is between models of one vocabulary")
    bos = [t.bos_id if t.add_bos else None for t in (mine, theirs)]
    if bos[0] != bos[1]:
        raise UsageError(f"{paths} begin a text with {bos[0]} and {bos[1]} (allowed: models of one vocabulary)")
    texts = [_meant(t, size) for t in (mine, theirs)]
    at = next((i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a != b), None)
    if at is not None:
        what = " and ".join("unused" if text[at] is None else repr(text[at]) for text in texts)
        problem = f"differ in their vocabularies: token {at} is {what}"
        raise UsageError(f"{paths} {problem} (allowed: models of one vocabulary)")


def _meant(tokenizer: Tokenizer, n_vocab: int) -> list[str | None]:
    """The texts of `n_vocab` tokens; None for those that are unused or that the tokenizer does not know."""
    found: list[str | None] = [*tokenizer.texts, *[None] * (n_vocab - tokenizer.n_vocab)]
    for i in tokenizer.unused_ids:
        found[i] = None
    return found
