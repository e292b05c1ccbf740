"""EngineCore: requests in, tokens out. Each step computes what the scheduler chose, for all requests under way."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from octavo.errors import UsageError
from octavo.jit.clock import clock
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.cache.prefault import SHARE, PagesAhead
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.captured_sizes import PROMPTS, TILE
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.stats import Stats
from octavo.runtime.engine.warm_up import RUNS, WarmUp, drawn_output
from octavo.runtime.grammar.deadlines import IDLE_S, wait_for, wait_while_due
from octavo.runtime.sampling.select import Choices, Chooser, Chosen
from octavo.runtime.scheduler.async_scheduling import Ahead, UnderWay
from octavo.runtime.scheduler.prefill_budget import LEAST, Pace
from octavo.runtime.scheduler.request import Output, Request, State
from octavo.runtime.scheduler.scheduler import Scheduler
from octavo.runtime.scheduler.speculation import Drafts, Speculator
from octavo.runtime.scheduler.step_plan import StepPlan, feeds_of

log = logging.getLogger("octavo")

PAUSE = 0.02
"""Seconds between looks at kernels that are being compiled, where there is nothing else to do."""


class EngineCore:
    """Makes replies to many requests at once with an engine, which others may use between two steps.

    n_known      tokens of the vocabulary: what logits there are beyond these is never chosen
    itl_target   seconds from one token of a reply to the next, which prompts of others may not lengthen; 0: no bound

    `step` is for one thread at a time. Any thread may `add` and `cancel`.
    """

    def __init__(self, engine: Engine, *, n_known: int | None = None, itl_target: float = 0.0) -> None:
        self.engine = engine
        self.n_known = engine.model.hparams.n_vocab if n_known is None else n_known
        self.chooser = Chooser(engine, self.n_known)
        pace = Pace(engine.config.n_batch, itl_target, TILE if engine.fills else LEAST)
        self.scheduler = Scheduler(engine.pool, engine.prefixes, pace, engine.n_ctx, engine.config.max_sequences)
        engine.pool.call_when_short(self._make_room)
        self.ahead = Ahead(self.scheduler, self.chooser)
        # A wrong draft can't be taken back out of a state.
        drafts = engine.config.speculate == "lookup" and engine.pool.states is None
        self.speculator = Speculator(self.chooser, pace) if drafts else None
        self.draining = False
        self.warming: WarmUp | None = None
        """Makes sizes of steps, as long as there are such to come."""
        self._under_way: UnderWay | None = None
        self._last = 0.0
        self._pages_ahead: PagesAhead | None = None
        self._counts: Counter[str] = Counter()
        self._sizes: Counter[tuple[int, int, int]] = Counter()

    def add(self, request: Request) -> None:
        """Take a request and its siblings. Raises UsageError or ContextFullError for one that can't be computed."""
        if self.draining:
            raise UsageError("no more requests are taken")
        self.engine.require_tokens(request.prompt)
        with self.engine.lock:
            self.scheduler.add(request)

    def warm_up(self) -> None:
        """Make all sizes of steps ready that are to come, where each is captured: it takes some seconds."""
        with self.engine.lock:
            if self.warming is None:
                self.begin_warm_up()
            if self.warming is not None:
                self.warming.finish()
                self.warming = None

    def begin_warm_up(self) -> None:
        """Make those sizes ready that any step can be filled up to; `go_on_warming` makes the others."""
        if not self.engine.fills or not self.engine.finds_candidates:
            return
        with self.engine.lock:
            ahead = self.engine.runs_ahead and self.speculator is None
            self.warming = WarmUp(self.engine, self.n_known, drawn_output(self.engine, ahead=ahead), self._add_ready)
            self.warming.begin()

    def go_on_warming(self) -> float | None:
        """Make a little more ready: seconds after which there may be more to do, None for never.

        Where there are requests that is done for what their steps want, in a small part of the time.
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
            return pause

    def _add_ready(self, replies: int, tokens: int, seconds: float) -> None:
        """A size is ready, of which a step takes so long."""
        self._sizes[replies, PROMPTS if tokens else 0, tokens] += RUNS
        if tokens:
            self.scheduler.pace.measured.add(replies, tokens, seconds)

    def cancel(self, request: Request) -> None:
        """End a request, which no later step has; the next one says so."""
        self.scheduler.cancel(request)

    def room(self) -> int:
        """Tokens that others may compute after a step of replies alone, so that these get on as beside a prompt."""
        pace = self.scheduler.pace
        return pace.chunk(len(self.scheduler.running)) or pace.least

    def step(self, *, prompts: bool = True) -> list[Output]:
        """Compute a step, unless there is nothing to do: the tokens that were chosen, and which requests ended.

        prompts  the step may take tokens of prompts

        Raises UsageError in the middle of another step.
        """
        with self.engine.lock:
            self.engine.thread.require_idle()
            start = clock()
            try:
                self.engine.thread.in_step = True
                outputs = self._step(prompts)
                self._touch_ahead(clock() - start)
                return outputs
            except BaseException:
                self._under_way = None
                self.scheduler.go_back()
                raise
            finally:
                self.engine.thread.in_step = False

    def _step(self, prompts: bool) -> list[Output]:
        """What a step brings. It is one that began ahead of time and is read now, or verifies drafts, or is plain.

        Before a step that began ahead of time is read, the one after it begins.
        """
        start, (last, self._under_way) = clock(), (self._under_way, None)
        if last is not None and not last.is_wanted:  # all of its requests have ended
            last = None
        if last is None:
            self._wait_for_masks()
        plan = self.scheduler.plan(prompts=prompts) if last is None else replace(last.plan, ended=self._ended())
        if not plan.parts:
            return list(plan.ended)
        if self.speculator is not None:
            drafts = self.speculator.drafts(plan)
            outputs = self._commit_drafts(self.speculator, plan, drafts) if drafts else None
            if outputs is not None:
                return [*plan.ended, *outputs]
        if last is None and self.speculator is None:  # drafts are made of tokens, which have to be known
            last = self.ahead.begin(plan)
        choices = None
        if last is not None:
            self._under_way = self.ahead.begin_after(last, prompts=prompts)
            done, choices = self.ahead.choices(last)
            plan = replace(done, ended=plan.ended)
        if choices is None:  # nothing began, or what the device chose will not do: the host chooses
            if self._under_way is not None:
                self.ahead.drop(self._under_way)
            self._under_way, choices = None, self._choices(plan)
        return [*plan.ended, *self._commit_choices(plan, choices, start)]

    def _wait_for_masks(self) -> None:
        """Wait for masks that are due or, where nothing else can be computed, for one of them, for a while."""
        active = self.scheduler.active
        if held := [r.constraint for r in active if r.constraint is not None]:
            wait_while_due(held)
        if any(r.late is None for r in active):
            return
        late = [r.late for r in (*active, *self.scheduler.wanting)]
        if late and all(one is not None for one in late):
            wait_for([one for one in late if one is not None], IDLE_S)

    def _touch_ahead(self, seconds: float) -> None:
        """Touch memory for pages that the next steps may begin, after a step that took so long."""
        if self.engine.on_device or not self.scheduler.running:
            return
        if self._pages_ahead is None:
            self._pages_ahead = PagesAhead(self.engine.pool.n_pages, self.engine.load().host_caches())
        self._pages_ahead.touch(self.engine.pool.handed_out, SHARE * seconds)

    def _make_room(self, sequence: Sequence) -> None:
        """Give pages back that nobody is about to use: `sequence` is short of them."""
        self.scheduler.forget()
        for request in list(self.scheduler.running):
            if request.sequence is not sequence and (request.paused if self.engine.thread.in_step else request.yields):
                self.scheduler.give_way(request)

    def _commit_drafts(self, speculator: Speculator, plan: StepPlan, drafts: Drafts) -> list[Output] | None:
        """Take what came of a step that verifies drafts; None where it fails."""
        start = clock()
        try:
            found = speculator.verified(plan, drafts)
        except Exception as error:
            log.warning("a step of %d drafts failed, which is computed without them: %s", len(drafts), error)
            return None
        self._last = clock()
        speculator.took(plan, drafts, self._last - start)
        outputs = list[Output]()
        for request, chosen in found.items():
            alone = StepPlan(((request, 1),), ((request, 0),))
            for place, one in enumerate(chosen):
                if request.state is not State.RUNNING:
                    break
                if place and request.constraint is not None and isinstance(one, Chosen):
                    request.constraint.accept(one.token)
                outputs += self._committed(alone, {request: one})
        self._counts.update(steps=1, drafts=len(drafts), drafted=sum(len(d.tokens) for d in drafts.values()))
        self._counts["accepted"] += sum(len(found[r]) - 1 for r in drafts)
        return outputs

    def _ended(self) -> tuple[Output, ...]:
        return tuple(self.scheduler.drop_cancelled())

    def _commit_choices(self, plan: StepPlan, choices: Choices, start: float) -> list[Output]:
        """Take what came of a step that is computed since `start`, or since the one before it."""
        now = clock()
        if plan.parts and not (self.engine.fills and self._prepares(plan)):
            self.scheduler.pace.seen(plan.replies, plan.chunk, now - max(start, self._last), plan.depth)
        self._last = now
        self._counts["steps"] += 1
        return self._committed(plan, choices)

    def _committed(self, plan: StepPlan, choices: Choices) -> list[Output]:
        chosen = {r: c for r, c in choices.items() if isinstance(c, Chosen)}
        failed, n = {}, len(chosen)
        if n < len(choices):
            failed = {r: c for r, c in choices.items() if isinstance(c, Exception)}
        outputs = self.scheduler.commit(plan, {r: c.token for r, c in chosen.items()}, failed)
        self._counts["generated"] += n
        for output in outputs:
            if output.request.logprobs is not None and output.request in chosen:
                output.logprobs = chosen[output.request].logprobs
        return outputs

    def _prepares(self, plan: StepPlan) -> bool:
        """Whether a step's time is that of making ready for its size: where it is captured, at its second time."""
        size = self.engine.size_of(plan.replies, len(plan.parts) - plan.replies, plan.chunk)
        self._sizes[size] += 1
        return self._sizes[size] <= 2

    def drain(self) -> Iterator[Output]:
        """Take no more requests, and bring those that there are to their ends."""
        self.draining = True
        while not self.scheduler.idle:
            yield from self.step()

    def _choices(self, plan: StepPlan) -> Choices:
        """The next token of each request that has one, and why others have none."""
        feeds = [Feed(sequence, tokens, int(wanted)) for sequence, tokens, wanted in feeds_of(plan)]
        try:
            return self.chooser.step(feeds, plan.choosing)
        except Exception as error:
            if len(feeds) == 1:
                return dict.fromkeys([plan.parts[0][0], *(r for r, _ in plan.choosing)], error)
            log.warning("a step of %d requests failed, which are computed one by one: %s", len(feeds), error)
        choices: Choices = {}
        for i, part in enumerate(plan.parts):
            choices |= self._choices(StepPlan((part,), tuple((r, 0) for r, at in plan.choosing if at == i)))
        return choices

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
