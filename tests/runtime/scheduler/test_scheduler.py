"""The scheduler with a model that is arithmetic: the next token follows from what lies in a request's pages."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from octavo.errors import CacheFullError, ContextFullError, NonFiniteError, UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import PagePool, Sequence
from octavo.runtime.scheduler.prefill_budget import MIN_CHUNK, TILE, PrefillBudget
from octavo.runtime.scheduler.request import Request, RequestOutput, State
from octavo.runtime.scheduler.scheduler import MAX_BYPASSES, ScheduledStep, Scheduler
from tests.runtime.cache.test_prefix_tree import Memory

END = 0


def after(tokens: list[int]) -> int:
    """The token after these; one of seven, END among them."""
    return zlib.crc32(bytes(t % 256 for t in tokens)) % 7


def alone(prompt: list[int], most: int, n_ctx: int) -> list[int]:
    """What a request chooses when nothing else runs."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < most and len(tokens) <= n_ctx:
        tokens.append(after(tokens))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


def request(prompt: list[int], most: int = 20, **more: Any) -> Request:
    return Request(prompt, lambda logits, tokens: 0, most, frozenset({END}), **more)


class Run:
    """A scheduler, and the memory that its steps write to."""

    def __init__(self, n_pages: int = 20, n_batch: int = 64, running: int = 4, n_ctx: int = 400) -> None:
        self.memory = Memory(PagePool(n_pages))
        self.pool = self.memory.pool
        self.scheduler = Scheduler(self.pool, self.memory.tree, PrefillBudget(n_batch), n_ctx, running)
        self.plans: list[ScheduledStep] = []

    def step(self) -> list[RequestOutput]:
        plan = self.scheduler.schedule()
        self.plans.append(plan)
        rows = []
        for sequence, tokens in ((f.sequence, f.tokens) for f in plan.feeds()):
            for at, token in enumerate(tokens, len(sequence)):
                self.memory.pages[sequence.pages[at // PAGE_SIZE], at % PAGE_SIZE] = token
            rows.append(self.memory.read(Sequence(sequence.pages, [*sequence.tokens, *tokens])))
        outputs = self.scheduler.commit(plan, {r: after(rows[i]) for r, i in plan.sampling})
        self.check(plan)
        return [*plan.ended, *outputs]

    def check(self, plan: ScheduledStep) -> None:
        assert plan.num_decodes + plan.num_prefill_tokens <= self.scheduler.budget.n_batch
        assert len(plan.parts) <= self.scheduler.max_running
        assert self.pool.empty + self.pool.cached + self.pool.held == self.pool.n_pages
        held = {page for r in self.scheduler.running for page in r.sequence.pages}
        assert self.pool.held == len(held)

    def finish(self) -> list[RequestOutput]:
        outputs = []
        while not self.scheduler.idle:
            outputs += self.step()
        assert self.pool.held == 0
        return outputs


def test_replies_go_on_while_a_prompt_is_computed() -> None:
    run = Run()
    first, second = request([1, 2, 3], 50), request(list(range(1, 151)))
    run.scheduler.add(first)
    run.step()
    run.scheduler.add(second)
    run.step()
    assert [(r, n) for r, n in run.plans[-1].parts] == [(first, 1), (second, 48)]
    assert [r for r, _ in run.plans[-1].sampling] == [first]
    run.finish()
    assert list(first.output_tokens) == alone([1, 2, 3], 50, 400)
    assert list(second.output_tokens) == alone(list(range(1, 151)), 20, 400)


@pytest.mark.parametrize("seed", range(12))
def test_texts_are_those_of_each_alone(seed: int) -> None:
    """Prompts that share beginnings, in pools where they do not all fit, some cancelled."""
    rng = random.Random(seed)
    run = Run(
        n_pages=rng.choice((5, 8, 30)), n_batch=rng.choice((8, 40, 200)), running=rng.choice((1, 3, 6)), n_ctx=250
    )
    kept, left = list[Request](), [request(prompt, rng.randint(1, 90)) for prompt in prompts(rng, 25)]
    cancelled = set[Request]()
    while left or not run.scheduler.idle:
        if left and rng.random() < 0.3:
            kept.append(left.pop())
            run.scheduler.add(kept[-1])
        if kept and rng.random() < 0.03:
            cancelled.add(kept[rng.randrange(len(kept))])
            for one in cancelled:
                run.scheduler.cancel(one)
        run.step()
    run.finish()
    for one in kept:
        want = alone(list(one.prompt), one.max_tokens or 0, 250)
        if one.finish_reason == "interrupted":
            assert one in cancelled
            assert list(one.output_tokens) == want[: len(one.output_tokens)]
        else:
            assert list(one.output_tokens) == want
            reason = "stop" if want[-1] == END else "length" if len(want) == one.max_tokens else "context"
            assert one.finish_reason == reason


def prompts(rng: random.Random, n: int) -> Iterator[list[int]]:
    common = [rng.randint(1, 9) for _ in range(150)]
    for _ in range(n):
        yield [*common[: rng.randint(0, 150)], *(rng.randint(1, 9) for _ in range(rng.randint(1, 50)))]


class Room:
    """Lets paused requests give way when pages run short."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.times = scheduler, 0

    def make(self, sequence: Sequence) -> None:
        for one in [r for r in self.scheduler.running if r.paused and r.sequence is not sequence]:
            self.scheduler.preempt(one)
            self.times += 1


@pytest.mark.parametrize("seed", range(4))
def test_who_gives_way_for_another_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    run = Run(n_pages=5, n_batch=40, running=3, n_ctx=250)
    room, requests = Room(run.scheduler), [request(prompt, rng.randint(1, 60)) for prompt in prompts(rng, 12)]
    run.pool.call_when_short(room.make)
    for one in requests:
        run.scheduler.add(one)
    while not run.scheduler.idle:
        going = [r for r in requests if r.finish_reason is None]
        for one in going:
            one.paused = one is not going[0] and rng.random() < 0.5
        run.step()
        there = {*run.scheduler.running, *run.scheduler.waiting}
        assert there == {r for r in going if r.finish_reason is None}
    for r in requests:
        assert list(r.output_tokens) == alone(list(r.prompt), r.max_tokens or 0, 250)
    assert room.times


def test_the_newest_gives_way_and_the_oldest_goes_on() -> None:
    run = Run(n_pages=8, n_ctx=300)
    several = [request([n] * 60, 120) for n in (1, 2, 3, 4, 5, 6)]
    for one in several:
        one.stop_ids = frozenset()
        run.scheduler.add(one)
    ends = [o.request for o in run.finish() if o.finish_reason]
    assert run.scheduler.preemptions > 0
    assert ends[0] is several[0]
    assert not any(
        several[0] not in [r for r, _ in p.parts] for p in run.plans[: run.plans.index(plan_of(run, ends[0]))]
    )
    for one in several:
        assert len(one.output_tokens) == 120


def plan_of(run: Run, one: Request) -> ScheduledStep:
    return next(p for p in reversed(run.plans) if one in [r for r, _ in p.parts])


def test_a_request_that_is_alone_and_has_no_more_pages_ends() -> None:
    run = Run(n_pages=2, n_ctx=1000)
    one = request([5] * 100, 500)
    one.stop_ids = frozenset()
    run.scheduler.add(one)
    run.finish()
    assert (one.finish_reason, len(one.tokens)) == ("context", 2 * PAGE_SIZE + 1)


def test_a_prompt_is_admitted_only_if_all_of_it_fits() -> None:
    run = Run(n_pages=4, n_batch=512, n_ctx=1000)
    first, second, third = request([1] * 100, 300), request([2] * 100, 5), request([3], 5)
    for one in (first, second, third):
        one.stop_ids = frozenset()
        run.scheduler.add(one)
    run.step()
    assert run.scheduler.running == [first], "the second lacks a page for the first to go on; the third is behind it"
    run.finish()
    with pytest.raises(ContextFullError, match="prompt of 257 tokens does not fit the context of 256"):
        run.scheduler.add(request([1] * 257))
    with pytest.raises(UsageError, match="no tokens"):
        run.scheduler.add(request([]))
    run.pool.grow(Sequence(), 3 * PAGE_SIZE)
    run.scheduler.add(request([9] * 100))
    with pytest.raises(CacheFullError):
        run.scheduler.schedule()


def test_a_prompt_like_one_under_way_waits_for_its_pages() -> None:
    run = Run(n_batch=32)
    prompt = [n % 200 + 1 for n in range(200)]
    first, second, other = request(prompt), request([*prompt, 7]), request([1, 1])
    for one in (first, second, other):
        run.scheduler.add(one)
    run.step()
    assert run.scheduler.running == [first, other]
    run.finish()
    assert second.cached >= 3 * PAGE_SIZE


def test_a_short_prompt_passes_a_long_one_a_few_times() -> None:
    run = Run(n_pages=100, n_batch=32, running=20, n_ctx=2000)
    long, short = request([1] * 600, 1), [request([n] * 10, 1) for n in range(2, 12)]
    for one in (long, *short):
        run.scheduler.add(one)
    ends = [o.request for o in run.finish()]
    assert ends.index(long) == MAX_BYPASSES
    assert long.num_bypassed == MAX_BYPASSES


def test_priorities_and_cancelling() -> None:
    run = Run(running=1)
    first, later, sooner = request([1], 9), request([2], 3), request([3], 3, priority=-1)
    for one in (first, later, sooner):
        run.scheduler.add(one)
    run.step()
    run.scheduler.cancel(first)
    assert RequestOutput(first, None, "interrupted") in run.step()
    assert run.scheduler.running in ([sooner], [])
    assert later.state is State.WAITING
    run.scheduler.cancel(later)
    run.finish()
    assert (sooner.finish_reason in ("stop", "length"), later.finish_reason) == (True, "interrupted")


@pytest.mark.parametrize("running", [2, 8])
def test_siblings_share_a_prompt(running: int) -> None:
    run = Run(n_batch=48, running=running)
    prompt = list(range(1, 101))
    one = request(prompt, siblings=[request(prompt) for _ in range(3)])
    siblings = list(one.siblings)
    siblings[1].cancelled = True
    run.scheduler.add(one)
    run.finish()
    assert sum(n for p in run.plans for _, n in p.parts if n > 1) < 2 * len(prompt)
    for other in (one, siblings[0], siblings[2]):
        assert list(other.output_tokens) == alone(prompt, 20, 400)
    assert siblings[1].finish_reason == "interrupted"


def test_what_no_token_can_be_chosen_for_ends_alone() -> None:
    run = Run()
    bad, good = request([1]), request([2])
    for one in (bad, good):
        run.scheduler.add(one)
    plan = run.scheduler.schedule()
    why = ValueError("no such number")
    outputs = run.scheduler.commit(plan, {good: 4}, {bad: why})
    assert outputs == [RequestOutput(bad, None, "error"), RequestOutput(good, 4)]
    assert (run.scheduler.running, bad.failure) == ([good], why)
    assert run.memory.tree.match_length([1, 9]) == 0, "nobody else gets what failed"


@pytest.mark.parametrize(("why", "kept"), [(NonFiniteError("NaN"), 0), (ValueError("no such number"), 2 * PAGE_SIZE)])
def test_pages_that_nan_was_computed_from_are_for_nobody(why: Exception, kept: int) -> None:
    """Those of earlier steps of a prompt, those that it began with, and what others have put behind these."""
    run = Run(n_batch=PAGE_SIZE)
    prompt = list(range(1, 2 * PAGE_SIZE + 20))
    for one in (request(prompt[:PAGE_SIZE] + [7] * 70), other := request([9, *prompt])):
        run.scheduler.add(one)
    run.finish()
    bad = request(prompt)
    run.scheduler.add(bad)
    while bad.left > PAGE_SIZE:
        run.step()
    assert run.memory.tree.match_length(prompt) == 2 * PAGE_SIZE
    run.scheduler.commit(run.scheduler.schedule(), {}, {bad: why})
    assert run.memory.tree.match_length(prompt) == kept
    assert run.memory.tree.match_length(prompt[:PAGE_SIZE] + [7] * 70) == (PAGE_SIZE + 69 if kept else 0)
    assert run.memory.tree.match_length([9, *prompt]) == len(prompt)
    assert (run.pool.held, other.finish_reason) == (0, "stop")


def test_pace_finds_among_measured_sizes_the_largest_in_time() -> None:
    """Where a step takes as long with 16 tokens of a prompt as with 256, it takes 256."""
    budget, sizes = PrefillBudget(512, target=0.025), (16, 64, 256, 352, 512)

    def seconds(replies: int, prompts: int) -> float:
        return 0.008 + (0.008 if replies > 32 else 0.0) + (0.01 if prompts > 256 else 0.0)

    for replies in (0, 8, 32, 128):
        for n in sizes:
            budget.measured.add(replies, n, seconds(replies, n))
    assert [budget.tokens(n) for n in (0, 1, 20, 100)] == [512, 511, 492, 256]
    for _ in range(30):  # contexts take 3 ms more, the host 1 ms
        budget.observe(20, 256, seconds(20, 256) + 0.004, depth=900)
        budget.observe(100, 256, seconds(100, 256) + 0.004, depth=900)
    assert (budget.tokens(20, 900), budget.tokens(100, 900)) == (492, 256)
    for _ in range(30):
        budget.observe(20, 512, seconds(20, 512) + 0.012, depth=3000)
    assert budget.tokens(20, 3000) == 256
    for _ in range(30):
        budget.observe(100, 16, 0.08, depth=3000)
    assert budget.tokens(100, 3000) == 256, "these take no longer than 16"
    budget.measured.add(128, 64, 0.1)
    budget.measured.add(128, 256, 0.1)
    assert budget.tokens(100, 3000) == TILE, "prompts get on, whatever a step takes"


def test_pace_keeps_steps_below_the_target() -> None:
    budget = PrefillBudget(512, target=0.25)
    assert (budget.tokens(0), budget.tokens(4)) == (512, 4 * TILE)

    def seconds(replies: int, chunk: int) -> float:
        return 0.04 + 0.005 * replies + 0.004 * chunk

    for step in range(60):
        chunk = 0 if step % 3 == 0 else budget.tokens(4)
        budget.observe(4, chunk, seconds(4, chunk))
    assert 0.15 < seconds(4, budget.tokens(4)) <= 0.25
    assert budget.tokens(4) % TILE == 0
    assert budget.tokens(0) == 512
    budget.observe(4, 0, 9.0)
    assert budget.tokens(4) == TILE, "prompts get on, whatever a step takes"
    assert PrefillBudget(512).tokens(4) == 508
    assert (PrefillBudget(4, 0.1).tokens(4), PrefillBudget(10, 0.1).tokens(4)) == (0, 6)


def serve_a_prompt(
    budget: PrefillBudget, seconds: Callable[[int, int, int], float], n: int, depth: int = 0, replies: int = 4
) -> list[float]:
    """Times of the steps with a prompt of n tokens beside replies, `depth` of which are in the cache."""
    found = []
    while n:
        chunk = min(n, budget.tokens(replies, depth))
        found.append(seconds(replies, chunk, depth + chunk // 2))
        budget.observe(replies, chunk, found[-1], depth + chunk // 2)
        n, depth = n - chunk, depth + chunk
    return found


@pytest.mark.parametrize("token", [0.0005, 0.004, 0.02], ids=["fast", "middle", "slow"])
@pytest.mark.parametrize("deep", [0.0, 1.0, 4.0], ids=["flat", "rising", "steep"])
def test_steps_beside_a_long_prompt_take_as_long_as_they_may(token: float, deep: float) -> None:
    """Workload B: four replies, and 2,048 tokens of a prompt; a token takes up to 5 times as long at their end."""

    def seconds(replies: int, chunk: int, depth: int) -> float:
        return 0.03 + 0.006 * replies + chunk * token * (1 + deep * depth / 2048)

    budget = PrefillBudget(512, 0.25, MIN_CHUNK)
    budget.observe(0, TILE, 0.03 + TILE * token, TILE // 2)  # as a server does when it begins
    for _ in range(3):
        budget.observe(4, 0, seconds(4, 0, 0))
    found = serve_a_prompt(budget, seconds, 2048)
    least = seconds(4, MIN_CHUNK, 2048)
    assert max(found) <= max(0.3, least)
    assert sum(found) / len(found) > 0.15 or budget.tokens(4) == 508, "the time there is is used"
    again = serve_a_prompt(budget, seconds, 512, 1536)  # what came before is in the cache
    assert max(again) <= max(0.3, least)


def gaps_of_a_burst(budget: PrefillBudget, seconds: Callable[[int, int], float], n: int) -> list[list[float]]:
    """Times of steps beside 0 to n replies, as n prompts of 128 tokens come at once and go on as replies of 128."""
    read, replies, gaps = 0, list[int](), [list[float]() for _ in range(n + 1)]
    while read < 128 * n or replies:
        chunk = min(budget.tokens(len(replies)), 128 * n - read)
        gaps[len(replies)].append(seconds(len(replies), chunk))
        budget.observe(len(replies), chunk, gaps[len(replies)][-1], 64)
        ended, read = read // 128, read + chunk
        replies = [left - 1 for left in replies if left > 1] + [127] * (read // 128 - ended)
    return gaps


@pytest.mark.parametrize("row", [0.002, 0.0155, 0.025])
@pytest.mark.parametrize("token", [0.004, 0.0155, 0.03])
def test_prompts_that_come_at_once_get_on_beside_replies(row: float, token: float) -> None:
    """Steps take up to twice as long as without prompts, where these are slow, and up to 300 ms where they are not."""

    def seconds(replies: int, chunk: int) -> float:
        return 0.058 + row * replies + token * chunk

    budget = PrefillBudget(512, 0.25, MIN_CHUNK)
    budget.observe(0, TILE, seconds(0, TILE), TILE // 2)
    budget.observe(1, 0, seconds(1, 0))
    gaps = gaps_of_a_burst(budget, seconds, 8)
    for replies, times in enumerate(gaps[1:], 1):
        assert max(times, default=0.0) <= max(2 * seconds(replies, 0), 0.3)
    if (row, token) == (0.0155, 0.0155):
        assert 8 * 128 / sum(map(sum, gaps)) > 23.4, "tokens a second; all prompts before all replies would be 26"


def test_steps_of_times_that_vary_stay_below_the_target() -> None:
    rng = random.Random(3)

    def seconds(replies: int, chunk: int, depth: int) -> float:
        return (0.05 + 0.004 * chunk) * rng.uniform(0.85, 1.15)

    budget = PrefillBudget(512, 0.25, MIN_CHUNK)
    budget.observe(0, TILE, 0.12)
    budget.observe(4, 0, 0.05)
    found = sorted(t for _ in range(20) for t in serve_a_prompt(budget, seconds, 2048))
    assert found[int(0.99 * len(found))] <= 0.3
    assert found[len(found) // 2] > 0.15


def test_a_slow_machine_takes_small_parts_of_prompts() -> None:
    budget = PrefillBudget(512, 0.25, MIN_CHUNK)
    budget.observe(4, 0, 0.15)
    for _ in range(5):
        budget.observe(4, TILE, 0.15 + TILE * 0.02)
    assert budget.tokens(4) == MIN_CHUNK
    assert PrefillBudget(512, 0.25).min_tokens == TILE
