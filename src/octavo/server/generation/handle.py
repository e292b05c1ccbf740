"""RequestHandle: a request under way, and what each step adds to its replies, for any route to write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self

from msgspec.structs import replace as replaced

from octavo.runtime.output.reply import LogProbs
from octavo.server.engine.engine_protocol import Add, EngineOutput, Prefill
from octavo.server.generation.handover import HANDOVER
from octavo.server.generation.output_parser import Delta, OutputParser
from octavo.server.generation.request import GenerationRequest
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import bad, of_kind
from octavo.server.serve_options import KeyShare

ENDS = {"stop": "stop", "length": "length", "context": "length", "time": "length", "interrupted": "stop"}
"""Finish reasons as clients know them."""
MAX_VALUES = 1 << 20
"""Tokens of an answer that is not a stream, with the likeliest in their places: each takes half a kilobyte."""


def require_values(values: int) -> None:
    """Raise ApiError for more tokens and log-probabilities than an answer may have at once."""
    if values > MAX_VALUES:
        raise bad(f"the answer has more than {MAX_VALUES} tokens and log-probabilities: set stream to true")


@dataclass(slots=True)
class CompletionOutput:
    """What steps add to a choice: deltas, tokens with their log-probabilities, and why it ended if it did.

    A token that ends it is among its tokens, and in no delta.
    """

    choice: int
    deltas: list[Delta] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogProbs] = field(default_factory=list)
    finish: str | None = None
    progress: list[Prefill] = field(default_factory=list)


@dataclass(slots=True)
class ChoiceState:
    """A reply so far.

    end      why the engine ended it: "stop", "length", "context" or "time"
    stopped  the stop string that did
    ended    the token that did
    drafted  tokens of its drafts, and how many of them were accepted; None where there were none
    """

    parser: OutputParser
    n_prompt: int
    tokens: int = 0
    reasoning_tokens: int = 0
    called: bool = False
    finish: str | None = None
    end: str | None = None
    stopped: str | None = None
    ended: int | None = None
    prefill: Prefill | None = None
    drafted: tuple[int, int] | None = None
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def seconds(self) -> float:
        """From its first token to its last."""
        return self.last_at - self.first_at

    def why(self) -> dict[str, str]:
        """What a choice says beside `finish_reason` where that does not tell why it ended, by vLLM's name."""
        return {"stop_reason": "time"} if self.end == "time" else {}

    def progress(self, at: Prefill) -> dict[str, int]:
        """How far its prompt is computed, as llama-server tells it."""
        return {"total": self.n_prompt, "cache": at.cached, "processed": at.read, "time_ms": round(1000 * at.seconds)}

    def timings(self, at: Prefill | None = None) -> dict[str, Any]:
        """How long its parts took, in milliseconds, as llama-server tells it; `at`: while its prompt is computed.

        A token's time is from the one before it: the first, which the prompt's time ends with, has none.
        """
        cached, n_prompt, prompt, n, seconds = 0, self.n_prompt, 0.0, self.tokens, self.seconds
        if at is not None:
            cached, n_prompt, prompt, n, seconds = at.cached, at.read - at.cached, at.seconds, 0, 0.0
        elif self.prefill is not None:
            cached, prompt = self.prefill.cached, self.prefill.seconds
            n_prompt -= cached
        later = max(n - 1, 0)
        drafts = {} if self.drafted is None else dict(zip(("draft_n", "draft_n_accepted"), self.drafted, strict=True))
        return {
            "cache_n": cached,
            "prompt_n": n_prompt,
            "prompt_ms": 1000 * prompt,
            "prompt_per_token_ms": 1000 * prompt / n_prompt if n_prompt else 0.0,
            "prompt_per_second": n_prompt / prompt if prompt else 0.0,
            "predicted_n": n,
            "predicted_ms": 1000 * seconds,
            "predicted_per_token_ms": 1000 * seconds / later if later else 0.0,
            "predicted_per_second": later / seconds if seconds else 0.0,
            **drafts,
        }


class RequestHandle:
    """The replies to a request: an asynchronous iterator of some CompletionOutputs each, or none.

    failure   what ended them early, if anything did
    handover  what its front knows of it; None where there is none
    rows      that outputs were made of since they were last told to the front

    It has to be closed, even after its end. Raises ApiError where there is no room, and from the iteration where a
    reply fails.
    """

    def __init__(self, service: Service, request: GenerationRequest) -> None:
        self.service, self.request = service, request
        self.handover, self.rows = HANDOVER.get(), list[EngineOutput]()
        self.slot, self._reply = -1, list[int]()
        if service.slots is not None and len(request.prompts) * request.n == 1:
            self.slot = service.slots.assign(request.prompts[0], request.cache_salt, request.slot, request.adapters)
        self._room = len(request.prompts) * request.n, sum(map(len, request.prompts))
        if request.sampling.banned_strings and request.grammar is not None:
            problem = "banned_strings can't be used with response_format, a grammar or tools"
            raise bad(problem, "banned_strings")
        self._share = service.shares.get(request.key)
        service.admit(*self._room, again=self.handover is not None and self.handover.begun, share=self._share)
        try:
            self.started = monotonic()
            prompts, n = request.prompts, request.n
            self.choices = [ChoiceState(request.parser(service, p), len(p)) for p in prompts for _ in range(n)]
            self._ids = ids = service.client.new_ids(len(self.choices))
            self._places = {one: i for i, one in enumerate(ids)}
            share = self._share or KeyShare("")
            priority = max(request.priority, 0) if self._share is not None else request.priority
            adds = [
                Add(ids[i * n : (i + 1) * n], prompt, request.sampling, (request.seed + i * n) % (1 << 64),
                    1 if request.max_tokens == 0 else request.max_tokens, request.logprobs, request.cache_salt,
                    request.grammar, request.thinking, request.after_sampling, request.progress,
                    adapters=[*request.adapters], priority=priority, key=share.name, weight=share.weight,
                    max_time=request.max_time, predict_time=request.predict_time)
                for i, prompt in enumerate(prompts)
            ]
            self.stream = service.client.submit(self._unfinished(adds))
        except BaseException:
            service.leave(*self._room, self._share)
            raise
        self._stop_ids = {*service.tokenizer.stop_ids, *request.sampling.stop_token_ids}
        self._closed, self._counts = False, True
        self.failure: Exception | None = None

    def _unfinished(self, adds: list[Add]) -> list[Add]:
        """Of replies that were begun elsewhere those that have not ended, with their tokens so far, each by itself."""
        if self.handover is None or not self.handover.pieces:
            return adds
        found, tokens = list[Add](), iter(self.handover.tokens(len(self.choices)))
        for add in adds:
            for i, one in enumerate(add.ids):
                if (output := next(tokens)) is not None:
                    seed = (add.seed + i) % (1 << 64)
                    found.append(replaced(add, ids=[one], seed=seed, progress=False, output=output))
        return found

    def replayed(self) -> Iterator[CompletionOutput]:
        """The outputs of what was computed elsewhere, as a route has written them."""
        self._counts = False
        for piece in self.handover.pieces if self.handover is not None else ():
            yield from self._one_by_one(piece)
        self.rows.clear()
        self._counts = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Iterable[CompletionOutput]:
        try:
            return self._outputs(await self.stream.__anext__())
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.failure = error
            raise

    def _outputs(self, engine_outputs: list[EngineOutput]) -> Iterable[CompletionOutput]:
        if self.handover is not None:
            return self._one_by_one(replaced(one, id=self._places[one.id]) for one in engine_outputs)
        if len(engine_outputs) == 1:
            (one,) = engine_outputs
            output = CompletionOutput(self._places[one.id])
            self._add(one, output)
            return [output]
        outputs: dict[int, CompletionOutput] = {}
        for one in engine_outputs:
            i = self._places[one.id]
            self._add(one, outputs.setdefault(i, CompletionOutput(i)))
        return list(outputs.values())

    def _one_by_one(self, rows: Iterable[EngineOutput]) -> Iterator[CompletionOutput]:
        """An output of each row, whose id is the number of its reply, so that what is written does not depend on time.

        A row is kept with the end that it brings, as a front does not look for stop strings.
        """
        for row in rows:
            output, over = CompletionOutput(row.id), self.choices[row.id].finish is not None
            try:
                self._add(row, output)
            except Exception as error:
                self.failure = error
                raise
            if not over:
                self.rows.append(row if output.finish is None or row.finish else replaced(row, finish="stop"))
            yield output

    def _add(self, one: EngineOutput, output: CompletionOutput) -> None:
        choice = self.choices[output.choice]
        if choice.finish is not None:
            return
        choice.drafted = one.drafted
        if one.error is not None:
            raise of_kind(*one.error)
        now = monotonic()
        if one.prefill is not None:
            if one.token is None and one.finish is None:
                output.progress.append(one.prefill)
                return
            self._prefilled(choice, one.prefill, now)
        if one.token is not None and self.request.max_tokens != 0:
            self._token(choice, one.token, one.logprobs, output, now)
        if choice.finish is None and one.finish is not None:
            output.deltas += choice.parser.finish(cut=one.finish != "stop")
            choice.stopped = choice.parser.stopped
            self._end(choice, "length" if self.request.max_tokens == 0 else one.finish, output)

    def _prefilled(self, choice: ChoiceState, prefill: Prefill, now: float) -> None:
        if choice.prefill is not None:  # it was begun elsewhere
            return
        choice.prefill, choice.first_at, choice.last_at = prefill, now, now
        if not self._counts:
            return
        metrics = self.service.metrics
        metrics.first.observe(now - self.started)
        if self._share is not None:
            metrics.of_keys.first.labels(self._share.name).observe(now - self.started)
        metrics.queued.observe(prefill.queued)
        metrics.prompt_tokens += choice.n_prompt - prefill.cached
        metrics.cached_tokens += prefill.cached
        metrics.prompt_seconds += prefill.seconds

    def _token(
        self, choice: ChoiceState, token: int, logprobs: LogProbs | None, output: CompletionOutput, now: float
    ) -> None:
        if self._counts:
            metrics = self.service.metrics
            metrics.generated_tokens += 1
            if choice.tokens:
                metrics.later_tokens += 1
                metrics.gap.observe(now - choice.last_at)
        choice.tokens += 1
        choice.last_at = now
        output.tokens.append(token)
        if self.slot >= 0:
            self._reply.append(token)
        if logprobs is not None:
            output.logprobs.append(logprobs)
        if token in self._stop_ids:
            choice.ended = token
            return
        deltas = choice.parser.push((token,))
        if deltas:
            output.deltas += deltas
            choice.reasoning_tokens += bool(deltas[0].reasoning)
            choice.called = choice.called or any(delta.tool is not None for delta in deltas)
        if choice.parser.stopped is not None:
            choice.stopped = choice.parser.stopped
            self.stream.drop(self._ids[output.choice])
            self._end(choice, "stop", output)

    def _end(self, choice: ChoiceState, reason: str, output: CompletionOutput) -> None:
        choice.end = reason
        finish = ENDS[reason]
        choice.finish = output.finish = "tool_calls" if choice.called and finish == "stop" else finish
        if not self._counts:
            return
        metrics, now = self.service.metrics, monotonic()
        metrics.generated_seconds += choice.seconds
        if choice.tokens > 1:
            metrics.per_token.observe(choice.seconds / (choice.tokens - 1))
        metrics.ended(now - self.started, finish, choice.n_prompt + choice.tokens)

    def close(self) -> None:
        """End the replies, and give their room back."""
        if not self._closed:
            self._closed = True
            if self.service.slots is not None and self.slot >= 0:
                tokens = [*self.request.prompts[0], *self._reply]
                self.service.slots.put(self.slot, tokens, self.request.cache_salt, self.request.adapters)
            self.stream.close()
            self.service.leave(*self._room, self._share)
            if self._share is not None:
                read = sum(one.n_prompt - one.prefill.cached for one in self.choices if one.prefill is not None)
                self.service.metrics.of_keys.closed(self._share.name, read, sum(one.tokens for one in self.choices))

    async def finished(self) -> list[list[CompletionOutput]]:
        """All outputs of each reply. Raises ApiError for more than is kept."""
        found: list[list[CompletionOutput]] = [[] for _ in self.choices]
        values = 0
        async for outputs in self:
            for output in outputs:
                found[output.choice].append(output)
                values += len(output.tokens) + sum(len(one.likely) for one in output.logprobs)
            require_values(values)
        return found

    def usage(self) -> dict[str, Any]:
        """Tokens as OpenAI counts them. A prompt counts once, however many replies it has; end tokens count."""
        prompts = sum(map(len, self.request.prompts))
        cached = sum(choice.prefill.cached for choice in self.choices[:: self.request.n] if choice.prefill is not None)
        completion = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": completion,
            "total_tokens": prompts + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {
                "reasoning_tokens": sum(choice.reasoning_tokens for choice in self.choices), **self._predicted(),
            },
        }

    def _predicted(self) -> dict[str, int]:
        """Tokens of drafts by OpenAI's names, where there is a draft model."""
        if not self.service.info.has_draft:
            return {}
        total, accepted = (sum(choice.drafted[i] for choice in self.choices if choice.drafted) for i in (0, 1))
        return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": total - accepted}

    def shown_tokens(self, output: CompletionOutput) -> int:
        """How many of an output's tokens are in the text: all but one that ends the reply."""
        return len(output.tokens) - (output.finish is not None and self.choices[output.choice].ended is not None)
