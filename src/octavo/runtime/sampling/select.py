"""The choice of tokens after a step: from a few candidates, which are found where the logits are, or from all logits.

Which of the two makes no difference to the token. All logits of a row come to the host for settings that a few of them
do not do for, for log-probabilities of a request whose logits are changed, and for any other callable as a sampler.
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
from octavo.graph.plan import Begun
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.output.reply import LogProbs
from octavo.runtime.sampling.device_processors import LogitChanges
from octavo.runtime.sampling.draw import draw
from octavo.runtime.sampling.processors import NO_CHANGES, Changes, changes_of
from octavo.runtime.sampling.sampler import NOTHING_LEFT, ChainSampler, largest_first
from octavo.runtime.sampling.top_k import BEST, CANDIDATES, CHANGED, LOGITS, MAX_CANDIDATES, TOTAL
from octavo.runtime.scheduler.request import Constraint, Request, masked


@dataclass(slots=True)
class Chosen:
    """A token, and how likely it was, if that was asked for."""

    token: int
    logprobs: LogProbs | None = None


Choices = dict[Request, Chosen | Exception]

LEAST = -700.0
"""ln of a probability that is as good as none: exp of less is no normal number."""
FIRST: Mapping[Request, int] = {}


@dataclass(slots=True)
class Wanted:
    """A request that wants a token: the row of its logits, what changes these, and the mask of its constraint."""

    request: Request
    row: int
    changes: Changes = NO_CHANGES
    mask: AnyArray | None = None
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Few:
    """Candidates of some rows, largest first.

    broken  [n], how many logits are not finite
    places  int32 [n, k]
    values  float32 [n, k]
    """

    broken: AnyArray
    places: AnyArray
    values: F32

    @classmethod
    def of(cls, found: AnyArray, rows: Seq[int]) -> Few:
        """From what op `top_candidates` gives."""
        found, k = found if rows == list(range(len(found))) else found[rows], (found.shape[1] - 1) // 2
        return cls(found[:, 0], found[:, 1 : 1 + k], np.ascontiguousarray(found[:, 1 + k :]).view(np.float32))


class Chooser:
    """Computes steps of an engine, and chooses tokens, which are among the first `n_known` of the vocabulary."""

    def __init__(self, engine: Engine, n_known: int) -> None:
        self.engine, self.n_known = engine, n_known
        self._n_vocab = engine.model.hparams.n_vocab
        bits = np.zeros(-(-self._n_vocab // 32) * 32, np.uint8)
        bits[:n_known] = 1
        self._known: AnyArray = np.packbits(bits, bitorder="little").view(np.int32)
        self._words = -(-n_known // 32)

    def step(
        self, feeds: Seq[Feed], choosing: Seq[tuple[Request, int]], places: Mapping[Request, int] = FIRST
    ) -> Choices:
        """Compute feeds, and choose a token for each request after the feed of its number, or say why there is none.

        Of a feed with several outputs it is that of the request's place, from 0.

        The sequences get pages, but not yet their tokens. Raises what makes the step fail.
        """
        step = self.engine.filled(feeds)
        rows = list(accumulate([f.outputs for f in step], initial=0))
        asked = [(r, rows[i] + places[r] if places else rows[i]) for r, i in choosing]
        mixed = self.engine.fills and len(step[-1].tokens) != 1  # with prompts, filled up to sizes that repeat
        others = mixed or not self.engine.finds_candidates or [r for r, _ in asked if not r.likeliest]
        if asked and not others:
            return self._likeliest(step, asked)
        choices: Choices = {}
        wanted = list(self._wanted(asked, choices))
        few, whole, changes = self._divided(wanted)
        if not few and (whole or not (self.engine.fills and self.engine.finds_candidates)):
            logits = self.engine.compute(step)  # [outputs, n_vocab]
            return choices | {w.request: self._from_row(w, logits[w.row]) for w in whole}
        outputs = _outputs(few, mixed=mixed)
        begun = self.engine.begin(step, outputs, more=changes or None, check=False)
        found = dict(zip(outputs, begun.read(), strict=True))
        if outputs == (BEST,):
            choices |= self._best(few, found[BEST], begun)
        else:
            for changed in (False, True):
                some = [w for w in few if w.changed == changed]
                if some:
                    choices |= self._from_few(some, found, begun)
        return choices | {w.request: self._from_row(w, begun.row(LOGITS, w.row)[0]) for w in whole}

    def _likeliest(self, step: Seq[Feed], asked: Seq[tuple[Request, int]]) -> Choices:
        """Compute a step, and choose the likeliest tokens of requests with the numbers of their rows."""
        begun = self.engine.begin(step, (BEST,), check=False)
        choices = self.chosen_there(begun, BEST, asked)
        return choices or self._best([Wanted(r, row) for r, row in asked], begun.read()[0], begun)

    def chosen_there(self, begun: Begun, output: int, choosing: Seq[tuple[Request, int]]) -> Choices | None:
        """The tokens of a step with output BEST or DRAWN; None where one was among unknown ones, or is left out."""
        (found,) = begun.read()
        rows: list[list[int]] = found[[row for _, row in choosing], :3].tolist()
        if output == BEST:
            unknown = [token for broken, token, _ in rows if not broken and token >= self.n_known]
        else:
            unknown = [token for broken, token, others in rows if not broken and others > 0]
        if unknown:
            return None
        tokens = [(request, broken, token) for (request, _), (broken, token, _) in zip(choosing, rows, strict=True)]
        if [token for request, _, token in tokens if request.adjusts and request.leaves_out(token)]:
            return None
        return {r: self.engine.not_finite() if broken else Chosen(token) for r, broken, token in tokens}

    def _best(self, wanted: Seq[Wanted], found: AnyArray, begun: Begun) -> Choices:
        """The likeliest tokens, from output BEST of a step."""
        choices: Choices = {}
        for w, (broken, token, _) in zip(wanted, found[[w.row for w in wanted]].tolist(), strict=True):
            if broken:
                choices[w.request] = self.engine.not_finite()
            elif token < self.n_known and not w.request.leaves_out(token):
                choices[w.request] = Chosen(token)
            else:
                choices[w.request] = self._from_row(w, begun.row(LOGITS, w.row)[0])
        return choices

    def _wanted(self, choosing: Seq[tuple[Request, int]], choices: Choices) -> Iterable[Wanted]:
        """What is to be chosen; constraints that allow nothing are among the choices, as errors."""
        changes = _changes(choosing)
        for request, row in choosing:
            mask = self._mask(request.constraint) if request.constraint is not None else None
            found = changes[request] if request.adjusts else NO_CHANGES
            if mask is not None and isinstance(mask, Exception):
                choices[request] = mask
            else:
                yield Wanted(request, row, found, mask, mask is not None or (request.adjusts and len(found.ids) > 0))

    def _mask(self, constraint: Constraint) -> AnyArray | Exception:
        """The mask of a constraint for a row of logits, int32 [ceil(n_vocab / 32)], or why there is none."""
        mask = np.zeros_like(self._known)
        try:
            constraint.fill(mask[: self._words])
        except Exception as error:
            return error
        mask &= self._known
        return mask

    def _divided(self, wanted: Seq[Wanted]) -> tuple[list[Wanted], list[Wanted], LogitChanges]:
        """Those for which a few candidates do, the others, and what is done to the logits of the first."""
        changes = LogitChanges(len(self._known))
        few, whole, shared = list[Wanted](), list[Wanted](), Counter[int](w.row for w in wanted)
        for w in wanted:
            fits = changes.adjusted + len(w.changes.ids) <= self.engine.limits["adjusted"]
            if not self.engine.finds_candidates or not _takes_few(w) or (w.changed and (shared[w.row] > 1 or not fits)):
                whole.append(w)
                continue
            few.append(w)
            if w.changed:
                unknown = self.n_known < self._n_vocab
                changes.add(w.row, w.changes, self._known if w.mask is None and unknown else w.mask)
        return few, whole, changes

    def _from_few(self, wanted: Seq[Wanted], found: Mapping[int, AnyArray], begun: Begun) -> Choices:
        """Tokens of requests whose logits are all changed, or all not."""
        rows = [w.row for w in wanted]
        plain = found[CANDIDATES if CANDIDATES in found else BEST]
        few = Few.of(found[CHANGED] if wanted[0].changed else plain, rows)
        samplers = [cast(ChainSampler, w.request.sampler) for w in wanted]
        columns = [0] * len(wanted)
        if any(s.k != 1 for s in samplers):
            with np.errstate(invalid="ignore"):  # rows that are not finite are found below
                columns = draw(few.values, [s.draw for s in samplers], [len(w.request.tokens) for w in wanted])
        broken = plain[rows, 0].tolist()
        unknown = [top >= self.n_known for top in few.places.max(axis=1).tolist()]
        tokens = few.places[range(len(rows)), columns].tolist()
        left = [value > -np.inf for value in few.values[:, 0].tolist()]
        choices: Choices = {}
        for i, w in enumerate(wanted):
            if broken[i]:
                choices[w.request] = self.engine.not_finite()
            elif unknown[i] and not w.changed:
                choices[w.request] = self._from_row(w, begun.row(LOGITS, w.row)[0])
            elif not left[i]:
                choices[w.request] = GrammarError(NOTHING_LEFT)
            else:
                n = w.request.logprobs
                how = None if n is None else _logprobs(few, i, columns[i], n, float(found[TOTAL][w.row, 0]))
                choices[w.request] = _accepted(w.request, Chosen(tokens[i], how))
        return choices

    def _from_row(self, wanted: Wanted, logits: F32) -> Chosen | Exception:
        """A token from all logits [n_vocab] of a row."""
        request, logits = wanted.request, logits[: self.n_known]
        if not np.isfinite(logits).all():
            return self.engine.not_finite()
        allowed = logits if wanted.mask is None else masked(logits, wanted.mask)
        try:
            token = request.sampler(allowed, request.tokens)
        except Exception as error:
            return error
        return _accepted(request, Chosen(token, _how_likely(request, logits, allowed, token)))


def _changes(choosing: Seq[tuple[Request, int]]) -> dict[Request, Changes]:
    """What the samplers of requests do to their logits before anything else, found for all of them together."""
    samplers = {r: cast(ChainSampler, r.sampler) for r, _ in choosing if r.adjusts}
    if not samplers:
        return {}
    found = changes_of([s.before for s in samplers.values()], [r.tokens for r in samplers])
    return dict(zip(samplers, found, strict=True))


def _takes_few(wanted: Wanted) -> bool:
    """Whether a request's token is among candidates, of which nothing but these is asked."""
    sampler, n = wanted.request.sampler, wanted.request.logprobs
    among = isinstance(sampler, ChainSampler) and sampler.among_few
    of_all = wanted.changed or wanted.request.after_sampling
    return among and (n is None or (n <= MAX_CANDIDATES and not of_all))


def _outputs(few: Seq[Wanted], *, mixed: bool) -> tuple[int, ...]:
    """The outputs of a graph with candidates that requests want. Of steps with prompts it is the same, mostly, so that
    they are bound once."""
    changed, likely = any(w.changed for w in few), any(w.request.logprobs is not None for w in few)
    if not mixed and not changed and not likely and all(cast(ChainSampler, w.request.sampler).k == 1 for w in few):
        return (BEST,)
    return CANDIDATES, *((TOTAL,) if likely else ()), *((CHANGED,) if changed else ())


def _accepted(request: Request, chosen: Chosen) -> Chosen | Exception:
    """A choice, which the request's constraint goes on with."""
    try:
        if request.constraint is not None:
            request.constraint.accept(chosen.token)
    except Exception as error:
        return error
    return chosen


def _how_likely(request: Request, logits: F32, allowed: F32, token: int) -> LogProbs | None:
    """How likely a token was of logits, or of those that are left to its sampler."""
    n, sampler = request.logprobs, request.sampler
    if n is None or not (request.after_sampling and isinstance(sampler, ChainSampler)):
        return None if n is None else _logprobs_of_row(logits, token, n)
    left = sampler.left(allowed, request.tokens)
    found = _logprobs_of_row(left, token, min(n, int((left > -np.inf).sum())))
    return LogProbs(found.token, tuple(pair for pair in found.likely if pair[1] > LEAST))


def _logprobs(few: Few, row: int, column: int, n: int, total: float) -> LogProbs:
    values = few.values[row].astype(np.float64) - total
    return LogProbs(float(values[column]), tuple(zip(few.places[row, :n].tolist(), values[:n].tolist(), strict=True)))


def _logprobs_of_row(logits: F32, token: int, n: int) -> LogProbs:
    top = logits.max()
    values = logits - (top + np.log(np.exp((logits - top).astype(np.float64)).sum()))
    places = largest_first(logits, n) if n else np.empty(0, np.int64)
    return LogProbs(float(values[token]), tuple((int(i), float(values[i])) for i in places))
