"""EngineCore: requests in, tokens out. Each step computes what the scheduler chose, for all requests under way."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from octavo.errors import UsageError
from octavo.formats.spec import F32, AnyArray
from octavo.jit.clock import clock
from octavo.runtime.batch import Feed
from octavo.runtime.buckets import replies_for
from octavo.runtime.candidates import BEST, CANDIDATES
from octavo.runtime.device_sampling import DeviceSampler
from octavo.runtime.engine import Engine
from octavo.runtime.pace import Pace
from octavo.runtime.request import LogProbs, Output, Request, constrained
from octavo.runtime.sampling import largest
from octavo.runtime.scheduler import Scheduler, StepPlan, feeds_of

log = logging.getLogger("octavo")


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


class EngineCore:
    """Makes replies to many requests at once with an engine, which others may use between two steps.

    n_known      tokens of the vocabulary: what logits there are beyond these is never chosen
    itl_target   seconds from one token of a reply to the next, which prompts of others may not lengthen; 0: no bound

    `step` is for one thread at a time. Any thread may `add` and `cancel`.
    """

    def __init__(self, engine: Engine, *, n_known: int | None = None, itl_target: float = 0.0) -> None:
        self.engine, self.device = engine, DeviceSampler(engine)
        self.n_known = engine.model.hparams.n_vocab if n_known is None else n_known
        self.scheduler = Scheduler(
            engine.pool, engine.prefixes, Pace(engine.config.n_batch, itl_target), engine.n_ctx,
            engine.config.max_sequences,
        )  # fmt: skip
        self.draining = False
        self._counts: Counter[str] = Counter()
        self._sizes: Counter[tuple[int, int, int]] = Counter()

    def add(self, request: Request) -> None:
        """Take a request and its siblings. Raises UsageError or ContextFullError for one that can't be computed."""
        if self.draining:
            raise UsageError("no more requests are taken")
        self.engine.require_tokens(request.prompt)
        with self.engine.lock:
            self.scheduler.add(request)

    def cancel(self, request: Request) -> None:
        """End a request, which no later step has; the next one says so."""
        request.cancelled = True

    def step(self) -> list[Output]:
        """Compute a step, unless there is nothing to do: the tokens that were chosen, and which requests ended."""
        with self.engine.lock:
            plan = self.scheduler.plan()
            if not plan.parts:
                return list(plan.ended)
            start = clock()
            chosen, failed, asked = self._chosen(plan)
            if not self._prepares(plan):
                self.scheduler.pace.seen(plan.replies, plan.chunk, clock() - start)
            outputs = self.scheduler.commit(plan, chosen, failed)
            self._counts.update(steps=1, generated=len(chosen))
        return [*plan.ended, *(replace(o, logprobs=asked.get(o.request)) if asked else o for o in outputs)]

    def _prepares(self, plan: StepPlan) -> bool:
        """Whether a step's time is that of making ready for its size: where it is captured, at its second time."""
        size = replies_for(plan.replies), plan.chunk, len(plan.parts) - plan.replies
        self._sizes[size] += 1
        return self.engine.fills and self._sizes[size] <= 2

    def drain(self) -> Iterator[Output]:
        """Take no more requests, and bring those that there are to their ends."""
        self.draining = True
        while not self.scheduler.idle:
            yield from self.step()

    def _chosen(self, plan: StepPlan) -> tuple[dict[Request, int], dict[Request, Exception], dict[Request, LogProbs]]:
        """The next token of each request that has one, why others have none, and how likely tokens were."""
        feeds = [Feed(sequence, tokens, int(wanted)) for sequence, tokens, wanted in feeds_of(plan)]
        found = self._rows(feeds, self._k(plan))
        failed = {r: row for (r, _), row in zip(plan.parts, found, strict=True) if isinstance(row, Exception)}
        chosen, asked = {}, {}
        for request, i in plan.choosing:
            row = found[i]
            try:
                if isinstance(row, Exception):
                    raise row
                assert row is not None
                chosen[request] = row.choose(request)
                if request.logprobs is not None:
                    asked[request] = row.logprobs(chosen[request], request.logprobs)
            except Exception as error:
                failed[request] = error
        return chosen, failed, asked

    def _k(self, plan: StepPlan) -> int | None:
        """How many of the largest logits are enough for all; None where all logits are wanted."""
        ks = [_device_k(r) for r, _ in plan.choosing]
        if not ks or None in ks:
            return None
        k = max(k for k in ks if k is not None)
        return k if self.device.finds(k) else None

    def _rows(self, feeds: Seq[Feed], k: int | None) -> list[Row | Exception | None]:
        """For each feed what a token is chosen from, None where none is wanted.

        Where a step fails each of its feeds is computed alone, so that only those fail that do.
        """
        try:
            step = self.engine.filled(feeds)
            rows = iter(self._computed(step, k))
            found = [next(rows) if feed.outputs else None for feed in step]
            return [row if feed.outputs else None for feed, row in zip(feeds, found, strict=False)]
        except Exception as error:
            if len(feeds) == 1:
                return [error]
            log.warning("a step of %d requests failed, which are computed one by one: %s", len(feeds), error)
            return [row for feed in feeds for row in self._rows([feed], k)]

    def _computed(self, feeds: Seq[Feed], k: int | None) -> list[Row | Exception]:
        """A row for each output of a step."""
        if k is None:
            rows = self.engine.compute(feeds)  # [outputs, n_vocab]
            return [
                Row(None, logits[: self.n_known]) if np.isfinite(logits).all() else self.engine.not_finite()
                for logits in rows
            ]
        output = BEST if k == 1 else CANDIDATES
        (found,) = self.engine.begin(feeds, (output,), check=False).read()  # [outputs, 1 + 2 * width]
        width = (found.shape[1] - 1) // 2
        places, values = found[:, 1 : 1 + width], np.ascontiguousarray(found[:, 1 + width :]).view(np.float32)
        known = places < self.n_known
        if width < k or (known.sum(axis=1) < k).any():  # too few that are tokens: a rare step, computed once more
            return self._computed(feeds, None)
        return [
            self.engine.not_finite() if row[0] else Row(row[1 : 1 + width][ok], logits[ok])
            for row, logits, ok in zip(found, values, known, strict=True)
        ]

    def stats(self) -> Stats:
        """Counts as they are now."""
        scheduler, pool, counts = self.scheduler, self.engine.pool, self._counts
        return Stats(
            len(scheduler.running), len(scheduler.waiting), pool.empty, pool.cached, pool.held, counts["steps"],
            scheduler.preemptions, scheduler.prompt_tokens, scheduler.cached_tokens, counts["generated"],
        )  # fmt: skip


def _device_k(request: Request) -> int | None:
    """How many of the largest logits a request's token is chosen from; None where it takes all."""
    if request.logprobs is not None or request.constraint is not None:
        return None
    return getattr(request.sampler, "device_k", None)


@dataclass(frozen=True)
class Row:
    """Logits after a token: all of them, or the largest ones and their places, largest first."""

    places: AnyArray | None
    logits: F32

    def choose(self, request: Request) -> int:
        """The token that a request's sampler takes."""
        if self.places is None:
            return self._among_all(request)
        k = _device_k(request)
        if k == 1:
            return int(self.places[0])
        places = self.places[:k]
        order = np.argsort(places)
        return int(places[order][request.sampler(self.logits[:k][order], request.tokens)])

    def _among_all(self, request: Request) -> int:
        """As `choose`, where all logits are there; of the tokens that the request's constraint allows."""
        if request.constraint is None:
            return request.sampler(self.logits, request.tokens)
        return constrained(request.sampler, request.constraint)(self.logits, request.tokens)

    def logprobs(self, token: int, n: int) -> LogProbs:
        """How likely a token is, and the n likeliest ones; of all logits."""
        assert self.places is None
        top = self.logits.max()
        values = self.logits - (top + np.log(np.exp((self.logits - top).astype(np.float64)).sum()))
        places = largest(self.logits, n) if n else np.empty(0, np.int64)
        places = places[np.argsort(-values[places], kind="stable")]
        return LogProbs(float(values[token]), tuple((int(i), float(values[i])) for i in places))
