"""The scheduler: which requests are in the next step, and with how many tokens. It knows tokens and pages, no arrays.

Requests under way come first, the oldest before the others; each is given the tokens that it lacks: the one chosen
last, or of a prompt as many as the step has room for. A request is admitted if the pages for its whole prompt are
there. When pages run out, the newest request gives its own up, and is computed again later, mostly from the prefix
cache. The oldest never does, so there is always one that gets on.

A request that is paused is in no step. It keeps its pages as long as nobody makes it give way.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter

from octavo.errors import CacheFullError, ContextFullError, NonFiniteError, UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import PagePool, Sequence
from octavo.runtime.cache.prefix_tree import PageTree, shared
from octavo.runtime.cache.window_pool import pages_for
from octavo.runtime.engine.captured_sizes import at_most, chunk_sizes
from octavo.runtime.output.reply import FinishReason
from octavo.runtime.scheduler.prefill_budget import Pace
from octavo.runtime.scheduler.request import Output, Request, State
from octavo.runtime.scheduler.shared_prefill import Coming, is_coming
from octavo.runtime.scheduler.step_plan import StepPlan

MOST_PASSED = 4
"""Times that shorter prompts may go before a longer one."""
WORTH, BEFORE_END = 2 * PAGE_SIZE, 16
"""Tokens that a state is kept for, at least; and those at a prompt's end that may be other ones in the next turn."""
RANK = attrgetter("rank")
NONE: Mapping[Request, Exception] = {}


@dataclass
class Scheduler:
    """Requests in the queue and under way. `plan` gives a step, `commit` takes what came of it.

    n_ctx        tokens that a sequence may hold
    max_running  requests that may be in one step
    """

    pool: PagePool
    tree: PageTree
    pace: Pace
    n_ctx: int
    max_running: int
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    _left: bool = False  # whether a request may be cancelled that is in the queue or under way
    _arrivals: Iterator[int] = field(default_factory=count)
    _last: tuple[str, Sequence] = field(default_factory=lambda: ("", Sequence()))

    def __post_init__(self) -> None:
        self._sizes = chunk_sizes(self.pace.n_batch)

    def add(self, request: Request) -> None:
        """Put a request, and its siblings, into the queue. Raises ContextFullError for one that can never run."""
        for one in (request, *request.siblings):
            if not one.prompt:
                raise UsageError("the prompt has no tokens")
            if len(one.prompt) > (most := min(self.n_ctx, self.pool.n_pages * PAGE_SIZE)):
                raise ContextFullError(f"the prompt of {len(one.prompt)} tokens does not fit the context of {most}")
            self._left = self._left or one.cancelled
            one.arrival = next(self._arrivals)
            last = max(self.n_ctx, len(one.prompt) + 1)  # a full context is followed by a token all the same
            one.end = last if one.max_tokens is None else min(last, len(one.prompt) + one.max_tokens)
        insort(self.waiting, request, key=RANK)

    def plan(self, *, prompts: bool = True) -> StepPlan:
        """The next step, with tokens of prompts or without. Pages for its tokens are there.

        Raises CacheFullError where not even one request fits into the pages that others leave.
        """
        ended = self.drop_cancelled() + self._end_complete()
        before = self.preemptions
        if short := self._short():
            ended += self._grow(short)
        if self.preemptions == before:
            self._admit()
        return self._planned(ended, prompts=prompts)

    def plan_ahead(self, *, prompts: bool = True) -> StepPlan | None:
        """The step after those under way, whose tokens are not known yet; requests that these end are not in it.

        Replies whose token is still to come are before the others. None where nothing is to be computed, or a request
        has to give way first.
        """
        try:
            for request in self._short():
                self.pool.grow(request.sequence, request.length)
            self._admit()
        except CacheFullError:
            return None
        plan = self._planned((), prompts=prompts)
        return plan if plan.parts else None

    def _planned(self, ended: Seq[Output], *, prompts: bool) -> StepPlan:
        coming, replies, others = list[Request](), list[Request](), list[Request]()
        for request in self.running:
            length = len(request.tokens) + request.coming
            if request.paused or (request.coming and length >= request.end):  # with the token that is coming it ends
                continue
            if request.constraint is not None and request.late is not None:
                continue
            left = length - len(request.sequence.tokens) - request.computing
            if left > 1:
                others.append(request)
            elif left:
                (coming if request.coming else replies).append(request)
        replies = coming + replies
        parts = [(r, 1) for r in replies]
        if others and prompts:
            depth = len(others[0].sequence) + others[0].computing
            parts += self._chunks(others, self.pace.chunk(len(replies), depth))
        choosing = [(r, i) for i, r in enumerate(replies)]
        choosing += [(r, i) for i, (r, n) in enumerate(parts[len(replies) :], len(replies)) if n == r.left]
        choosing += [(s, i) for r, i in choosing for s in r.siblings if not s.cancelled]  # share its row
        return StepPlan(tuple(parts), tuple(choosing), tuple(ended))

    def begun(self, plan: StepPlan) -> None:
        """Take down that a step is under way."""
        for request, n in plan.parts:
            request.computing += n
        for request, _ in plan.choosing:
            request.coming += 1

    def settle(self, plan: StepPlan) -> None:
        """Undo `begun`, for requests that have not left the steps since."""
        for request, n in plan.parts:
            request.computing -= n
        for request, _ in plan.choosing:
            request.coming -= 1

    def cancel(self, request: Request) -> None:
        """Have the next step end a request. Any thread may call this at any time."""
        request.cancelled = True
        self._left = True

    def drop_cancelled(self) -> list[Output]:
        """End the requests that are cancelled; their pages are free at once."""
        if not self._left:
            return []
        self._left = False  # before they are looked for: one that is cancelled meanwhile is found now or next time
        cancelled = {r: None for r in (*self.running, *self.waiting) if r.cancelled}
        if cancelled:
            self.waiting = [r for r in self.waiting if r not in cancelled]
        ended = []
        for request in cancelled:
            self._let_siblings_go(request)
            ended.append(self._end(request, "interrupted"))
        return ended

    def _end_complete(self) -> list[Output]:
        """End the requests of which a constraint said after their last token that it is the last one."""
        held = [r for r in self.running if r.n_chosen and r.constraint is not None and not r.constraint.late]
        return [self._end(r, "stop") for r in held if r.constraint is not None and r.constraint.stopped]

    def _let_siblings_go(self, request: Request) -> None:
        """Put the siblings of a request, which will not compute their prompt, into the queue."""
        siblings, request.siblings = request.siblings, []
        for sibling in siblings:
            self._left = self._left or sibling.cancelled
            insort(self.waiting, sibling, key=RANK)

    def _short(self) -> list[Request]:
        """Requests whose next token is to be computed, and needs another page."""
        short = [r for r in self.running if len(r.tokens) + r.coming > r.sequence.room]
        return short and [r for r in short if r.left == 1 and not r.paused]

    def _grow(self, short: Seq[Request]) -> Iterator[Output]:
        """Pages for the next token of these requests, from those of the newest where there are too few."""
        for request in short:
            while request.state is State.RUNNING and request.left == 1:
                try:
                    self.pool.grow(request.sequence, len(request.tokens))
                    break
                except CacheFullError:
                    if len(self.running) == 1:
                        yield self._end(request, "context")
                    else:
                        self._preempt(self.running[-1])

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        self.give_way(request)

    def give_way(self, request: Request) -> None:
        """Put a request that is under way back into the queue; its pages go to others."""
        self._leave(request)
        request.sequence, request.state = Sequence(), State.WAITING
        insort(self.waiting, request, key=RANK)

    def _admit(self) -> None:
        """Begin requests, the first of the queue before the others, as long as there is room for one more."""
        if not self.waiting or len(self.running) >= self.max_running:
            return
        held_back, growing, counted = 0, 0, -1
        coming = Coming(self.running, by_marks=self.pool.states is not None)
        while len(self.waiting) > held_back and len(self.running) < self.max_running:
            request = self.waiting[held_back]
            if request.paused or request.late is not None or self._comes_soon(request, coming):
                held_back += 1
                continue
            sequence, length = self._begun(request), len(request.tokens)
            if len(self.running) != counted:  # some may have given way
                growing, counted = sum(map(self._grows, self.running)), len(self.running)
            wanted = self.pool.wanted(sequence, length) + growing
            self.pool.make_room(sequence, wanted)
            if self.running and wanted > self.pool.free:
                self.pool.release(sequence)
                return
            try:
                self.pool.reserve(sequence, length)
            except CacheFullError:
                self.pool.release(sequence)
                raise
            _remove(self.waiting, request)  # requests that gave way may have been put before it
            request.sequence, request.state, request.cached = sequence, State.RUNNING, len(sequence)
            request.marks = self._marks(request)
            insort(self.running, request, key=RANK)
            coming.add(request)
            growing, counted = growing + self._grows(request), counted + 1
            self.prompt_tokens += length
            self.cached_tokens += len(sequence)

    def _grows(self, request: Request) -> bool:
        """Whether a page is to be left free for one under way to go on: it has not as many as it may have."""
        return len(request.sequence.pages) < pages_for(self.n_ctx)

    def _begun(self, request: Request) -> Sequence:
        """What is in the cache of a request's tokens, but for the last one."""
        if self.pool.shares:
            return self.tree.match(request.tokens, request.space)
        (space, sequence), self._last = self._last, ("", Sequence())
        wanted = request.tokens[:-1] if space == request.space else []
        self.pool.shrink(sequence, self.pool.reached(sequence, shared(sequence.tokens, wanted)))
        return sequence

    def _marks(self, request: Request) -> tuple[int, ...]:
        """Where the states of a request that begins are kept: where others went on otherwise, and before its end.

        The end of a prompt is often another one in the next turn, such as where thinking begins.
        """
        if self.pool.states is None or not self.pool.shares:
            return ()
        least = len(request.sequence) + WORTH
        ends = {self.tree.shared(request.tokens, request.space), len(request.tokens) - BEFORE_END}
        return tuple(sorted({end // PAGE_SIZE * PAGE_SIZE for end in ends if end // PAGE_SIZE * PAGE_SIZE >= least}))

    def _comes_soon(self, request: Request, coming: Coming) -> bool:
        """Whether the page that comes after those in the cache, or a state, is being computed for another request."""
        if request.awaits is None or not is_coming(*request.awaits):
            request.awaits = coming.find(request, self.tree.matching(request.tokens, request.space))
        return request.awaits is not None

    def _chunks(self, prompts: list[Request], room: int) -> Iterator[tuple[Request, int]]:
        """Parts of prompts that together have up to `room` tokens."""
        room = at_most(room, self._sizes)
        if prompts[0].left > room and prompts[0].passed < MOST_PASSED:
            first = next((r for r in prompts if r.left <= room), None)
            if first is not None:
                prompts[0].passed += 1
                prompts.remove(first)
                prompts.insert(0, first)
        for request in prompts:
            n = min(request.left, room)
            if request.marks:
                done = len(request.sequence) + request.computing
                n = next((mark - done for mark in request.marks if done + 1 < mark < done + n), n)
            if n:
                yield request, n
                room -= n

    def go_back(self) -> None:
        """After a step that was interrupted: let requests forget what may be computed, but has no token after it."""
        for request in self.running:
            request.computing = request.coming = 0
            self.pool.shrink(request.sequence, min(len(request.sequence), len(request.tokens) - 1))

    def commit(
        self, plan: StepPlan, chosen: Mapping[Request, int], failed: Mapping[Request, Exception] = NONE
    ) -> list[Output]:
        """Take the tokens that were chosen after a step; requests that failed end, the others do not notice."""
        outputs = [self._fail(request, why) for request, why in failed.items()] if failed else []
        for request, n in plan.parts:
            if failed and request in failed:
                continue
            sequence, before = request.sequence, len(request.sequence.tokens)
            sequence.tokens += request.tokens[before : before + n]
            if (before + n) // PAGE_SIZE > before // PAGE_SIZE:
                self.tree.publish(sequence, request.space)
            if len(sequence) in request.marks:
                self.tree.keep_state(sequence, request.space)
        for request, _ in plan.parts:
            if request.siblings and not request.left:
                self._fork(request)
        return outputs + [self._take(request, chosen[request]) for request, _ in plan.choosing if request in chosen]

    def _fail(self, request: Request, why: Exception) -> Output:
        """End a request; what was computed of it may be wrong, and is for nobody else.

        After NaN pages of earlier steps, and those that it began with, may be NaN too: a token that is can make those
        before it so.
        """
        request.failure = why
        self._let_siblings_go(request)
        if request.state is State.RUNNING:
            if isinstance(why, NonFiniteError):
                self.tree.retract(request.sequence, request.space)
            _remove(self.running, request)
            self.pool.release(request.sequence)
            request.state = State.FINISHED
        return self._end(request, "error")

    def _fork(self, request: Request) -> None:
        """Let the siblings of a request, whose prompt is computed, begin where it is; in the queue if all are full."""
        siblings, request.siblings = request.siblings, []
        for sibling in siblings:
            if sibling.state is State.FINISHED:
                continue
            if sibling.cancelled or len(self.running) >= self.max_running:
                self.tree.publish(request.sequence, request.space, tail=True)
                self._left = self._left or sibling.cancelled
                insort(self.waiting, sibling, key=RANK)
                continue
            sibling.sequence, sibling.state = self.pool.fork(request.sequence), State.RUNNING
            sibling.cached = len(sibling.sequence)
            insort(self.running, sibling, key=RANK)

    def _take(self, request: Request, token: int) -> Output:
        request.tokens.append(token)
        constraint, full = request.constraint, len(request.tokens) >= request.end
        complete = constraint is not None and (full or constraint.late is None) and constraint.stopped
        if token in request.stop_ids or complete:
            self._end(request, "stop")
        elif full:
            self._end(request, "length" if request.n_chosen == request.max_tokens else "context")
        return Output(request, token, request.finish_reason)

    def _end(self, request: Request, reason: FinishReason) -> Output:
        if request.state is State.RUNNING:
            self._leave(request)
        else:
            _remove(self.waiting, request)
        request.state, request.finish_reason = State.FINISHED, reason
        return Output(request, None, reason)

    def _leave(self, request: Request) -> None:
        """Take a request out of the steps; others may find what was computed of it."""
        _remove(self.running, request)
        request.computing = request.coming = 0
        if self.pool.shares:
            if self.pool.states is None:
                self.tree.publish(request.sequence, request.space, tail=True)
            else:
                self.tree.keep_state(request.sequence, request.space, give=True)
            self.pool.release(request.sequence)
        else:
            self.forget()
            self._last = request.space, request.sequence

    @property
    def kept(self) -> int:
        """Pages of the sequence that is kept where the tree keeps none."""
        return len(self._last[1].pages)

    def forget(self) -> None:
        """Give back the pages of the sequence that is kept where the tree keeps none."""
        self.pool.release(self._last[1])

    @property
    def active(self) -> list[Request]:
        """Requests under way that are in the next steps."""
        return [r for r in self.running if not r.paused]

    @property
    def wanting(self) -> list[Request]:
        """Requests that are to begin when there is room."""
        return [r for r in self.waiting if not r.paused]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running


def _remove(requests: list[Request], request: Request) -> None:
    """Take a request, if it is there, out of those that are sorted by rank."""
    at = bisect_left(requests, request.rank, key=RANK)
    if at < len(requests) and requests[at] is request:
        del requests[at]
