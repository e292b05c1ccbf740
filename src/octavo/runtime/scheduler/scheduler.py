"""The scheduler: which requests are in the next step, and with how many tokens. It knows tokens and pages, no arrays.

Requests under way come first, the oldest before the others; each is given the tokens that it lacks: the one chosen
last, or of a prompt as many as the step has room for. A request is admitted if the pages for its whole prompt are
there. When pages run out, the newest request gives its own up, and is computed again later, mostly from the prefix
cache. The oldest never does, so there is always one that gets on. Where there is no place, or too few pages, for a
request that waits, those of a higher number give way to it, and those of a key that has more than its share.

A request that is paused is in no step. It keeps its pages as long as nobody makes it give way.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING

from octavo.errors import CacheFullError, ContextFullError, GrammarError, NonFiniteError, UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.jit.clock import clock
from octavo.runtime.cache.page_pool import PagePool, Sequence
from octavo.runtime.cache.prefix_tree import PrefixTree, common_length
from octavo.runtime.cache.window_pool import pages_for
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.captured_sizes import at_most, chunk_sizes
from octavo.runtime.output.reply import FinishReason
from octavo.runtime.sampling.banned_strings import MOST_RETURNS
from octavo.runtime.scheduler.fair_shares import FairShares
from octavo.runtime.scheduler.prefill_budget import PrefillBudget
from octavo.runtime.scheduler.request import Request, RequestOutput, State
from octavo.runtime.scheduler.shared_prefill import PendingPrefills, is_prefilling

if TYPE_CHECKING:
    from octavo.runtime.cache.tiers.restore import Restorer

MAX_BYPASSES = 4
"""Times that shorter prompts may go before a longer one."""
MIN_CHECKPOINT, BEFORE_END = 2 * PAGE_SIZE, 16
"""Fewest tokens that a state is kept for; and those at a prompt's end that may differ in the next turn."""
RANK = attrgetter("rank")
NONE: Mapping[Request, Exception] = {}


@dataclass(slots=True)
class ScheduledStep:
    """A step: each request with the number of its tokens that are computed. Those of one token come first.

    sampling            requests that a token is sampled for, each with the number of its row: its place in `parts`
    ended               what ended before the step
    num_decodes         requests of one token
    num_prefill_tokens  tokens of the others
    """

    parts: tuple[tuple[Request, int], ...]
    sampling: tuple[tuple[Request, int], ...]
    ended: tuple[RequestOutput, ...] = ()
    num_decodes: int = field(init=False)
    num_prefill_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        numbers = [n for _, n in self.parts]
        self.num_decodes = numbers.count(1)
        self.num_prefill_tokens = sum(numbers) - self.num_decodes

    @property
    def depth(self) -> int:
        """Tokens before each token of prompts on average, until the step is committed."""
        if not self.num_prefill_tokens:
            return 0
        before = sum(n * (len(r.sequence) + n // 2) for r, n in self.parts if n > 1)
        return before // self.num_prefill_tokens

    def feeds(self) -> list[Feed]:
        """The tokens to compute of each part, with an output where a token is sampled."""
        sampling = {i for _, i in self.sampling}
        return [
            Feed(r.sequence, r.tokens[(at := len(r.sequence.tokens)) : at + n], int(i in sampling))
            for i, (r, n) in enumerate(self.parts)
        ]


@dataclass
class Scheduler:
    """Requests waiting and running. `schedule` gives a step, `commit` takes what came of it.

    n_ctx        tokens that a sequence may hold
    max_running  requests that may be in one step
    restorer     brings back what is kept of prompts beyond the pool
    """

    pool: PagePool
    tree: PrefixTree
    budget: PrefillBudget
    n_ctx: int
    max_running: int
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    restorer: Restorer | None = None
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    _left: bool = False  # whether a request may be cancelled that is in the queue or under way
    _arrivals: Iterator[int] = field(default_factory=count)
    _last: tuple[str, Sequence] = field(default_factory=lambda: ("", Sequence()))
    _due: float = math.inf  # the first deadline of a request that has not ended
    shares: FairShares = field(default_factory=FairShares)

    def __post_init__(self) -> None:
        self._sizes = chunk_sizes(self.budget.n_batch)

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
            self.shares.used = self.shares.used or bool(one.key)
            self.limit(one, one.deadline)
        insort(self.waiting, request, key=RANK)

    def limit(self, request: Request, deadline: float) -> None:
        """End a request after this time of `clock`, if it has not ended before."""
        request.deadline = min(request.deadline, deadline)
        self._due = min(self._due, request.deadline)

    def schedule(self, *, prompts: bool = True) -> ScheduledStep:
        """The next step, with tokens of prompts or without. Pages for its tokens are there.

        Raises CacheFullError where not even one request fits into the pages that others leave.
        """
        ended = self.drop_cancelled() + self._end_complete()
        before = self.preemptions
        if short := self._short():
            ended += self._grow(short)
        if self.preemptions == before:
            self._admit()
        return self._scheduled_step(ended, prompts=prompts)

    def schedule_next(self, *, prompts: bool = True) -> ScheduledStep | None:
        """The step after those in flight, whose tokens are not known yet; requests that these end are not in it.

        Replies whose token is pending come before the others. None where nothing is to be computed, or a request has
        to be preempted first.
        """
        try:
            for request in self._short():
                self.pool.grow(request.sequence, request.length)
            if not self._admit(in_flight=True):
                return None
        except CacheFullError:
            return None
        step = self._scheduled_step((), prompts=prompts)
        return step if step.parts else None

    def _scheduled_step(self, ended: Seq[RequestOutput], *, prompts: bool) -> ScheduledStep:
        pending, decodes, prefills = list[Request](), list[Request](), list[Request]()
        for request in self.running:
            length = len(request.tokens) + request.num_pending_outputs
            if request.paused or (request.num_pending_outputs and length >= request.end):  # its last
                continue
            if request.constraint is not None and (request.pending_mask is not None or _is_complete(request)):
                continue
            left = length - len(request.sequence.tokens) - request.num_inflight_tokens
            if left > 1:
                prefills.append(request)
            elif left:
                (pending if request.num_pending_outputs else decodes).append(request)
        decodes = pending + decodes
        parts = [(r, 1) for r in decodes]
        if prefills and prompts:
            if self.shares.used:
                turns = self.shares.turns()
                prefills.sort(key=lambda r: (r.priority, turns.get(r.key, 0), r.arrival))
            depth = len(prefills[0].sequence) + prefills[0].num_inflight_tokens
            part = self.shares.part_of_step(prefills[0].key)
            parts += self._chunks(prefills, self.budget.tokens(len(decodes), depth, part))
        sampling = [(r, i) for i, r in enumerate(decodes)]
        sampling += [(r, i) for i, (r, n) in enumerate(parts[len(decodes) :], len(decodes)) if n == r.left]
        sampling += [(s, i) for r, i in sampling for s in r.siblings if not s.cancelled]  # share its row
        return ScheduledStep(tuple(parts), tuple(sampling), tuple(ended))

    def launched(self, step: ScheduledStep) -> None:
        """Note that a step is in flight."""
        for request, n in step.parts:
            request.num_inflight_tokens += n
        for request, _ in step.sampling:
            request.num_pending_outputs += 1

    def settle(self, step: ScheduledStep) -> None:
        """Undo `launched`, for requests that still run."""
        for request, n in step.parts:
            request.num_inflight_tokens -= n
        for request, _ in step.sampling:
            request.num_pending_outputs -= 1

    def cancel(self, request: Request) -> None:
        """Have the next step end a request. Any thread may call this at any time."""
        request.cancelled = True
        self._left = True

    def drop_cancelled(self) -> list[RequestOutput]:
        """End the requests that are cancelled, or whose time is up; their pages are free at once."""
        now = clock() if self._due < math.inf else -math.inf
        if not self._left and now < self._due:
            return []
        self._left = False  # before they are looked for: one that is cancelled meanwhile is found now or next time
        found: dict[Request, FinishReason] = {
            r: "interrupted" if r.cancelled else "time"
            for r in (*self.running, *self.waiting) if r.cancelled or r.deadline <= now
        }
        if found:
            self.waiting = [r for r in self.waiting if r not in found]
        ended = []
        for request, reason in found.items():
            self._let_siblings_go(request)
            ended.append(self._end(request, reason))
        left = (one for r in (*self.running, *self.waiting) for one in (r, *r.siblings))
        self._due = min((one.deadline for one in left), default=math.inf)
        return ended

    def _end_complete(self) -> list[RequestOutput]:
        """End the requests of which a constraint said after their last token that it is the last one."""
        return [self._end(r, "stop") for r in tuple(self.running) if _is_complete(r)]

    def _let_siblings_go(self, request: Request) -> None:
        """Put the siblings of a request, which will not compute their prompt, into the queue."""
        siblings, request.siblings = request.siblings, []
        for sibling in siblings:
            self._left = self._left or sibling.cancelled
            insort(self.waiting, sibling, key=RANK)

    def _short(self) -> list[Request]:
        """Requests whose next token is to be computed, and needs another page."""
        short = [r for r in self.running if len(r.tokens) + r.num_pending_outputs > r.sequence.room]
        return short and [r for r in short if r.left == 1 and not r.paused]

    def _grow(self, short: Seq[Request]) -> Iterator[RequestOutput]:
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
                        self.preemptions += 1
                        self.preempt(self.shares.beyond(self.running, self.max_running) or self.running[-1])

    def preempt(self, request: Request) -> None:
        """Put a running request back into the queue; its pages go to others."""
        self._leave(request)
        request.sequence, request.state, request.restore = Sequence(), State.WAITING, None
        insort(self.waiting, request, key=RANK)

    def _admit(self, *, in_flight: bool = False) -> bool:
        """Begin requests, the first of the queue before the others, as long as there is room for one more.

        False: a request in a step in flight has to give way first.
        """
        if not self.waiting:
            return True
        self.shares.update((*self.running, *self.waiting))
        if len(self.running) >= self.max_running and not self._gives_way_to_any():
            return True
        held_back, num_growing, counted = set[Request](), 0, -1
        pending = PendingPrefills(self.running, by_checkpoints=self.pool.states is not None)
        while (request := self._next_waiting(held_back)) is not None:
            if request.paused or request.pending_mask is not None or self._awaits_prefill(request, pending):
                held_back.add(request)
                continue
            other = self._giving_way(request) if len(self.running) >= self.max_running else None
            if other is None and len(self.running) >= self.max_running:
                return True
            if len(self.running) != counted:  # some may have given way
                num_growing, counted = sum(map(self._may_grow, self.running)), len(self.running)
            if self.restorer is not None and self._restores(self.restorer, request, num_growing):
                held_back.add(request)
                continue
            if other is not None:
                if in_flight:
                    return False
                self._displace(other)
                num_growing, counted = sum(map(self._may_grow, self.running)), len(self.running)
            sequence, length = self._cached_prefix(request), len(request.tokens)
            needed = self.pool.missing(sequence, length) + num_growing
            if needed > self.pool.free and self.restorer is not None and self.restorer.active:  # they end soon
                self.pool.release(sequence)
                return True
            self.pool.make_room(sequence, needed)
            if self.running and needed > self.pool.free:
                self.pool.release(sequence)
                if (other := self._giving_way(request)) is None:
                    return True
                if in_flight:
                    return False
                self._displace(other)
                continue
            try:
                self.pool.reserve(sequence, length)
            except CacheFullError:
                self.pool.release(sequence)
                raise
            _remove(self.waiting, request)  # requests that gave way may have been put before it
            sequence.adapter = request.adapter
            request.sequence, request.state, request.cached = sequence, State.RUNNING, len(sequence)
            request.state_checkpoints = self._state_checkpoints(request)
            insort(self.running, request, key=RANK)
            pending.add(request)
            num_growing, counted = num_growing + self._may_grow(request), counted + 1
            self.prompt_tokens += length
            self.cached_tokens += len(sequence)
        return True

    def _displace(self, request: Request) -> None:
        self.preemptions += 1
        self.preempt(request)

    def _next_waiting(self, held_back: set[Request]) -> Request | None:
        """The request that begins next, but for those that are held back."""
        waiting = (r for r in self.waiting if r not in held_back)
        return self.shares.next_waiting(waiting, self.running) if self.shares.several else next(waiting, None)

    def _gives_way_to_any(self) -> bool:
        """Whether a running request may have to give its place to one that waits."""
        return self.shares.several or self.running[-1].priority > self.waiting[0].priority

    def _giving_way(self, request: Request) -> Request | None:
        """The running request that gives its place to one that waits; None where none has to."""
        last = self.running[-1]
        if last.priority > request.priority:
            return last
        other = self.shares.beyond(self.running, self.max_running, request.key)
        return other if other is not None and other.priority >= request.priority else None

    def _may_grow(self, request: Request) -> bool:
        """Whether a page is to be left free for a running request: it has fewer than it may have."""
        return len(request.sequence.pages) < pages_for(self.n_ctx)

    def _cached_prefix(self, request: Request) -> Sequence:
        """What is in the cache of a request's tokens, but for the last one."""
        if self.pool.shares:
            return self.tree.match_prefix(request.tokens, request.cache_salt)
        found = request.restore and self.restorer and self.restorer.taken(request.restore)
        if found:
            self.keep_as_last(found, request.cache_salt)
        (cache_salt, sequence), self._last = self._last, ("", Sequence())
        tokens = request.tokens[:-1] if cache_salt == request.cache_salt else []
        self.pool.shrink(sequence, self.pool.reached(sequence, common_length(sequence.tokens, tokens)))
        return sequence

    def _restores(self, restorer: Restorer, request: Request, num_growing: int) -> bool:
        """Whether a request waits for what is kept of its prompt beyond the pool, or for pages to have that in."""
        if request.restore is None:
            busy, needed = self.running or restorer.active, pages_for(len(request.tokens)) + num_growing
            if busy and needed + restorer.reserved > self.pool.free + self.kept:
                return True
            salt, tokens = request.cache_salt, request.tokens
            if self.pool.shares:
                floor = self.tree.match_length(tokens, salt)
            else:
                floor = common_length(self._last[1].tokens, tokens) if self._last[0] == salt else 0
            request.restore = restorer.begin(tokens, salt, floor)
        return request.restore is None or not restorer.go_on(request.restore, alone=not self.running)

    @property
    def restoring(self) -> bool:
        """Whether a request waits for what is kept of its prompt."""
        return self.restorer is not None and any(r.restore is None or not r.restore.done for r in self.wanting)

    def _state_checkpoints(self, request: Request) -> tuple[int, ...]:
        """Where the states of a new request are kept: where other prompts diverged, and before its end.

        The end of a prompt often differs in the next turn, such as where thinking begins.
        """
        if self.pool.states is None or not self.pool.shares:
            return ()
        minimum = len(request.sequence) + MIN_CHECKPOINT
        ends = {self.tree.computed_length(request.tokens, request.cache_salt), len(request.tokens) - BEFORE_END}
        return tuple(sorted({at for end in ends if (at := end // PAGE_SIZE * PAGE_SIZE) >= minimum}))

    def _awaits_prefill(self, request: Request, pending: PendingPrefills) -> bool:
        """Whether the page that comes after those in the cache, or a state, is being computed for another request."""
        if request.awaited_prefill is None or not is_prefilling(*request.awaited_prefill):
            request.awaited_prefill = pending.find(request, self.tree.match_length(request.tokens, request.cache_salt))
        return request.awaited_prefill is not None

    def _chunks(self, prompts: list[Request], room: int) -> Iterator[tuple[Request, int]]:
        """Parts of prompts that together have up to `room` tokens."""
        room = at_most(room, self._sizes)
        if prompts[0].left > room and prompts[0].num_bypassed < MAX_BYPASSES:
            first = next((r for r in prompts if r.left <= room and self._may_bypass(r, prompts[0])), None)
            if first is not None:
                prompts[0].num_bypassed += 1
                prompts.remove(first)
                prompts.insert(0, first)
        for request in prompts:
            n = min(request.left, room)
            if request.state_checkpoints:
                done = len(request.sequence) + request.num_inflight_tokens
                n = next((at - done for at in request.state_checkpoints if done + 1 < at < done + n), n)
            if n:
                self.shares.charge(request.key, n)
                yield request, n
                room = max(room - max(n, 2), 0)  # one is a reply: beside it prompts can't be padded by a single token

    def _may_bypass(self, request: Request, first: Request) -> bool:
        """Whether a shorter prompt may go before the first one: not before another key's turn, or a lower number."""
        return request.key == first.key and request.priority == first.priority

    def go_back(self) -> None:
        """After a step that was interrupted: let requests forget what may be computed, but has no token after it."""
        for request in self.running:
            request.num_inflight_tokens = request.num_pending_outputs = 0
            self.pool.shrink(request.sequence, min(len(request.sequence), len(request.tokens) - 1))

    def commit(
        self, step: ScheduledStep, sampled: Mapping[Request, int], failed: Mapping[Request, Exception] = NONE
    ) -> list[RequestOutput]:
        """Take the tokens sampled after a step; requests that failed end, the others go on."""
        outputs = [self._fail(request, why) for request, why in failed.items()] if failed else []
        for request, n in step.parts:
            if failed and request in failed:
                continue
            sequence, before = request.sequence, len(request.sequence.tokens)
            sequence.tokens += request.tokens[before : before + n]
            if (before + n) // PAGE_SIZE > before // PAGE_SIZE:
                self.tree.insert(sequence, request.cache_salt)
                if self.restorer is not None:
                    self.restorer.tiers.keep(sequence, request.cache_salt)
            if len(sequence) in request.state_checkpoints:
                self.tree.insert_state(sequence, request.cache_salt)
                if self.restorer is not None:
                    self.restorer.tiers.keep_last(sequence, request.cache_salt, len(sequence))
            if self.pool.windows is not None and self.restorer is not None:
                at = (len(request.prompt) - BEFORE_END) // PAGE_SIZE * PAGE_SIZE
                if before < len(request.prompt) <= before + n and at >= MIN_CHECKPOINT:
                    self.restorer.tiers.keep_last(sequence, request.cache_salt, at)
        for request, _ in step.parts:
            if request.siblings and not request.left:
                self._fork(request)
        return outputs + [self._take(request, sampled[request]) for request, _ in step.sampling if request in sampled]

    def _fail(self, request: Request, why: Exception) -> RequestOutput:
        """End a request; what was computed of it may be wrong, and is for nobody else.

        After NaN pages of earlier steps, and those that it began with, may be NaN too: a token that is can make those
        before it so.
        """
        request.failure = why
        self._let_siblings_go(request)
        if request.state is State.RUNNING:
            if isinstance(why, NonFiniteError):
                self.tree.invalidate(request.sequence, request.cache_salt)
                if self.restorer is not None:
                    self.restorer.tiers.forget(request.sequence, request.cache_salt)
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
                self.tree.insert(request.sequence, request.cache_salt, tail=True)
                self._left = self._left or sibling.cancelled
                insort(self.waiting, sibling, key=RANK)
                continue
            sibling.sequence, sibling.state = self.pool.fork(request.sequence), State.RUNNING
            sibling.cached = len(sibling.sequence)
            insort(self.running, sibling, key=RANK)

    def _take(self, request: Request, token: int) -> RequestOutput:
        request.tokens.append(token)
        self.shares.charge(request.key, 1)
        if request.banned is not None and (kept := request.banned.push(token)) is not None:
            return self._go_back(request, kept)
        constraint, full = request.constraint, len(request.tokens) >= request.end
        complete = constraint is not None and (full or constraint.pending_mask is None) and constraint.stopped
        if token in request.stop_ids or complete:
            self._end(request, "stop")
        elif full:
            self._end(request, "length" if request.num_output_tokens == request.max_tokens else "context")
        return RequestOutput(request, token, request.finish_reason)

    def _go_back(self, request: Request, kept: int) -> RequestOutput:
        """Take back all but the first tokens of a reply, as a banned string begins in the next one."""
        assert request.banned is not None
        length = len(request.prompt) + kept
        request.banned.excluded.add(length, request.tokens[length])
        request.tokens.cut(length)
        del request.held[kept - request.banned.shown :]
        if request.banned.returns > MOST_RETURNS:
            why = f"the reply came to one of banned_strings more than {MOST_RETURNS} times"
            return self._fail(request, GrammarError(why))
        if self.pool.shares and self.pool.states is None:
            self.pool.shrink(request.sequence, min(len(request.sequence), length - 1))
        else:  # what it has computed is of no use without the tokens that are gone
            self._displace(request)
        return RequestOutput(request, None)

    def _end(self, request: Request, reason: FinishReason) -> RequestOutput:
        if request.state is State.RUNNING:
            self._leave(request)
        else:
            _remove(self.waiting, request)
            if self.restorer is not None and request.restore is not None:
                self.restorer.end(request.restore)
        request.state, request.finish_reason = State.FINISHED, reason
        return RequestOutput(request, None, reason)

    def _leave(self, request: Request) -> None:
        """Take a request out of the steps; others may find what was computed of it."""
        _remove(self.running, request)
        request.num_inflight_tokens = request.num_pending_outputs = 0
        if self.restorer is not None:
            self.restorer.tiers.keep_last(request.sequence, request.cache_salt)
        if self.pool.shares:
            if self.pool.states is None:
                self.tree.insert(request.sequence, request.cache_salt, tail=True)
            else:
                self.tree.insert_state(request.sequence, request.cache_salt, give=True)
            self.pool.release(request.sequence)
        else:
            self.forget()
            self._last = request.cache_salt, request.sequence

    @property
    def kept(self) -> int:
        """Pages of the sequence that is kept where the tree keeps none."""
        return len(self._last[1].pages)

    def forget(self) -> None:
        """Give back the pages of the sequence that is kept where the tree keeps none."""
        self.pool.release(self._last[1])

    @property
    def last(self) -> tuple[str, Sequence]:
        """The sequence that is kept where the tree keeps none, and its salt."""
        return self._last

    def keep_as_last(self, sequence: Sequence, salt: str) -> None:
        """Have a sequence as the one that is kept where the tree keeps none."""
        self.forget()
        self._last = salt, sequence

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


def _is_complete(request: Request) -> bool:
    """Whether a constraint has said after a reply's last token that it is the last one."""
    constraint = request.constraint
    return bool(request.num_output_tokens) and constraint is not None and not constraint.pending_mask \
        and constraint.stopped


def _remove(requests: list[Request], request: Request) -> None:
    """Take a request, if it is there, out of the ones that are sorted by rank."""
    at = bisect_left(requests, request.rank, key=RANK)
    if at < len(requests) and requests[at] is request:
        del requests[at]
