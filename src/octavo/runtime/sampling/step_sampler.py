"""Sampling after a step: from the top k, which are found on the device, or from all logits of a row.

Which of the two makes no difference to the token. All logits of a row come to the host for settings that need more than
the top k, for log-probabilities of a request whose logits are adjusted, and for any other callable as a sampler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import numpy as np

from octavo.errors import GrammarError
from octavo.formats.spec import F32, AnyArray
from octavo.graph.plan import StepHandle
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.output.reply import LogProbs
from octavo.runtime.sampling.draw import draw
from octavo.runtime.sampling.processors import NO_ADJUSTMENTS, Adjustments, DeviceAdjustments, adjustments_of
from octavo.runtime.sampling.sampler import NOTHING_LEFT, ChainSampler, largest_first
from octavo.runtime.sampling.top_k import BEST, CANDIDATES, CHANGED, LOGITS, MAX_CANDIDATES, TOTAL
from octavo.runtime.scheduler.constraint import Constraint, masked
from octavo.runtime.scheduler.request import Request


@dataclass(slots=True)
class SampledToken:
    """A token, and its log-probabilities, if these were asked for."""

    token: int
    logprobs: LogProbs | None = None


SampledTokens = dict[Request, SampledToken | Exception]

MIN_LOGPROB = -700.0
"""exp of less is not a normal number, and as good as 0."""
FIRST: Mapping[Request, int] = {}


@dataclass(slots=True)
class SampleRequest:
    """A request that gets a token: the row of its logits, their adjustments, and the mask of its constraint."""

    request: Request
    row: int
    adjustments: Adjustments = NO_ADJUSTMENTS
    mask: AnyArray | None = None
    adjusted: bool = False


@dataclass(frozen=True, slots=True)
class TopK:
    """The k largest logits of some rows, largest first.

    broken  [n], how many logits are not finite
    places  int32 [n, k]
    values  float32 [n, k]
    """

    broken: AnyArray
    places: AnyArray
    values: F32

    @classmethod
    def of(cls, found: AnyArray, rows: Seq[int]) -> TopK:
        """From what op `top_candidates` gives."""
        found, k = found if rows == list(range(len(found))) else found[rows], (found.shape[1] - 1) // 2
        return cls(found[:, 0], found[:, 1 : 1 + k], np.ascontiguousarray(found[:, 1 + k :]).view(np.float32))


class StepSampler:
    """Computes steps of an engine and samples tokens, which are among the first `n_known` of the vocabulary."""

    def __init__(self, engine: Engine, n_known: int) -> None:
        self.engine, self.n_known = engine, n_known
        self._n_vocab = engine.model.hparams.n_vocab
        bits = np.zeros(-(-self._n_vocab // 32) * 32, np.uint8)
        bits[:n_known] = 1
        self._known: AnyArray = np.packbits(bits, bitorder="little").view(np.int32)
        self._words = -(-n_known // 32)

    def step(
        self, feeds: Seq[Feed], sampling: Seq[tuple[Request, int]], positions: Mapping[Request, int] = FIRST
    ) -> SampledTokens:
        """Compute feeds, and sample a token for each request after the feed of its number, or say why there is none.

        Of a feed with several outputs the one at the request's position counts, from 0.

        The sequences get pages, but not yet their tokens. Raises what makes the step fail.
        """
        step = self.engine.padded(feeds)
        starts = list(accumulate([f.outputs for f in step], initial=0))
        rows = [(r, starts[i] + positions[r] if positions else starts[i]) for r, i in sampling]
        mixed = self.engine.pads and len(step[-1].tokens) != 1  # with prompts, padded to sizes that repeat
        others = mixed or not self.engine.finds_candidates or [r for r, _ in rows if not r.is_greedy]
        if rows and not others:
            return self._greedy(step, rows)
        sampled: SampledTokens = {}
        top_k, full, adjustments = self._split(list(self._sample_requests(rows, sampled)))
        if not top_k and (full or not (self.engine.pads and self.engine.finds_candidates)):
            logits = self.engine.compute(step)  # [outputs, n_vocab]
            return sampled | {s.request: self._from_row(s, logits[s.row]) for s in full}
        outputs = _outputs(top_k, mixed=mixed)
        handle = self.engine.launch(step, outputs, more=adjustments or None, check=False)
        found = dict(zip(outputs, handle.read(), strict=True))
        if outputs == (BEST,):
            sampled |= self._argmax(top_k, found[BEST], handle)
        else:
            for adjusted in (False, True):
                some = [s for s in top_k if s.adjusted == adjusted]
                if some:
                    sampled |= self._from_top_k(some, found, handle)
        return sampled | {s.request: self._from_row(s, handle.row(LOGITS, s.row)[0]) for s in full}

    def _greedy(self, step: Seq[Feed], rows: Seq[tuple[Request, int]]) -> SampledTokens:
        """Compute a step, and take the argmax of each request's row."""
        handle = self.engine.launch(step, (BEST,), check=False)
        sampled = self.sampled_on_device(handle, BEST, rows)
        return sampled or self._argmax([SampleRequest(r, row) for r, row in rows], handle.read()[0], handle)

    def argmax(self, feeds: Seq[Feed]) -> list[SampledToken | Exception] | None:
        """Compute feeds, and take the argmax after each of their outputs: all that greedy requests need which suppress
        no token. None where one is not in the vocabulary, or steps find no argmax."""
        step = self.engine.padded(feeds)
        if not self.engine.finds_candidates or (self.engine.pads and len(step[-1].tokens) != 1):
            return None
        found = self.engine.launch(step, (BEST,), check=False).read()[0][: sum(f.outputs for f in feeds)].tolist()
        if any(token >= self.n_known for broken, token, _ in found if not broken):
            return None
        return [self.engine.not_finite() if broken else SampledToken(token) for broken, token, _ in found]

    def sampled_on_device(
        self, handle: StepHandle, output: int, sampling: Seq[tuple[Request, int]]
    ) -> SampledTokens | None:
        """The tokens of a step with output BEST or DRAWN; None where one is unknown or suppressed."""
        (found,) = handle.read()
        rows: list[list[int]] = found[[row for _, row in sampling], :3].tolist()
        if output == BEST:
            unknown = [token for broken, token, _ in rows if not broken and token >= self.n_known]
        else:
            unknown = [token for broken, token, others in rows if not broken and others > 0]
        if unknown:
            return None
        tokens = [(request, broken, token) for (request, _), (broken, token, _) in zip(sampling, rows, strict=True)]
        if [token for request, _, token in tokens if request.has_processors and request.suppresses(token)]:
            return None
        return {r: self.engine.not_finite() if broken else SampledToken(token) for r, broken, token in tokens}

    def _argmax(self, requests: Seq[SampleRequest], found: AnyArray, handle: StepHandle) -> SampledTokens:
        """The argmax of each row, from output BEST of a step."""
        sampled: SampledTokens = {}
        for s, (broken, token, _) in zip(requests, found[[s.row for s in requests]].tolist(), strict=True):
            if broken:
                sampled[s.request] = self.engine.not_finite()
            elif token < self.n_known and not s.request.suppresses(token):
                sampled[s.request] = SampledToken(token)
            else:
                sampled[s.request] = self._from_row(s, handle.row(LOGITS, s.row)[0])
        return sampled

    def _sample_requests(
        self, sampling: Seq[tuple[Request, int]], failed: SampledTokens
    ) -> Iterable[SampleRequest]:
        """What to sample; a constraint that allows nothing has its error put into `failed`."""
        adjustments = _adjustments(sampling)
        for request, row in sampling:
            mask = self._mask(request.constraint) if request.constraint is not None else None
            found = adjustments[request] if request.has_processors else NO_ADJUSTMENTS
            if mask is not None and isinstance(mask, Exception):
                failed[request] = mask
            else:
                adjusted = mask is not None or (request.has_processors and len(found.ids) > 0)
                yield SampleRequest(request, row, found, mask, adjusted)

    def _mask(self, constraint: Constraint) -> AnyArray | Exception:
        """The mask of a constraint for a row of logits, int32 [ceil(n_vocab / 32)], or why there is none."""
        mask = np.zeros_like(self._known)
        try:
            constraint.fill(mask[: self._words])
        except Exception as error:
            return error
        mask &= self._known
        return mask

    def _split(
        self, requests: Seq[SampleRequest]
    ) -> tuple[list[SampleRequest], list[SampleRequest], DeviceAdjustments]:
        """Those that the top k suffice for, the others, and the adjustments of the first."""
        adjustments = DeviceAdjustments(len(self._known))
        top_k, full, sharing = list[SampleRequest](), list[SampleRequest](), Counter[int](s.row for s in requests)
        for s in requests:
            fits = adjustments.adjusted + len(s.adjustments.ids) <= self.engine.limits["adjusted"]
            alone = not s.adjusted or (sharing[s.row] == 1 and fits)
            if not self.engine.finds_candidates or not _needs_top_k_only(s) or not alone:
                full.append(s)
                continue
            top_k.append(s)
            if s.adjusted:
                unknown = self.n_known < self._n_vocab
                adjustments.add(s.row, s.adjustments, self._known if s.mask is None and unknown else s.mask)
        return top_k, full, adjustments

    def _from_top_k(
        self, requests: Seq[SampleRequest], found: Mapping[int, AnyArray], handle: StepHandle
    ) -> SampledTokens:
        """Tokens of requests whose logits are all adjusted, or all not."""
        rows = [s.row for s in requests]
        plain = found[CANDIDATES if CANDIDATES in found else BEST]
        top_k = TopK.of(found[CHANGED] if requests[0].adjusted else plain, rows)
        samplers = [cast(ChainSampler, s.request.sampler) for s in requests]
        columns = [0] * len(requests)
        if any(s.k != 1 for s in samplers):
            with np.errstate(invalid="ignore"):  # rows that are not finite are found below
                columns = draw(top_k.values, [s.draw for s in samplers], [len(s.request.tokens) for s in requests])
        broken = plain[rows, 0].tolist()
        unknown = [top >= self.n_known for top in top_k.places.max(axis=1).tolist()]
        tokens = top_k.places[range(len(rows)), columns].tolist()
        left = [value > -np.inf for value in top_k.values[:, 0].tolist()]
        sampled: SampledTokens = {}
        for i, s in enumerate(requests):
            if broken[i]:
                sampled[s.request] = self.engine.not_finite()
            elif unknown[i] and not s.adjusted:
                sampled[s.request] = self._from_row(s, handle.row(LOGITS, s.row)[0])
            elif not left[i]:
                sampled[s.request] = GrammarError(NOTHING_LEFT)
            else:
                n = s.request.logprobs
                logprobs = None if n is None else _logprobs(top_k, i, columns[i], n, float(found[TOTAL][s.row, 0]))
                sampled[s.request] = _accepted(s.request, SampledToken(tokens[i], logprobs))
        return sampled

    def _from_row(self, sample: SampleRequest, logits: F32) -> SampledToken | Exception:
        """A token from all logits [n_vocab] of a row."""
        request, logits = sample.request, logits[: self.n_known]
        if not np.isfinite(logits).all():
            return self.engine.not_finite()
        allowed = logits if sample.mask is None else masked(logits, sample.mask)
        try:
            token = request.sampler(allowed, request.tokens)
        except Exception as error:
            return error
        return _accepted(request, SampledToken(token, _row_logprobs(request, logits, allowed, token)))


def _adjustments(sampling: Seq[tuple[Request, int]]) -> dict[Request, Adjustments]:
    """What the logits processors of requests do, found for all of them together."""
    samplers = {r: cast(ChainSampler, r.sampler) for r, _ in sampling if r.has_processors}
    if not samplers:
        return {}
    found = adjustments_of([s.processors for s in samplers.values()], [r.tokens for r in samplers])
    return dict(zip(samplers, found, strict=True))


def _needs_top_k_only(sample: SampleRequest) -> bool:
    """Whether a request's token, and all else that it asks for, follows from the top k."""
    sampler, n = sample.request.sampler, sample.request.logprobs
    in_top_k = isinstance(sampler, ChainSampler) and sampler.in_top_k
    other_logprobs = sample.adjusted or sample.request.after_sampling
    return in_top_k and (n is None or (n <= MAX_CANDIDATES and not other_logprobs))


def _outputs(requests: Seq[SampleRequest], *, mixed: bool) -> tuple[int, ...]:
    """The outputs of the graph that requests need. Of steps with prompts they are mostly the same, so that these are
    bound once."""
    adjusted, logprobs = any(s.adjusted for s in requests), any(s.request.logprobs is not None for s in requests)
    greedy = all(cast(ChainSampler, s.request.sampler).k == 1 for s in requests)
    if not mixed and not adjusted and not logprobs and greedy:
        return (BEST,)
    return CANDIDATES, *((TOTAL,) if logprobs else ()), *((CHANGED,) if adjusted else ())


def _accepted(request: Request, sampled: SampledToken) -> SampledToken | Exception:
    """A token, once the request's constraint has accepted it."""
    try:
        if request.constraint is not None:
            request.constraint.accept(sampled.token)
    except Exception as error:
        return error
    return sampled


def _row_logprobs(request: Request, logits: F32, allowed: F32, token: int) -> LogProbs | None:
    """Log-probabilities from logits, or from those that are left after its sampler's settings."""
    n, sampler = request.logprobs, request.sampler
    if n is None or not (request.after_sampling and isinstance(sampler, ChainSampler)):
        return None if n is None else _logprobs_of_row(logits, token, n)
    left = sampler.left(allowed, request.tokens)
    found = _logprobs_of_row(left, token, min(n, int((left > -np.inf).sum())))
    return LogProbs(found.token, tuple(pair for pair in found.likely if pair[1] > MIN_LOGPROB))


def _logprobs(top_k: TopK, row: int, column: int, n: int, total: float) -> LogProbs:
    values = top_k.values[row].astype(np.float64) - total
    return LogProbs(float(values[column]), tuple(zip(top_k.places[row, :n].tolist(), values[:n].tolist(), strict=True)))


def _logprobs_of_row(logits: F32, token: int, n: int) -> LogProbs:
    top = logits.max()
    values = logits - (top + np.log(np.exp((logits - top).astype(np.float64)).sum()))
    places = largest_first(logits, n) if n else np.empty(0, np.int64)
    return LogProbs(float(values[token]), tuple((int(i), float(values[i])) for i in places))
