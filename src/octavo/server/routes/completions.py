"""/v1/completions: texts or tokens to a GenerationRequest, and its replies as completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from octavo.runtime.output.reply import LogProbs
from octavo.server.constraints.response_format import effort_of, held, usable_grammar
from octavo.server.engine.engine_protocol import Prefill
from octavo.server.generation.handle import CompletionOutput, RequestHandle
from octavo.server.generation.logprobs import Offsets, text_logprobs
from octavo.server.generation.request import (
    GenerationRequest,
    most_tokens,
    named_biases,
    refuse_budget,
    sampling_of,
    seed_of,
    shows_progress,
    stops_of,
    turn_of,
)
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import bad
from octavo.server.http.background import in_thread_if_long, size_of
from octavo.server.http.sse import to_json
from octavo.server.routes.chunks import ChunkedReply
from octavo.server.routes.infill import around, fim_tokens
from octavo.server.routes.llama_server_schema import InfillRequest, NativeRequest
from octavo.server.routes.schema import CompletionRequest

USUAL_TOKENS = 16
"""The most tokens of a completion where neither it nor the server has a number, as OpenAI has it."""


def prompts_of(
    service: Service, given: object, *, reply: bool, suffix: str | None = None, most: int | None = None
) -> list[list[int]]:
    """The tokens of a text, of several, or tokens as they are. Raises ApiError for prompts that can't be computed.

    `reply`: there is to be one to each, of `most` tokens, after which `suffix` goes on.
    """
    parts: list[Any] = given if isinstance(given, list) else [given]
    if parts and isinstance(parts[0], int):
        parts = [parts]
    for part in parts:
        if isinstance(part, str):
            service.require_short(part, "prompt")
    if suffix is not None:
        fim_tokens(service)
        service.require_short(suffix, "suffix")
        plain = partial(service.tokenizer.encode, add_special=False, parse_special=False)
        texts = [plain(part) if isinstance(part, str) else part for part in parts]
        prompts = [around(service, text, plain(suffix), most) for text in texts]
    else:
        prompts = [service.tokenizer.encode(part) if isinstance(part, str) else part for part in parts]
    for prompt in prompts:
        service.require_fitting(prompt, "prompt", reply=reply)
    return prompts


def effort(body: CompletionRequest | NativeRequest) -> int:
    """See `effort_of`."""
    size = size_of(body.prompt)
    if isinstance(body, InfillRequest):
        size += size_of(body.input_prefix) + size_of(body.input_suffix)
        size += sum(len(one.text) for one in body.input_extra or ())
    elif isinstance(body, CompletionRequest):
        size += len(body.suffix or "")
    return effort_of(body, size)


async def generation_request(service: Service, body: CompletionRequest, key: str) -> GenerationRequest:
    """What a request comes to. Raises ApiError, OctavoError."""
    generation = await in_thread_if_long(effort(body), _request_without_grammar, service, body, key)
    return replace(generation, grammar=await held(service, body, usable_grammar))


def _request_without_grammar(service: Service, body: CompletionRequest, key: str) -> GenerationRequest:
    """What a request comes to but for its grammar. Raises ApiError, OctavoError."""
    service.require_generation()
    refuse_budget(body)
    n = body.n or 1
    if body.best_of is not None and body.best_of != n:
        raise bad(f"best_of is {body.best_of}, but must be equal to n, which is {n}", "best_of")
    usual = USUAL_TOKENS if service.options.max_tokens is None else None
    most = most_tokens(service, body.max_tokens, body.max_completion_tokens, body.n_predict, usual)
    return GenerationRequest(
        prompts=prompts_of(service, body.prompt, reply=most != 0, suffix=body.after, most=most), n=n,
        seed=seed_of(service, body), max_tokens=most, stop=stops_of(body),
        sampling=sampling_of(service, body, named_biases(body.logit_bias)), logprobs=logprobs_of(body),
        cache_salt=service.cache_salt(key, body.cache_salt), slot=body.id_slot, goes_on=True,
        fills=body.after is not None, progress=shows_progress(body),
        adapters=service.adapters.of(body.model, body.lora), **turn_of(body, key),
    )


def logprobs_of(body: CompletionRequest) -> int | None:
    """How many of the likeliest tokens are wanted with each; None for none, and no numbers at all."""
    if body.logprobs is None or body.logprobs is False:
        return None
    return int(body.logprobs)


class CompletionReply(ChunkedReply):
    """Writes a reply as completions, whole or in chunks.

    echoed  for each prompt how likely its tokens were, where that is wanted too
    """

    def __init__(
        self, service: Service, body: CompletionRequest, name: str, handle: RequestHandle,
        echoed: Sequence[Sequence[LogProbs]] | None = None,
    ) -> None:
        super().__init__(service, body, name, handle, "cmpl-", "text_completion")
        self.echo, self.echoed, self.logprobs = bool(body.echo), echoed, logprobs_of(body)
        self._offsets = [self._places(i, 0) for i in range(len(handle.choices))]

    def begin(self) -> bytes:
        if not self.echo:
            return b""
        return b"".join(
            self._chunk(i, self._prompt_text(i), self._prompt_logprobs(i)) for i in range(len(self.handle.choices))
        )

    def _prompt(self, i: int) -> list[int]:
        return self.handle.request.prompts[i // self.handle.request.n]

    def _prompt_text(self, i: int) -> str:
        text = self.service.tokenizer.decode(self._prompt(i), skip_special=True)
        self._offsets[i] = self._places(i, len(text))
        return text

    def _places(self, i: int, start: int) -> Offsets:
        return Offsets(self.service.tokenizer.stream_after(self._prompt(i)), start)

    def _prompt_logprobs(self, i: int) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        likely = [] if self.echoed is None else self.echoed[i // self.handle.request.n]
        tokenizer = self.service.tokenizer
        return text_logprobs(tokenizer, self._prompt(i), [None, *likely], Offsets(tokenizer.stream(skip_special=True)))

    def _chunk(
        self, i: int, text: str, logprobs: dict[str, Any] | None = None, finish: str | None = None,
        at: Prefill | None = None,
    ) -> bytes:
        why = {} if finish is None else self.handle.choices[i].why()
        choice = to_json({"index": i, "text": text, "logprobs": logprobs, "finish_reason": finish, **why})
        return self.chunk(choice, self.more(self.handle.choices[i], at))

    def events(self, outputs: list[CompletionOutput]) -> bytes:
        return b"".join(self._written(one) for one in outputs)

    def _written(self, one: CompletionOutput) -> bytes:
        text = "".join(delta.content for delta in one.deltas)
        logprobs = self._logprobs(one.choice, [one])
        progress = b"".join(self._chunk(one.choice, "", at=at) for at in one.progress)
        if not (text or logprobs or one.finish):
            return progress
        return progress + self._chunk(one.choice, text, logprobs, one.finish)

    def _logprobs(self, i: int, outputs: Sequence[CompletionOutput]) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        tokens = [token for one in outputs for token in one.tokens]
        likely = [x for one in outputs for x in one.logprobs]
        if not tokens:
            return None
        return text_logprobs(self.service.tokenizer, tokens, likely, self._offsets[i])

    def whole(self, found: Sequence[Sequence[CompletionOutput]]) -> dict[str, Any]:
        """The completion of a request that is finished."""
        choices = [self._choice(i, outputs) for i, outputs in enumerate(found)]
        times = self.handle.choices[0].timings()
        return {**self.common, "choices": choices, "usage": self.handle.usage(), "timings": times}

    def _choice(self, i: int, outputs: Sequence[CompletionOutput]) -> dict[str, Any]:
        text = self._prompt_text(i) if self.echo else ""
        logprobs = self._prompt_logprobs(i) if self.echo else None
        text += "".join(delta.content for one in outputs for delta in one.deltas)
        after = self._logprobs(i, outputs)
        if logprobs is not None and after is not None:
            logprobs = {name: [*values, *after[name]] for name, values in logprobs.items()}
        else:
            logprobs = logprobs or after
        choice = self.handle.choices[i]
        return {"index": i, "text": text, "logprobs": logprobs, "finish_reason": choice.finish, **choice.why()}
