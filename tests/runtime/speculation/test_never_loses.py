"""Whatever is accepted and whatever steps take, replies with drafts come about as fast as without, or faster."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from octavo.runtime.scheduler.prefill_budget import PrefillBudget
from octavo.runtime.speculation.draft_lengths import DraftLengths
from octavo.runtime.speculation.draft_record import Acceptance, DraftRecord
from octavo.runtime.speculation.verification import Speculator

MOST, REPLY = 7, 100
FLAT, MEMORY, COMPUTE = 0.0, 0.03, 0.4
"""What a token more adds to a step of one token: nothing, as where memory is the limit, or as where arithmetic is."""


def gain(
    right: float, more: float, replies: int, *, making: float = 0.0, noise: float = 0.0, steps: int = 1200,
    seed: int = 0, bound: float = 1.0,
) -> float:
    """Tokens a second with drafts over those without, on a made-up machine.

    right    how likely a token of a draft is right, if those before it are
    more     of the time of a step of one token, what a further one adds
    making   the same, of a token of each draft
    noise    deviation of a step's time, and that of the machine's speed from one second to the next
    bound    times as long as later ones that the first step without drafts takes, for which calls are bound
    """
    rng, base = np.random.default_rng(seed), 1.0 + more * (replies - 1)
    budget, usual = PrefillBudget(512), Acceptance()
    made = DraftLengths(MOST, budget.seconds)
    records, left = [_record(usual) for _ in range(replies)], [REPLY] * replies
    speed, tokens, seconds, plain = 1.0, 0, 0.0, 0.0
    for step in range(steps):
        if step % 50 == 0:
            speed = float(np.exp(noise * rng.standard_normal()))
        hiccup = speed * float(np.exp(noise * rng.standard_normal())) * (3.0 if noise and rng.random() < 0.01 else 1.0)
        rates, each = [record.rate("draft") for record in records], making if step else 0.0
        lengths = made.plan(replies, rates, [MOST] * replies, room=48, making=each.__mul__)
        accepted = [_accepted(rng, right, n) for n in lengths]
        took = (base + more * sum(lengths)) * hiccup
        if sum(lengths):
            budget.observe_more(replies, took)
            made.observe(replies, sum(lengths), took, 1)
            took += making * max(lengths) * hiccup
        else:
            budget.observe(replies, 0, took if step else took * bound)
        tokens, seconds = tokens + sum(accepted) + replies, seconds + took
        plain += (sum(accepted) / replies + 1) * base * hiccup  # the same tokens, a step each
        for i, (n, k) in enumerate(zip(lengths, accepted, strict=True)):
            if n:
                records[i].add("draft", n, k)
            left[i] -= k + 1
            if left[i] <= 0:
                records[i], left[i] = _record(usual), REPLY
    return plain / seconds


def _record(usual: Acceptance) -> DraftRecord:
    record = DraftRecord()
    record.acceptance.usual = usual
    return record


def _accepted(rng: np.random.Generator, right: float, n: int) -> int:
    wrong = np.flatnonzero(rng.random(n) >= right)
    return int(wrong[0]) if len(wrong) else n


@pytest.mark.few(12)
@pytest.mark.parametrize("right", [0.0, 0.3])
@pytest.mark.parametrize("more", [FLAT, MEMORY, COMPUTE, 1.0])
@pytest.mark.parametrize("replies", [1, 4, 16])
def test_never_slower(right: float, more: float, replies: int) -> None:
    assert gain(right, more, replies) > 0.98
    assert gain(right, more, replies, making=0.25) > 0.98


@pytest.mark.parametrize("replies", [1, 4])
def test_a_first_step_that_took_long_is_no_measure(replies: int) -> None:
    """As of a small model, whose calls take ten times as long to bind as to run."""
    assert gain(0.6, 1.0, replies, making=0.5, bound=10.0) > 0.98


@pytest.mark.parametrize("replies", [1, 8])
def test_never_slower_on_a_busy_machine(replies: int) -> None:
    found = [gain(right, more, replies, noise=0.2, making=0.1, seed=3)
             for right in (0.0, 0.2, 0.5) for more in (MEMORY, COMPUTE)]
    assert min(found) > 0.97


@pytest.mark.parametrize(("right", "more", "making", "least"), [(0.75, MEMORY, 0.25, 1.35), (0.75, 0.1, 0.0, 1.8),
                                                                (0.95, MEMORY, 0.0, 4.0), (0.6, COMPUTE, 0.0, 1.05)])
def test_drafts_that_pay_are_made(right: float, more: float, making: float, least: float) -> None:
    assert gain(right, more, 1, making=making) > least
    assert gain(right, more, 1, making=making, noise=0.2, seed=1) > 0.9 * least


def test_what_became_right_is_found() -> None:
    """Replies that nothing could guess are followed by ones that repeat."""
    usual = Acceptance()
    for _ in range(200):
        usual.add("lookup", [False])
    record = _record(usual)
    assert record.rate("lookup") < 0.05
    for place in range(8):
        record.leave_untried("lookup", place, 7)
        record.compare([7] * place)
        record.compare([7] * (place + 1))
    assert record.rate("lookup") > 0.5
    assert usual.rate("lookup") > 0.1
    assert record.drafted == 0


def test_a_step_in_flight_is_no_try() -> None:
    """Where steps are launched before the last one is read, drafts that did not pay are tried again all the same."""
    speculator = Speculator.__new__(Speculator)
    speculator.engine = SimpleNamespace(on_device=True)  # type: ignore[assignment]
    speculator.lengths = DraftLengths(MOST, lambda replies: 0.001)
    in_flight, tries = False, list[int]()
    for step in range(500):
        ahead = speculator.rests(1)
        if ahead or in_flight:
            speculator.skip(1)
        elif any(speculator.lengths.plan(1, [0.9], [MOST], room=MOST, making=lambda n: 1.0)):
            tries.append(step)
        in_flight = ahead
    assert len(tries) == 4  # after 16 steps, 32, 64 and so on
