"""Ollama's routes that a model answers: /api/chat, /api/generate, /api/embed and what they say of the model.

Requests become those of OpenAI's routes; replies are lines of JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.runtime.output.thinking import thinking_after
from octavo.server.generation.content_blocks import Blocks, Change, ReplyBlock
from octavo.server.generation.handle import CompletionOutput, RequestHandle
from octavo.server.generation.handover import created
from octavo.server.generation.logprobs import chat_logprobs
from octavo.server.generation.request import GenerationRequest
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import ApiError, PromptTooLongError, bad, ollama_error
from octavo.server.http.background import in_thread_if_long, size_of
from octavo.server.http.sse import LineStream, to_json
from octavo.server.model_name import tagged_name
from octavo.server.routes import chat as chats
from octavo.server.routes import completions
from octavo.server.routes.answer import answered, body_of, json_response, key_of, service_of, unless_left
from octavo.server.routes.ollama_facts import API_VERSION, FOREVER, go_time, list_row, model_row, shown_model
from octavo.server.routes.ollama_schema import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaNameRequest,
    ReplyRequest,
    chat_request,
    completion_request,
)
from octavo.server.routes.openai import cut_vector, encode_inputs, vectors_of

NS = 1_000_000_000
REASONS = {"length": "length"}


async def chat(request: Request) -> Response:
    """Reply to messages, as Ollama does; without any the model is loaded."""
    body, service = await body_of(request, OllamaChatRequest), service_of(request)
    name = _require(service, body)
    if not body.messages:
        return _loaded(service, name, chat=True)
    return await _answered(request, service, body, name, await _chat(service, body, key_of(request)), chat=True)


async def generate(request: Request) -> Response:
    """Reply to a prompt, continue a raw one, or fill in what is before a suffix, as Ollama does; without a prompt and
    a suffix the model is loaded."""
    body, service = await body_of(request, OllamaGenerateRequest), service_of(request)
    name = _require(service, body)
    if not body.prompt and not body.suffix:
        return _loaded(service, name, chat=False)
    if body.is_raw:
        wanted = completion_request(body, service.limit)
        generation = await completions.generation_request(service, wanted, key_of(request))
    else:
        generation = await _chat(service, body, key_of(request))
        if body.context:
            generation = _after(service, generation, body.context)
    return await _answered(request, service, body, name, generation, chat=False)


async def embed(request: Request) -> Response:
    """Vectors of texts, each of length 1."""
    body, service = await body_of(request, OllamaEmbedRequest), service_of(request)
    name, started = _require(service, body), monotonic()
    texts = [body.input] if isinstance(body.input, str) and body.input else body.input or []
    found: list[list[float]] = []
    n = 0
    if texts:
        tokens = await in_thread_if_long(
            size_of(texts), encode_inputs, service, texts, cut=body.truncate is not False
        )
        request.state.prompt_tokens = n = sum(map(len, tokens))
        with service.admitted(n):
            vectors = await unless_left(request, vectors_of(service, tokens))
        most = min(body.dimensions or len(vectors[0]), len(vectors[0]))
        found = [cut_vector(row, most).tolist() for row in vectors]
    return json_response({
        "model": name, "embeddings": found, "total_duration": round((monotonic() - started) * NS), "load_duration": 0,
        "prompt_eval_count": n,
    })


async def embeddings(request: Request) -> Response:
    """The vector of a text, in the older form."""
    body, service = await body_of(request, OllamaEmbeddingsRequest), service_of(request)
    _require(service, body)
    if not body.prompt:
        return json_response({"embedding": []})
    tokens = await in_thread_if_long(len(body.prompt), encode_inputs, service, [body.prompt], cut=True)
    request.state.prompt_tokens = n = len(tokens[0])
    with service.admitted(n):
        (row,) = await unless_left(request, vectors_of(service, tokens, normalize=False))
    return json_response({"embedding": row.tolist()})


async def tags(request: Request) -> Response:
    """The model that is served."""
    service = service_of(request)
    names = (service.options.name, *service.options.aliases)
    return json_response({"models": [list_row(name, service.path, service.file) for name in names]})


async def ps(request: Request) -> Response:
    """The model that is loaded."""
    service = service_of(request)
    info, name = service.info, tagged_name(service.options.name)
    return json_response({"models": [{
        **model_row(name, service.path, service.file), "size": info.nbytes, "expires_at": FOREVER,
        "size_vram": info.nbytes if info.device.startswith(("gpu", "cuda")) else 0, "context_length": info.n_ctx,
    }]})


async def show(request: Request) -> Response:
    """The facts of the model."""
    body, service = await body_of(request, OllamaNameRequest), service_of(request)
    name = service.require_model(body.meant)
    facts = shown_model(name, service.path, service.file, service.info.n_ctx, verbose=bool(body.verbose),
                        template=service.template.source)
    return json_response(facts)


async def version(request: Request) -> Response:
    """The version of Ollama whose routes these are: its clients ask for a minimum."""
    return json_response({"version": API_VERSION})


async def of_several(request: Request) -> Response:
    """Of servers with several models: here there is one, and it stays."""
    raise bad(f"{request.url.path} is for servers of several models: start `octavo serve` without one, or with several")


def _require(service: Service, body: ReplyRequest | OllamaEmbedRequest | OllamaEmbeddingsRequest) -> str:
    """The name of the model. Raises ApiError where it is another one, or nothing can be answered."""
    name = service.require_model(body.model)
    if (why := service.health()) is not None:
        raise why
    return name


def _loaded(service: Service, name: str, *, chat: bool) -> Response:
    service.require_generation()
    said = {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
    return json_response({"model": name, "created_at": _now(), **said, "done": True, "done_reason": "load"})


async def _chat(service: Service, body: OllamaChatRequest | OllamaGenerateRequest, key: str) -> GenerationRequest:
    """What messages come to. Raises ApiError, OctavoError."""
    wanted = chat_request(body)
    if body.think and thinking_after(service.template_for(wanted.tools).source, "") is None:
        raise bad(f"think: {service.options.name} does not support thinking", "think")
    try:
        return await chats.generation_request(service, wanted, key)
    except ApiError as error:
        if error.param == "response_format":
            raise bad(f"format: {error.message}", "format") from None
        raise


def _after(service: Service, generation: GenerationRequest, context: list[int]) -> GenerationRequest:
    """The same behind the tokens of an earlier conversation."""
    (prompt,) = generation.prompts
    if prompt[0] == service.tokenizer.bos_id:
        prompt = prompt[1:]
    whole = [*context, *prompt]
    service.require_fitting(whole, "context")
    return replace(generation, prompts=[whole])


async def _answered(
    request: Request, service: Service, body: ReplyRequest, name: str, generation: GenerationRequest, *, chat: bool
) -> Response:
    if (most := body.num_ctx) is not None:
        n = len(generation.prompts[0])
        if n >= most:
            raise PromptTooLongError(n, most, "options")
        room = most - n
        generation = replace(generation, max_tokens=min(generation.max_tokens or room, room)
                             if generation.max_tokens != 0 else 0)
    handle = RequestHandle(service, generation)
    keeps = isinstance(body, OllamaGenerateRequest) and not body.raw
    reply = OllamaReply(service, name, handle, chat=chat, keeps=keeps)
    return await answered(request, handle, reply, stream=body.stream is not False, kind=LineStream)


def _now() -> str:
    """When a reply is made, as Go writes times."""
    return go_time(datetime.fromtimestamp(created(), UTC))


class OllamaReply:
    """Writes a reply as Ollama does, whole or in lines.

    chat   it is a message, else a text
    keeps  it ends with the tokens of all that was said, with which a request may go on
    """

    def __init__(self, service: Service, name: str, handle: RequestHandle, *, chat: bool, keeps: bool) -> None:
        self.service, self.handle, self.chat, self.keeps = service, handle, chat, keeps
        self.blocks, self.common = Blocks(), {"model": name, "created_at": _now()}
        self._tokens, self._untold, self._calls = list[int](), list[dict[str, Any]](), 0

    def begin(self) -> bytes:
        return b""

    def events(self, outputs: list[CompletionOutput]) -> bytes:
        lines = []
        for one in outputs:
            self._count(one)
            lines += [self._line(change) for change in self.blocks.take([one])]
        return b"".join(lines)

    def end(self) -> bytes:
        lines = [self._line(change) for change in self.blocks.end()]
        return b"".join((*lines, _written(self.common | self._said() | self._end())))

    def error(self, error: ApiError) -> bytes:
        return _written(ollama_error(error))

    def whole(self, found: Sequence[Sequence[CompletionOutput]]) -> dict[str, Any]:
        """The answer of a request that is finished."""
        for one in found[0]:
            self._count(one)
        for _ in self.blocks.take(found[0]):
            pass
        blocks = self.blocks.all
        text, thinking = ("".join(one.text for one in blocks if one.kind == kind) for kind in ("text", "thinking"))
        return self.common | self._said(text, thinking, self._called(blocks)) | self._end()

    def _count(self, output: CompletionOutput) -> None:
        """Keep the tokens of an output, and how likely they were until a line tells of it."""
        self._tokens += output.tokens
        if output.logprobs:
            shown = self.handle.shown_tokens(output)
            told = chat_logprobs(self.service.tokenizer, output.tokens[:shown], output.logprobs[:shown])
            self._untold += told["content"]

    def _line(self, change: Change) -> bytes:
        what, block, piece = change
        if what == "ends" and (calls := self._called([block])):
            said = self._said(calls=calls)
        elif what == "grows" and block.kind != "call":
            said = self._said(piece) if block.kind == "text" else self._said(thinking=piece)
        else:
            return b""
        return _written(self.common | said | {"done": False} | self._likely())

    def _said(self, text: str = "", thinking: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        more: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if calls:
            more["tool_calls"] = list(calls)
        return {"message": {"role": "assistant", "content": text, **more}} if self.chat else {"response": text, **more}

    def _called(self, blocks: Sequence[ReplyBlock]) -> list[dict[str, Any]]:
        """The calls among blocks, but for one that was cut off: its arguments are nothing that a tool could have."""
        found = []
        for one in blocks:
            if one.kind == "call" and (arguments := one.data()) is not None:
                function = {"index": self._calls, "name": one.name, "arguments": arguments}
                found.append({"id": one.id, "function": function})
                self._calls += 1
        return found

    def _likely(self) -> dict[str, Any]:
        told, self._untold = self._untold, []
        return {"logprobs": told} if told else {}

    def _end(self) -> dict[str, Any]:
        """Why the reply ended, and its times in nanoseconds."""
        (choice,) = self.handle.choices
        times = choice.timings()
        context = {"context": [*self.handle.request.prompts[0], *self._tokens]} if self.keeps else {}
        return {
            "done": True, "done_reason": "length" if choice.finish == "length" else "stop", **context,
            "total_duration": round((monotonic() - self.handle.started) * NS), "load_duration": 0,
            "prompt_eval_count": choice.n_prompt, "prompt_eval_duration": max(1, round(times["prompt_ms"] * 1e6)),
            "eval_count": choice.tokens, "eval_duration": max(1, round(times["predicted_ms"] * 1e6)), **self._likely(),
        }


def _written(line: dict[str, Any]) -> bytes:
    return to_json(line) + b"\n"
