"""A model's speed: tests of prefill and decode, subjects in turn, round by round.

A machine that others use as well is slow for everybody at once, so subjects are timed one after the other within each
round, and compared by the medians of their rounds. The read limit is measured before each test and after each round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.bench.cost import Cost
from octavo.bench.others import LoadWatch
from octavo.bench.subject import EngineSubject, Subject
from octavo.errors import UsageError

PAUSE = 0.05
"""Seconds between turns, in which a subject's idle threads go to sleep."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """`tokens` of a prompt, or decode steps for `batch` sequences after `depth` tokens each."""

    kind: Literal["prefill", "decode"]
    tokens: int
    depth: int = 0
    batch: int = 1

    @property
    def name(self) -> str:
        """As `decode 64 x8 @4096`."""
        batch = f" x{self.batch}" if self.batch > 1 else ""
        return f"{self.kind} {self.tokens}{batch}" + (f" @{self.depth}" if self.depth else "")

    @property
    def produced(self) -> int:
        """Tokens of a round, of all sequences."""
        return self.tokens * self.batch


@dataclass
class Timing:
    """A test's rounds: tokens a second of each subject by its name.

    Also the read limit before and between them, GB/s, the share of the CPU that other programs took, and our rates of
    the run's first decode test in the same rounds.
    """

    test: Trial
    rates: dict[str, list[float]]
    limits: list[float] = field(default_factory=list)
    others: float | None = None
    baseline: list[float] = field(default_factory=list)


def make_tests(prompt: int, generate: int, batches: Sequence[int] = (1,), depths: Sequence[int] = (0,)) -> list[Trial]:
    """Prefill; decode of one sequence at each depth; decode of each batch at the first depth.

    0 for `prompt` or `generate` leaves out its tests. Raises UsageError for numbers out of range.
    """
    for name, values, least in (
        ("-p", [prompt], 0), ("-n", [generate], 0), ("--batch", batches, 1), ("--depth", depths, 0),
    ):
        wrong = [v for v in values if v < least]
        if wrong:
            raise UsageError(f"{name} is {wrong[0]} (allowed: {least} or more)")
    if not prompt and not generate:
        raise UsageError("-p and -n are both 0: there is nothing to time")
    tests = [Trial("prefill", prompt)] if prompt else []
    if generate:
        tests += [Trial("decode", generate, depths[0], b) for b in batches]
        tests += [Trial("decode", generate, d) for d in depths[1:]]
    return list(dict.fromkeys(tests))


def room(tests: Sequence[Trial]) -> int:
    """Tokens of context that the tests need."""
    return max((t.depth + t.tokens for t in tests), default=1)


def time_test(
    test: Trial, subjects: Sequence[Subject], rounds: int, limit: Callable[[], float] | None = None,
    progress: Progress = lambda text: None, baseline: Callable[[], float] | None = None
) -> Timing:
    """Time a test: each subject is made ready and run once unmeasured, then all in turn for `rounds` rounds.

    `baseline` is run in each round too: what it returns is the rate that the test's is compared with.
    """
    limits = [limit()] if limit else []
    for subject in subjects:
        progress(f"{test.name}: warming up {subject.name}")
        _prepare(test, subject)
    rates: dict[str, list[float]] = {s.name: [] for s in subjects}
    watch, first = LoadWatch([s.pid for s in subjects]), []
    for i in range(rounds):
        if baseline:
            first.append(baseline())
        for subject in subjects:
            progress(f"{test.name}: round {i + 1} of {rounds}, {subject.name}")
            time.sleep(PAUSE)
            seconds = subject.prefill(test.tokens) if test.kind == "prefill" else subject.decode(test.tokens)
            rates[subject.name].append(test.produced / seconds)
        if limit:
            limits.append(limit())
    others = watch.others()
    return Timing(test, rates, limits, others, first)


def _prepare(test: Trial, subject: Subject) -> None:
    if test.kind == "prefill":
        subject.prefill(test.tokens)
        return
    subject.prepare(test.depth, test.batch)
    subject.decode(min(2, test.tokens))


def peers_for(test: Trial, subjects: Sequence[Subject]) -> list[Subject]:
    """The subjects that can run a test: only engines decode several sequences together."""
    return [s for s in subjects if test.batch == 1 or isinstance(s, EngineSubject)]


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median, mean, standard deviation (0 of one value) and the values themselves."""
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        "rounds": list(values),
    }


def report(timing: Timing, cost: Cost, read_limit: float | None) -> dict[str, Any]:
    """A row of a result: a test, what each subject reached, and what that means.

    cost        of a round's work, for all its tokens (prefill), or of one step (decode)
    read_limit  GB/s, the most that was measured in the run
    """
    test, (ours, *others) = timing.test, timing.rates
    rates = {name: summary(values) for name, values in timing.rates.items()}
    median = rates[ours]["median"]
    passes = median / (test.tokens if test.kind == "prefill" else test.batch)  # rounds, or steps, a second
    row: dict[str, Any] = {
        "test": test.name, "kind": test.kind, "tokens": test.tokens, "depth": test.depth, "batch": test.batch,
        "rates": rates, "ratio": {name: median / rates[name]["median"] for name in others},
        "gops": cost.operations * passes / 1e9, "read_limits": timing.limits,
        "others_cpu": timing.others,
    }
    if test.kind == "decode":
        row["weights_gbps"] = cost.weights * passes / 1e9
        row["share_of_read_limit"] = row["weights_gbps"] / read_limit if read_limit else None
        ratios = [rate / first for rate, first in zip(timing.rates[ours], timing.baseline, strict=False)]
        row["to_first"] = statistics.median(ratios) if ratios else None
    return row
