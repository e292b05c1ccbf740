"""EngineCore: requests in, tokens out. Each step computes what the scheduler picks, for all running requests."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.errors import UsageError
from octavo.jit.clock import clock
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.cache.prefault import SHARE, PagePrefault
from octavo.runtime.engine.captured_sizes import PROMPTS, TILE, StepSize
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.start_record import StartRecord, record_of
from octavo.runtime.engine.stats import Stats
from octavo.runtime.engine.warm_up import RUNS, WarmUp
from octavo.runtime.grammar.deadlines import IDLE_S, wait_for, wait_while_due
from octavo.runtime.sampling.step_sampler import SampledToken, SampledTokens, StepSampler
from octavo.runtime.sampling.top_k import CANDIDATES, DRAWN
from octavo.runtime.scheduler.async_scheduling import AsyncScheduler, InFlightStep
from octavo.runtime.scheduler.prefill_budget import MIN_CHUNK, PrefillBudget
from octavo.runtime.scheduler.request import Request, RequestOutput, State
from octavo.runtime.scheduler.scheduler import ScheduledStep, Scheduler
from octavo.runtime.speculation.draft_model import DraftModel
from octavo.runtime.speculation.drafter import Drafter
from octavo.runtime.speculation.layered_drafter import head_drafter
from octavo.runtime.speculation.verification import Drafts, Speculator

if TYPE_CHECKING:
    from octavo.runtime.cache.tiers.prefix_tiers import PrefixTiers

log = logging.getLogger("octavo")

PAUSE = 0.02
"""Seconds between checks for compiled kernels when there is nothing else to do."""


class EngineCore:
    """Makes replies to many requests at once with an engine, which others may use between two steps.

    n_known     tokens of the vocabulary: logits beyond these are never sampled
    itl_target  target for the seconds between two tokens of a reply while prompts of others are computed; 0: none
    draft       the engine of a smaller model of the same vocabulary, which drafts replies
    head        that of a head of `engine`'s model, which drafts them before that

    `step` is for one thread at a time. Any thread may `add` and `cancel`.
    """

    def __init__(
        self, engine: Engine, *, n_known: int | None = None, itl_target: float = 0.0, draft: Engine | None = None,
        head: Engine | None = None,
    ) -> None:
        self.engine = engine
        self.n_known = engine.model.hparams.n_vocab if n_known is None else n_known
        self.sampler = StepSampler(engine, self.n_known)
        budget = PrefillBudget(engine.config.n_batch, itl_target, TILE if engine.pads else MIN_CHUNK)
        self.scheduler = Scheduler(engine.pool, engine.prefixes, budget, engine.n_ctx, engine.config.max_sequences)
        engine.pool.call_when_short(self._make_room)
        self.async_scheduler = AsyncScheduler(self.scheduler, self.sampler)
        how = engine.config.speculate
        lookup, drafters = how in ("lookup", "auto"), list[Drafter]()
        if head is not None and how in ("mtp", "draft", "auto"):
            drafters.append(head_drafter(head, self.n_known))
        if draft is not None and how in ("draft", "auto"):
            drafters.append(DraftModel(draft, self.n_known))
        # On a GPU steps of several tokens round states otherwise than those of one.
        speculates = (lookup or drafters) and not (engine.pool.states is not None and engine.on_device)
        self.speculator = Speculator(self.sampler, budget, drafters, lookup=lookup) if speculates else None
        self.draining = False
        self.warming: WarmUp | None = None
        """Captures sizes of steps in advance, as long as some are missing."""
        self.record: StartRecord | None = None
        self._in_flight = deque[InFlightStep]()
        self._last = 0.0
        self._prefault: PagePrefault | None = None
        self._counts: Counter[str] = Counter()
        self._sizes: Counter[tuple[int, int, int]] = Counter()

    def add(self, request: Request) -> None:
        """Take a request and its siblings. Raises UsageError or ContextFullError for one that can't be computed."""
        if self.draining:
            raise UsageError("no more requests are taken")
        self.engine.require_tokens(request.prompt)
        with self.engine.lock:
            self.scheduler.add(request)

    def use_tiers(self, tiers: PrefixTiers) -> None:
        """Keep prefixes beyond the engine's pages, and bring them back, from now on."""
        from octavo.runtime.cache.tiers.restore import Restorer

        with self.engine.lock:
            self.engine.load()
            self.scheduler.restorer = Restorer(tiers)
            self.engine.prefixes.on_evict = tiers.evicted

    def close(self) -> None:
        """Write what is left to keep of prefixes."""
        if self.scheduler.restorer is not None:
            self.scheduler.restorer.tiers.close()

    def warm_up(self) -> None:
        """Capture all sizes of steps in advance, where steps are captured: it takes some seconds."""
        with self.engine.lock:
            if self.warming is None:
                self.begin_warm_up()
            if self.warming is not None:
                self.warming.finish()
                self.warming = None
                self.remember()

    def begin_warm_up(self) -> None:
        """Capture the sizes that any step can be padded to; `go_on_warming` captures the others."""
        if not self.engine.pads or not self.engine.finds_candidates:
            return
        with self.engine.lock:
            on_device = self.engine.draws and self.engine.supports_async and self.speculator is None
            output = DRAWN if on_device else CANDIDATES
            self.record = record_of(self.engine)
            self.warming = WarmUp(self.engine, self.n_known, output, self._add_captured, self.record)
            self.warming.begin()

    def go_on_warming(self) -> float | None:
        """Capture a little more: seconds after which there may be more to do, None for never.

        While there are requests, sizes that their steps missed come first, in a small part of the time.
        """
        if self.warming is None:
            return None
        with self.engine.lock:
            pause = 0.0
            if not self.scheduler.idle:
                self.warming.beside_steps()
            elif not self.warming.next():
                pause = PAUSE
            if not self.warming.left:
                self.warming = None
                self.remember()
            return pause

    def remember(self) -> None:
        """Keep what this start found out, for the next one: times of steps, and which sizes they had."""
        if self.record is not None:
            steps = Counter[StepSize]()
            for (replies, _, tokens), count in self._sizes.items():
                steps[StepSize(replies, tokens)] += max(0, count - RUNS)
            self.record.save(steps)

    def _add_captured(self, size: StepSize, seconds: float) -> None:
        """A size is captured, and a step of it takes so long."""
        self._sizes[size.replies, PROMPTS if size.tokens else 0, size.tokens] += RUNS
        if size.tokens:
            self.scheduler.budget.measured.add(size.replies, size.tokens, seconds)

    def cancel(self, request: Request) -> None:
        """End a request, which no later step has; the next one says so."""
        self.scheduler.cancel(request)

    def room(self) -> int:
        """Tokens that others may compute after a step of replies alone, so that these get on as beside a prompt."""
        budget = self.scheduler.budget
        return budget.tokens(len(self.scheduler.running)) or budget.min_tokens

    def step(self, *, prompts: bool = True) -> list[RequestOutput]:
        """Compute a step, unless there is nothing to do: the sampled tokens, and which requests ended.

        prompts  the step may take tokens of prompts

        Raises UsageError in the middle of another step.
        """
        with self.engine.lock:
            self.engine.thread.require_idle()
            start = clock()
            try:
                self.engine.thread.in_step = True
                outputs = self._step(prompts)
                self._prefault_pages(clock() - start)
                return outputs
            except BaseException:
                self._in_flight.clear()
                self.scheduler.go_back()
                raise
            finally:
                self.engine.thread.in_step = False

    def _step(self, prompts: bool) -> list[RequestOutput]:
        """The outputs of a step: of one in flight, of one that verifies drafts, or of a plain one.

        The step after one in flight is launched before that one is read.
        """
        start = clock()
        last = next((step for step in iter(self._next_in_flight, None) if step.is_needed), None)
        if last is None:
            self._wait_for_masks()
            step = self.scheduler.schedule(prompts=prompts)
        else:
            step = replace(last.step, ended=tuple(self.scheduler.drop_cancelled()))
        step = replace(step, ended=tuple(shown for one in step.ended for shown in one.request.released(one)))
        if not step.parts:
            if self.scheduler.restorer is not None and self.scheduler.restoring:
                self.scheduler.restorer.wait(IDLE_S)
            return list(step.ended)
        ahead = self.speculator is None or self.speculator.rests(step.num_decodes)
        if self.speculator is not None and (ahead or last is not None):
            self.speculator.skip(step.num_decodes)
        elif self.speculator is not None:
            drafts = self.speculator.drafts(step)
            outputs = self._commit_drafts(self.speculator, step, drafts) if drafts else None
            if outputs is not None:
                return [*step.ended, *outputs]
            start = clock()
        if last is None and ahead:  # drafts are made of tokens, which have to be known
            last = self.async_scheduler.launch(step)
        sampled = None
        if last is not None:
            if ahead:
                self._launch_ahead(last, prompts)
            done, sampled = self.async_scheduler.sampled(last)
            step = replace(done, ended=step.ended)
        if sampled is None:  # nothing was launched, or the device could not sample
            for in_flight in iter(self._next_in_flight, None):
                self.async_scheduler.discard(in_flight)
            sampled = self._sample(step)
        return [*step.ended, *self._commit_timed(step, sampled, start)]

    def _next_in_flight(self) -> InFlightStep | None:
        return self._in_flight.popleft() if self._in_flight else None

    def _launch_ahead(self, last: InFlightStep, prompts: bool) -> None:
        """Launch the step after `last`; after steps that sample nothing more of them, for each stage of a pipeline."""
        while True:
            last = self._in_flight[-1] if self._in_flight else last
            if len(self._in_flight) >= (1 if last.step.sampling else len(self.engine.stages)):
                return
            step = self.async_scheduler.launch_next(last, prompts=prompts)
            if step is None:
                return
            self._in_flight.append(step)

    def _wait_for_masks(self) -> None:
        """Wait for masks that are due or, where nothing else can be computed, for one of them, for a while."""
        active = self.scheduler.active
        if held := [r.constraint for r in active if r.constraint is not None]:
            wait_while_due(held)
        if any(r.pending_mask is None for r in active):
            return
        late = [r.pending_mask for r in (*active, *self.scheduler.wanting)]
        if late and all(one is not None for one in late):
            wait_for([one for one in late if one is not None], IDLE_S)

    def _prefault_pages(self, seconds: float) -> None:
        """Prefault pages that the next steps may write first, after a step that took so long."""
        if self.engine.on_device or not self.scheduler.running:
            return
        if self._prefault is None:
            self._prefault = PagePrefault(self.engine.pool.n_pages, self.engine.load().host_caches())
        self._prefault.touch(self.engine.pool.handed_out, SHARE * seconds)

    def _make_room(self, sequence: Sequence) -> None:
        """Free pages that nobody is about to use: `sequence` is short of them."""
        self.scheduler.forget()
        if self.scheduler.restorer is not None:
            self.scheduler.restorer.give_way(sequence)
        for request in list(self.scheduler.running):
            if request.sequence is not sequence and (request.paused if self.engine.thread.in_step else request.yields):
                self.scheduler.preempt(request)

    def _commit_drafts(self, speculator: Speculator, step: ScheduledStep, drafts: Drafts) -> list[RequestOutput] | None:
        """Commit a step that verifies drafts; None where it fails."""
        start = clock()
        try:
            found = speculator.verified(step, drafts)
        except Exception as error:
            log.warning("a step with %d drafts failed and is computed again without them: %s", len(drafts), error)
            return None
        self._last = clock()
        speculator.observe(step, drafts, self._last - start)
        outputs = list[RequestOutput]()
        for request, tokens in found.items():
            alone = ScheduledStep(((request, 1),), ((request, 0),))
            for i, one in enumerate(tokens):
                if request.state is not State.RUNNING:
                    break
                if i and request.constraint is not None and isinstance(one, SampledToken):
                    request.constraint.accept(one.token)
                outputs += self._commit(alone, {request: one})
        self._counts.update(steps=1, drafts=len(drafts), drafted=sum(len(d.tokens) for d in drafts.values()))
        self._counts["accepted"] += sum(len(found[r]) - 1 for r in drafts)
        return outputs

    def _commit_timed(self, step: ScheduledStep, sampled: SampledTokens, start: float) -> list[RequestOutput]:
        """Commit a step, and learn its time since `start`, or since the step before it."""
        now = clock()
        if step.parts and not (self.engine.pads and self._is_capture(step)):
            seconds = now - max(start, self._last)
            self.scheduler.budget.observe(step.num_decodes, step.num_prefill_tokens, seconds, step.depth)
        self._last = now
        self._counts["steps"] += 1
        return self._commit(step, sampled)

    def _commit(self, step: ScheduledStep, sampled: SampledTokens) -> list[RequestOutput]:
        tokens = {r: s for r, s in sampled.items() if isinstance(s, SampledToken)}
        failed, n = {}, len(tokens)
        if n < len(sampled):
            failed = {r: s for r, s in sampled.items() if isinstance(s, Exception)}
        outputs = self.scheduler.commit(step, {r: s.token for r, s in tokens.items()}, failed)
        self._counts["generated"] += n
        for output in outputs:
            if output.finish_reason is not None and self.speculator is not None:
                self.speculator.ended(output.request)
            if output.request.logprobs is not None and output.request in tokens:
                output.logprobs = tokens[output.request].logprobs
        return [shown for output in outputs for shown in output.request.released(output)]

    def _is_capture(self, step: ScheduledStep) -> bool:
        """Whether a step's time includes the capture of its size, which is its second step."""
        decodes = step.num_decodes
        size = self.engine.size_of(decodes, len(step.parts) - decodes, step.num_prefill_tokens)
        self._sizes[size] += 1
        return self._sizes[size] <= 2

    def drain(self) -> Iterator[RequestOutput]:
        """Take no more requests, and finish those that there are."""
        self.draining = True
        while not self.scheduler.idle:
            yield from self.step()

    def _sample(self, step: ScheduledStep) -> SampledTokens:
        """Compute a step: the next token of each request that gets one, or why it has none."""
        try:
            return self.sampler.step(step.feeds(), step.sampling)
        except Exception as error:
            n = len(step.parts)
            if n == 1:
                return dict.fromkeys([step.parts[0][0], *(r for r, _ in step.sampling)], error)
            log.warning("a step of %d requests failed; they are computed one by one: %s", n, error)
        sampled: SampledTokens = {}
        for i, part in enumerate(step.parts):
            sampled |= self._sample(ScheduledStep((part,), tuple((r, 0) for r, at in step.sampling if at == i)))
        return sampled

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._counts["steps"]

    def stats(self) -> Stats:
        """Counts as they are now."""
        scheduler, pool, counts, kept = self.scheduler, self.engine.pool, self._counts, self.scheduler.kept
        return Stats(
            len(scheduler.running), len(scheduler.waiting), pool.empty, pool.cached + kept, pool.held - kept,
            counts["steps"],
            scheduler.preemptions, scheduler.prompt_tokens, scheduler.cached_tokens, counts["generated"],
            counts["drafts"], counts["drafted"], counts["accepted"],
        )
