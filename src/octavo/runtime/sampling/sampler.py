"""The sampler: from logits to the next token.

A sampler is a callable: logits [n_vocab] and the tokens so far in, a token id out. `make_sampler` chains the usual
filters in llama.cpp's order: penalties and biases, DRY, top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from secrets import randbits
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import GrammarError
from octavo.formats.spec import F32
from octavo.runtime.argument_checks import flag, integer, number, texts, wrong
from octavo.runtime.sampling.draw import DrawParams, chance, draw, uniform
from octavo.runtime.sampling.processors import (
    NEVER,
    Adjustments,
    LogitBias,
    LogitsProcessor,
    RepeatPenalty,
    ReplyPenalties,
    adjustments_of,
    suppress,
)
from octavo.runtime.sampling.token_counts import Ids
from octavo.runtime.sampling.top_k import MAX_CANDIDATES

if TYPE_CHECKING:
    from octavo.runtime.output.thinking import Thinking
    from octavo.runtime.sampling.banned_strings import BannedStrings
    from octavo.text import Tokenizer

Filter = Callable[[F32, Sequence[int]], F32]
"""logits [n_vocab], tokens so far -> logits; -inf for a token that is out."""

Sampler = Callable[[F32, Sequence[int]], int]
"""logits [n_vocab], tokens so far -> token."""

NOTHING_LEFT = "no token left to sample: the settings exclude all that the grammar allows"
MAX_LAST_N = (1 << 31) - 1
"""Of `repeat_last_n`: more tokens than any context has."""
DRY_BREAKERS = ("\n", ":", '"', "*")
"""Between sentences and what is set apart in them, as llama.cpp has them."""
MOST_TEXTS, MOST_TEXT = 64, 256
BLOCK = 64  # logits of which `largest` first looks at the maximum only


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens.

    temperature        logits are divided by it; 0 takes the most likely token (greedy)
    top_k              only the k most likely (0 or -1: all)
    top_p              only the most likely that together have this probability (1: all)
    min_p              only those at least this likely, relative to the most likely (0: all)
    repeat_penalty     logits of the last `repeat_last_n` tokens (-1: of all) are divided by it if positive, else
                       multiplied (1: off)
    presence_penalty   taken from the logit of each token that the reply has
    frequency_penalty  taken from it as often as the reply has the token
    logit_bias         added to the logits of these tokens; one with -100 is never chosen
    min_tokens         of a reply before it may end
    ignore_eos         never choose a token that ends a reply
    stop_token_ids     tokens that end a reply, besides the model's own
    seed               of the random numbers; None or -1 for a fresh one
    typical_p          only the tokens whose information is nearest to its mean, of this probability together (1: all)
    top_n_sigma        only tokens within this many standard deviations of the largest logit (0 or less: all)
    xtc_probability    how often all of the most likely tokens but the last of them are excluded (0: never)
    xtc_threshold      how likely those are at least (above 0.5: there are never two of them)
    dry_multiplier     DRY: how much is taken from a token that goes on with a repetition (0: off), times
    dry_base             this to the power of its length over
    dry_allowed_length   this, from which on
    dry_penalty_last_n   tokens that are looked at (-1: all)
    dry_sequence_breakers  texts that no repetition goes across
    banned_strings     texts that may not be in the reply, whatever the case of their letters a to z
    reasoning_budget   tokens of thinking, after which it is closed (-1: no limit)
    reasoning_budget_message  with which it is closed
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: Collection[int] = ()
    seed: int | None = None
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = DRY_BREAKERS
    banned_strings: Sequence[str] = ()
    reasoning_budget: int = -1
    reasoning_budget_message: str = ""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0, 100), ("top_p", 0, 1), ("min_p", 0, 1), ("repeat_penalty", 1e-3, 100),
            ("presence_penalty", -2, 2), ("frequency_penalty", -2, 2), ("typical_p", 0, 1), ("top_n_sigma", -100, 100),
            ("xtc_probability", 0, 1), ("xtc_threshold", 0, 1), ("dry_multiplier", 0, 100), ("dry_base", 1, 100),
        ):
            number(name, getattr(self, name), low, high)
        for name, low in (("top_k", -1), ("repeat_last_n", -1), ("min_tokens", 0), ("dry_allowed_length", 0),
                          ("dry_penalty_last_n", -1), ("reasoning_budget", -1)):
            integer(name, getattr(self, name), low)
        for name in ("dry_sequence_breakers", "banned_strings"):
            _few_texts(name, getattr(self, name))
        if not isinstance(self.reasoning_budget_message, str):
            raise wrong("reasoning_budget_message", self.reasoning_budget_message, "a string")
        flag("ignore_eos", self.ignore_eos)
        if not isinstance(self.logit_bias, Mapping):
            raise wrong("logit_bias", self.logit_bias, "a mapping of tokens to numbers")
        for token, value in self.logit_bias.items():
            integer("logit_bias", token, 0)
            number("logit_bias", value, -NEVER, NEVER)
        if isinstance(self.stop_token_ids, str) or not isinstance(self.stop_token_ids, Collection):
            raise wrong("stop_token_ids", self.stop_token_ids, "a list of tokens")
        for token in self.stop_token_ids:
            integer("stop_token_ids", token, 0)
        for name in ("top_p", "typical_p"):
            if getattr(self, name) == 0:
                raise wrong(name, 0, "above 0, up to 1")
        if self.seed is not None:
            integer("seed", self.seed, -1, (1 << 64) - 1)
        for name, other in (("top_k", 0), ("repeat_last_n", MAX_LAST_N), ("seed", None),
                            ("dry_penalty_last_n", MAX_LAST_N)):
            if getattr(self, name) == -1:
                object.__setattr__(self, name, other)


def _few_texts(name: str, value: object) -> None:
    found = texts(name, value)
    if isinstance(value, str) or len(found) > MOST_TEXTS or not all(0 < len(t.encode()) <= MOST_TEXT for t in found):
        raise wrong(name, value, f"up to {MOST_TEXTS} texts, each of 1 to {MOST_TEXT} bytes")


def top_k(k: int) -> Filter:
    """Keep the k most likely tokens."""

    def apply(logits: F32, tokens: Sequence[int]) -> F32:
        return logits if k >= len(logits) else _keep(logits, largest(logits, k))

    return apply


def largest(logits: F32, k: int) -> Ids:
    """Places of the k largest values, lowest place first.

    They lie in the k blocks with the largest maxima, so only the values of those are sorted.
    """
    n_blocked = len(logits) // BLOCK * BLOCK
    places = np.arange(len(logits))
    if n_blocked // BLOCK > k:
        maxima = logits[:n_blocked].reshape(-1, BLOCK).max(axis=1)
        best = np.argpartition(-maxima, k - 1)[:k]
        places = np.concatenate([places[:n_blocked].reshape(-1, BLOCK)[best].ravel(), places[n_blocked:]])
    kept = np.argpartition(-logits[places], k - 1)[:k] if k < len(places) else np.arange(len(places))
    return np.sort(places[kept])


def largest_first(logits: F32, k: int) -> Ids:
    """Places of the k largest values, the largest first, of equals the lower place first."""
    ids = largest(logits, k)
    return ids[np.argsort(-logits[ids], kind="stable")]


def top_p(p: float) -> Filter:
    """Keep the fewest most likely tokens whose probabilities add up to p (arXiv 1904.09751)."""

    def apply(logits: F32, tokens: Sequence[int]) -> F32:
        candidates = np.flatnonzero(logits > -np.inf)
        order = candidates[np.argsort(-logits[candidates], kind="stable")]
        cumulative = np.cumsum(probabilities(logits[order]))
        count = int(np.searchsorted(cumulative, p)) + 1
        return _keep(logits, order[:count])

    return apply


def min_p(p: float) -> Filter:
    """Keep tokens at least p times as likely as the most likely one (arXiv 2407.01082)."""

    def apply(logits: F32, tokens: Sequence[int]) -> F32:
        return np.where(logits >= logits.max() + np.float32(math.log(p)), logits, np.float32(-np.inf))

    return apply


def top_n_sigma(n: float) -> Filter:
    """Keep tokens within n standard deviations, of all logits that are left, of the largest (arXiv 2411.07641)."""

    def apply(logits: F32, tokens: Sequence[int]) -> F32:
        left = logits[logits > -np.inf].astype(np.float64)
        return np.where(logits >= left.max() - n * left.std(), logits, np.float32(-np.inf))

    return apply


def typical_p(p: float) -> Filter:
    """Keep the fewest tokens, those whose information is nearest to its mean first, of more than p together (arXiv
    2202.00666)."""

    def apply(logits: F32, tokens: Sequence[int]) -> F32:
        candidates = np.flatnonzero(logits > -np.inf)
        shares = probabilities(logits[candidates])
        with np.errstate(divide="ignore"):
            information = np.where(shares > 0, -np.log(shares), np.inf)
        mean = float(np.dot(shares[shares > 0], information[shares > 0]))
        order = np.argsort(np.abs(information - mean), kind="stable")
        count = int(np.searchsorted(np.cumsum(shares[order]), p, side="right")) + 1
        return _keep(logits, candidates[order[:count]])

    return apply


def xtc(probability: float, threshold: float, seed: int) -> Filter:
    """Exclude all tokens that are at least as likely as the threshold but the least likely of them, with a probability
    ("exclude top choices", by p-e-w, https://github.com/oobabooga/text-generation-webui/pull/6335)."""

    def apply(logits: F32, tokens: Sequence[int]) -> F32:
        if chance(seed, len(tokens)) >= probability:
            return logits
        candidates = np.flatnonzero(logits > -np.inf)
        order = candidates[np.argsort(-logits[candidates], kind="stable")]
        count = int((probabilities(logits[order]) >= threshold).sum())
        return _keep(logits, order[max(count - 1, 0) :])

    return apply


def temperature(t: float) -> Filter:
    """Divide logits by t, the largest being 0, so that no temperature is too small."""

    def apply(logits: F32, tokens: Sequence[int]) -> F32:
        with np.errstate(over="ignore"):
            result: F32 = (logits - logits.max()) / np.float32(max(t, 1e-30))
        return result

    return apply


def _keep(logits: F32, ids: Ids) -> F32:
    out = np.full_like(logits, -np.inf)
    out[ids] = logits[ids]
    return out


def probabilities(logits: F32) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """softmax(logits), in float64."""
    e = np.exp(logits.astype(np.float64) - logits.max())
    result: np.ndarray[tuple[int], np.dtype[np.float64]] = e / e.sum()
    return result


@dataclass(frozen=True)
class ChainSampler:
    """A Sampler: logits processors, filters for the `k` largest logits (0: all), and a draw from what these leave.

    before, after, last  more filters, before all others, after the `k` largest, and before the temperature
    banned               watches the reply, where there are texts that it may not have

    It samples the same token again where tokens and logits are the same.
    """

    processors: tuple[LogitsProcessor, ...]
    draw: DrawParams
    before: tuple[Filter, ...] = ()
    after: tuple[Filter, ...] = ()
    last: tuple[Filter, ...] = ()
    banned: BannedStrings | None = None

    @cached_property
    def k(self) -> int:
        return self.draw.k

    @cached_property
    def in_top_k(self) -> bool:
        """Whether no more logits are drawn from than are found on a device."""
        return 0 < self.k <= MAX_CANDIDATES and not (self.before or self.after or self.last)

    @cached_property
    def suppressed(self) -> frozenset[int] | None:
        """Tokens that may not be sampled, where nothing else is done to logits; None where more is."""
        sets = [processor.suppressed for processor in self.processors]
        return None if None in sets else frozenset().union(*filter(None, sets))

    @cached_property
    def is_argmax(self) -> bool:
        """Whether the argmax of unchanged logits is taken, unless it is suppressed."""
        return self.k == 1 and self.suppressed is not None

    def adjustments(self, tokens: Sequence[int]) -> Adjustments:
        """What the logits processors do."""
        return adjustments_of([self.processors], [tokens])[0]

    def __call__(self, logits: F32, tokens: Sequence[int]) -> int:
        logits = self.adjustments(tokens)(logits)
        if self.processors and logits.max() == -np.inf:
            raise GrammarError(NOTHING_LEFT)
        if self.k == 1:
            return int(logits.argmax())
        if not self.in_top_k:
            return self._among_many(logits, tokens)
        ids = largest_first(logits, self.k)  # from here on only these are looked at, not the whole vocabulary
        return int(ids[draw(logits[None, ids], [self.draw], [len(tokens)])[0]])

    def left(self, logits: F32, tokens: Sequence[int]) -> F32:
        """Logits that the token is drawn by, -inf for those that the settings exclude."""
        return self._filtered(self.adjustments(tokens)(logits), tokens)

    def _filtered(self, logits: F32, tokens: Sequence[int]) -> F32:
        for apply in (*self.before, *([top_k(self.k)] if self.k else ()), *self._later_filters()):
            logits = apply(logits, tokens)
        return logits

    def _among_many(self, logits: F32, tokens: Sequence[int]) -> int:
        for apply in self.before:
            logits = apply(logits, tokens)
        ids = largest(logits, self.k) if 0 < self.k < len(logits) else np.arange(len(logits))
        logits = logits[ids]  # from here on only these are looked at
        for apply in self._later_filters():
            logits = apply(logits, tokens)
        candidates = np.flatnonzero(logits > -np.inf)
        cumulative = np.cumsum(probabilities(logits[candidates]))
        drawn = uniform(self.draw.seed, len(tokens)) * cumulative[-1]
        at = int(np.searchsorted(cumulative, drawn, side="right"))
        return int(ids[candidates[min(at, len(candidates) - 1)]])

    def _later_filters(self) -> Iterator[Filter]:
        """Those behind the `k` largest."""
        yield from self.after
        if self.draw.top_p < 1:
            yield top_p(self.draw.top_p)
        if self.draw.min_p > 0:
            yield min_p(self.draw.min_p)
        yield from self.last
        yield temperature(self.draw.temperature)


def make_sampler(
    params: SamplingParams, *, n_prompt: int = 0, end_ids: Collection[int] = (), tokenizer: Tokenizer | None = None,
    thinking: Thinking | None = None,
) -> ChainSampler:
    """The sampler that `params` describes; with a seed it gives the same tokens every time.

    A reply begins after `n_prompt` tokens, and ends with one of `end_ids` or of the `stop_token_ids`. What looks at
    texts (DRY, banned strings, a budget for thinking) needs a tokenizer. Without `thinking` there is none to limit.
    """
    k = 1 if params.temperature == 0 else params.top_k
    seed = randbits(64) if params.seed is None else params.seed
    draw_params = DrawParams(k, params.top_p, params.min_p, params.temperature, seed)
    processors, banned = list(_processors(params, n_prompt, end_ids)), None
    if tokenizer is not None:
        processors += _of_texts(params, n_prompt, tokenizer, thinking)
        if params.banned_strings:
            from octavo.runtime.sampling.banned_strings import BannedStrings

            banned = BannedStrings(params.banned_strings, tokenizer)
            processors += banned.processors()
    more: dict[str, tuple[Filter, ...]] = {}
    if k != 1:  # of one token nothing is left to exclude
        if params.top_n_sigma > 0:
            more["before"] = (top_n_sigma(params.top_n_sigma),)
        if params.typical_p < 1:
            more["after"] = (typical_p(params.typical_p),)
        if params.xtc_probability > 0 and params.xtc_threshold <= 0.5:
            more["last"] = (xtc(params.xtc_probability, params.xtc_threshold, seed),)
    return ChainSampler(tuple(processors), draw_params, banned=banned, **more)


def _of_texts(
    params: SamplingParams, n_prompt: int, tokenizer: Tokenizer, thinking: Thinking | None
) -> Iterator[LogitsProcessor]:
    """The logits processors that look at texts, but for banned ones."""
    if params.dry_multiplier > 0 and params.dry_penalty_last_n:
        from octavo.runtime.sampling.dry import DryPenalty, breakers_of

        breakers = breakers_of(tokenizer, tuple(params.dry_sequence_breakers))
        yield DryPenalty(params.dry_multiplier, params.dry_base, params.dry_allowed_length, params.dry_penalty_last_n,
                         breakers)
    if params.reasoning_budget >= 0 and thinking is not None and not thinking.ended:
        from octavo.runtime.sampling.reasoning_budget import ReasoningBudget, closing

        ids = closing(tokenizer, params.reasoning_budget_message, thinking)
        yield ReasoningBudget(params.reasoning_budget, ids, thinking, tokenizer, n_prompt)


def _processors(params: SamplingParams, n_prompt: int, end_ids: Collection[int]) -> Iterator[LogitsProcessor]:
    """The logits processors that differ from doing nothing."""
    if params.repeat_penalty != 1:
        yield RepeatPenalty(params.repeat_penalty, params.repeat_last_n)
    if params.presence_penalty or params.frequency_penalty:
        yield ReplyPenalties(params.presence_penalty, params.frequency_penalty, n_prompt)
    if params.logit_bias:
        yield LogitBias(params.logit_bias)
    if params.ignore_eos and end_ids:
        yield suppress(end_ids, math.inf)
    ends = {*end_ids, *params.stop_token_ids}
    if params.min_tokens and ends:
        yield suppress(ends, n_prompt + params.min_tokens)
