"""Async scheduling: a step is launched before the tokens of the one before it, sampled on the device, are read.

So the device works while the host reads, streams and schedules. A step is launched early, with parts of prompts or
without, as long as all of its tokens are argmaxes or are drawn among a few candidates, and no request has to be
preempted. A reply that turns out to have ended was computed once too often; its row is discarded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import cast

from octavo.graph.plan import Fed, StepHandle
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.sampling.draw import GREEDY, DeviceDraws
from octavo.runtime.sampling.sampler import ChainSampler
from octavo.runtime.sampling.step_sampler import SampledTokens, StepSampler
from octavo.runtime.sampling.top_k import BEST, DRAWN
from octavo.runtime.scheduler.request import Request, State
from octavo.runtime.scheduler.scheduler import ScheduledStep, Scheduler

log = logging.getLogger("octavo")


@dataclass(frozen=True)
class InFlightStep:
    """A step that is launched and not yet read.

    output      BEST or DRAWN: what samples its tokens
    n_launched  how many steps the engine had launched by then
    sequences   of its requests
    """

    step: ScheduledStep
    handle: StepHandle
    output: int
    n_launched: int
    sequences: Seq[Sequence]

    @property
    def is_needed(self) -> bool:
        """Whether any of its requests is still running."""
        return any(r.state is State.RUNNING for r, _ in self.step.parts)

    def live_parts(self) -> list[int]:
        """The numbers of its parts whose requests are still running, as they were when it was launched."""
        parts = enumerate(zip(self.step.parts, self.sequences, strict=True))
        return [i for i, ((r, _), s) in parts if r.state is State.RUNNING and r.sequence is s]


class AsyncScheduler:
    """Launches steps, each before the one before it is read."""

    def __init__(self, scheduler: Scheduler, sampler: StepSampler) -> None:
        self.scheduler, self.sampler, self.engine = scheduler, sampler, sampler.engine

    def launch(self, step: ScheduledStep) -> InFlightStep | None:
        """Launch a step, if others may follow before it is read; None where that fails, too."""
        return self._launched(step) if self.engine.supports_async and self._can_launch(step) else None

    def launch_next(self, last: InFlightStep, *, prompts: bool = True) -> InFlightStep | None:
        """Launch the step after one in flight; None where it has to wait for the tokens of that one."""
        if self.engine.n_launched != last.n_launched:  # what it left on the device may be overwritten
            return None
        step = self.scheduler.schedule_next(prompts=prompts)
        return self._launched(step, last) if step is not None and self._can_launch(step) else None

    def _can_launch(self, step: ScheduledStep) -> bool:
        """Whether all tokens of a step are sampled on the device; a step without any has to be padded."""
        new = [r for r, _ in step.sampling if not r.num_pending_outputs]  # the others are in a step in flight
        return all(map(self._samples_on_device, new)) and bool(step.sampling or self.engine.pads)

    def _samples_on_device(self, request: Request) -> bool:
        """Whether a request's token is sampled on the device, and nothing else is asked of it."""
        if request.siblings:
            return False
        drawn = self.engine.draws and request.is_plain and cast(ChainSampler, request.sampler).in_top_k
        return drawn or request.is_greedy

    def _launched(self, step: ScheduledStep, last: InFlightStep | None = None) -> InFlightStep | None:
        try:
            in_flight = self._in_flight(step, last)
        except Exception as error:
            log.warning("a step could not be launched ahead of time: %s", error)
            return None
        self.scheduler.launched(step)
        return in_flight

    def _in_flight(self, step: ScheduledStep, last: InFlightStep | None) -> InFlightStep:
        sequences, feeds = [r.sequence for r, _ in step.parts], list[Feed]()
        for (request, n), sequence in zip(step.parts, sequences, strict=True):
            start = len(sequence.tokens) + request.num_inflight_tokens
            tokens = request.tokens[start : start + n] or [0]  # or the pending one
            feeds.append(Feed(sequence, tokens, 1, request.num_inflight_tokens))
        padded = self.engine.padded(feeds)
        output, draws = self._draws(step, len(padded))
        fed = None if last is None else _fed(step, last)
        handle = self.engine.launch(padded, (output,), fed, draws, check=False)
        return InFlightStep(step, handle, output, self.engine.n_launched, sequences)

    def _draws(self, step: ScheduledStep, rows: int) -> tuple[int, DeviceDraws | None]:
        """The output that samples the tokens of a step with this many rows, and what it needs to draw them.

        Steps with prompts have the same one, whatever they sample, so that each size of them is captured once.
        """
        draws, positions = [GREEDY] * rows, [0] * rows
        for request, i in step.sampling:
            draws[i] = cast(ChainSampler, request.sampler).draw
            positions[i] = request.length
        if not (step.num_prefill_tokens and self.engine.draws) and all(d.k == 1 for d in draws):
            return BEST, None
        return DRAWN, DeviceDraws(draws, positions, self.sampler.n_known)

    def discard(self, in_flight: InFlightStep) -> None:
        """Ignore what a step samples."""
        self.scheduler.settle(_only(in_flight.step, in_flight.live_parts()))

    def sampled(self, in_flight: InFlightStep) -> tuple[ScheduledStep, SampledTokens | None]:
        """The part of a step whose requests still run, and their tokens; None where the host has to sample them."""
        live, step = in_flight.live_parts(), in_flight.step
        left = set(live)
        rows = [row for row in step.sampling if row[1] in left]
        done = step if len(live) == len(step.parts) else _only(step, live)
        self.scheduler.settle(done)
        return done, self.sampler.sampled_on_device(in_flight.handle, in_flight.output, rows)


def _only(step: ScheduledStep, numbers: Seq[int]) -> ScheduledStep:
    """Some parts of a step."""
    at = {number: i for i, number in enumerate(numbers)}
    sampling = tuple((r, at[i]) for r, i in step.sampling if i in at)
    return replace(step, parts=tuple(step.parts[i] for i in numbers), sampling=sampling)


def _fed(step: ScheduledStep, last: InFlightStep) -> Fed | None:
    """The tokens of a step that the one before it samples, on the device: they come first."""
    rows = dict(last.step.sampling)
    places = [rows[r] for r, _ in step.parts if r.num_pending_outputs]
    return Fed(last.handle, places) if places else None
