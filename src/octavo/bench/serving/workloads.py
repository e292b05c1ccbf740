"""What is asked of a server: short requests (a), long prompts among streams (b), conversations (c)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from octavo.bench.serving.latency_stats import distribution, summary
from octavo.bench.serving.request_load import at_most, at_rate
from octavo.bench.serving.serving_target import ServingTarget
from octavo.bench.serving.stream_reader import StreamedReply
from octavo.errors import BackendError

LONG_INPUT, STREAM_OUTPUT = 2048, 1024
STEADY_GAPS = 24
"""Pieces of text that each stream gets between two long prompts."""
TURNS, SYSTEM, SAID = 8, 1000, 32
"""Turns of a conversation, tokens of its system prompt and of what a user says each time."""


@dataclass(frozen=True)
class Workload:
    """How much is asked. `input` and `output` are tokens of a request; a conversation has 8 requests.

    rate     requests a second that arrive at random times, up to `streams` at once (workload a)
    limits   seconds of ttft, tpot, e2e that count as good
    """

    workload: Literal["a", "b", "c"]
    requests: int
    input: int = 128
    output: int = 128
    rate: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)


async def short(target: ServingTarget, load: Workload, streams: int) -> dict[str, Any]:
    """Workload a: prompts of `input` tokens with replies of `output`, `streams` at a time."""

    async def send() -> None:
        await target.ask(target.prompt(load.input), load.output)

    if load.rate is None:
        await at_most(streams, load.requests, send)
    else:
        await at_rate(load.rate, load.requests, send, random.Random(load.requests), streams)
    return summary(target.replies, load.limits)


async def interrupted(target: ServingTarget, load: Workload, streams: int) -> dict[str, Any]:
    """Workload b: while `streams` replies are written, prompts of 2,048 tokens arrive, one after the other.

    `during` are the streams' gaps that a long prompt's time to its first text falls into, `steady` those during which
    no prompt of anybody was computed.
    """
    long: list[StreamedReply] = []

    async def keep_writing() -> None:
        while (reply := await target.ask(target.prompt(load.input), STREAM_OUTPUT)).good:
            pass
        raise BackendError(f"{target.to.url}: a stream failed: {reply.error}")

    async def one_after_the_other() -> None:
        await _get_on(target.replies, streams)
        for _ in range(load.requests):
            long.append(await target.ask(target.prompt(LONG_INPUT), load.output))
            await _get_on(target.replies, streams)

    arriving = asyncio.create_task(one_after_the_other())
    tasks = [arriving, *(asyncio.create_task(keep_writing()) for _ in range(streams))]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    ours = [r for r in target.replies if r not in long]
    return summary(long, load.limits) | _gaps(ours, [r for r in long if r.good])


async def _get_on(replies: Sequence[StreamedReply], streams: int) -> None:
    """Wait until each stream under way has begun, and all together have had their share of text."""
    before = sum(len(r.arrivals) for r in replies)
    while sum(len(r.arrivals) for r in replies) < before + STEADY_GAPS * streams or any(
        not r.arrivals for r in replies if r.sent and not r.ended
    ):
        await asyncio.sleep(0.01)


def _gaps(streams: Sequence[StreamedReply], long: Sequence[StreamedReply]) -> dict[str, Any]:
    """Distributions of the streams' gaps, and when each was: [seconds since the first, milliseconds]."""
    prompts = [(r.sent, r.arrivals[0] if r.arrivals else float("inf")) for r in (*streams, *long) if r.sent]
    arrivals = prompts[len(prompts) - len(long) :]
    pairs = [(a, b) for r in streams for a, b in zip(r.arrivals, r.arrivals[1:], strict=False)]
    start = min((a for a, _ in pairs), default=0.0)
    return {
        "during": distribution([b - a for a, b in pairs if _meets(a, b, arrivals)]),
        "steady": distribution([b - a for a, b in pairs if not _meets(a, b, prompts)]),
        "timeline": [[round(a - start, 4), round(1e3 * (b - a), 2)] for a, b in sorted(pairs)],
        "arrivals": [[round(a - start, 4), round(b - start, 4)] for a, b in arrivals],
    }


def _meets(start: float, end: float, spans: Iterable[tuple[float, float]]) -> bool:
    return any(start < last and first < end for first, last in spans)


async def conversations(target: ServingTarget, load: Workload, streams: int) -> dict[str, Any]:
    """Workload c: conversations of 8 turns that share a system prompt of 1,000 tokens, `streams` at a time.

    Each ends with its last turn asked again under a system prompt that no server has seen: `cold`.
    """
    system = target.words(SYSTEM)
    turns: list[list[StreamedReply]] = [[] for _ in range(TURNS)]
    cold: list[StreamedReply] = []

    async def converse() -> None:
        messages = [{"role": "system", "content": system}]
        for turn in turns:
            messages.append({"role": "user", "content": target.words(SAID)})
            reply = await target.ask({"messages": messages}, load.output)
            turn.append(reply)
            if not reply.good:
                return
            messages.append({"role": "assistant", "content": reply.text})
        unseen = {"role": "system", "content": target.words(SYSTEM)}
        cold.append(await target.ask({"messages": [unseen, *messages[1:-1]]}, 1))

    await at_most(streams, load.requests, converse)
    return summary([r for turn in turns for r in turn], load.limits) | _by_turn(turns, cold)


def _by_turn(turns: Sequence[Sequence[StreamedReply]], cold: Sequence[StreamedReply]) -> dict[str, Any]:
    rows = [
        {"turn": i, "ttft": distribution([r.ttft for r in turn if r.good]),
         "input_tokens": _mean(r.prompt_tokens for r in turn), "cached_tokens": _mean(r.cached_tokens for r in turn)}
        for i, turn in enumerate(turns, 1)
    ]
    whole, last = distribution([r.ttft for r in cold if r.good]), rows[-1]["ttft"]
    ratio = last["p50"] / whole["p50"] if whole and isinstance(last, dict) else None
    return {"turns": rows, "cold": whole, "last_to_cold": ratio}


def _mean(values: Iterable[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


WORKLOADS = {"a": short, "b": interrupted, "c": conversations}
