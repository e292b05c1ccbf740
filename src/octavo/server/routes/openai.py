"""OpenAI's routes: chat completions, completions, embeddings."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from octavo.formats.spec import F32
from octavo.runtime.output.reply import LogProbs
from octavo.server.generation.handle import RequestHandle, require_values
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import bad
from octavo.server.http.background import in_thread_if_long, size_of
from octavo.server.http.sse import to_json
from octavo.server.routes import chat, completions
from octavo.server.routes.answer import answered, body_of, json_response, key_of, service_of, unless_left
from octavo.server.routes.schema import ChatRequest, CompletionRequest, EmbeddingRequest, FimRequest
from octavo.text.sentences import encode_texts

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
TOGETHER = 32
"""Texts that the engine is asked for at a time; others may come in between."""


async def chat_completions(request: Request) -> Response:
    """Reply to messages."""
    body, service = await body_of(request, ChatRequest), service_of(request)
    name, key = service.require_model(body.model), key_of(request)
    generation = await chat.generation_request(service, body, key)
    handle = RequestHandle(service, generation)
    reply = chat.ChatReply(service, body, name, handle)
    return await answered(request, handle, reply, stream=body.stream)


async def count_tokens(request: Request) -> Response:
    """The number of tokens that a chat's prompt has."""
    body, service = await body_of(request, ChatRequest), service_of(request)
    return await counted(body, service)


async def counted(body: ChatRequest, service: Service) -> Response:
    """The tokens of a chat's prompt, as OpenAI tells their number."""
    prompt = await in_thread_if_long(chat.effort(body), chat.prompt_of, service, body)
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt)})


async def render_chat(request: Request) -> Response:
    """The tokens of a chat's prompt, as vLLM has them for routers."""
    body, service = await body_of(request, ChatRequest), service_of(request)
    return json_response({"token_ids": await in_thread_if_long(chat.effort(body), chat.prompt_of, service, body)})


async def render_texts(request: Request) -> Response:
    """The tokens of prompts, likewise."""
    body, service = await body_of(request, CompletionRequest), service_of(request)
    service.require_generation()
    prompts = partial(completions.prompts_of, service, body.prompt, reply=True)
    found = await in_thread_if_long(completions.effort(body), prompts)
    return json_response([{"token_ids": prompt} for prompt in found])


async def text_completions(request: Request) -> Response:
    """Continue texts."""
    body, service = await body_of(request, CompletionRequest), service_of(request)
    name, key = service.require_model(body.model), key_of(request)
    generation = await completions.generation_request(service, body, key)
    echoed = None
    if body.echo and generation.logprobs is not None:
        require_values(sum(map(len, generation.prompts)) * (1 + generation.logprobs))
        with service.admitted(sum(map(len, generation.prompts))):
            echoed = await unless_left(request, _scored(service, generation.prompts, generation.logprobs))
    handle = RequestHandle(service, generation)
    reply = completions.CompletionReply(service, body, name, handle, echoed)
    return await answered(request, handle, reply, stream=body.stream)


async def fim_completions(request: Request) -> Response:
    """Fill in what is between two texts, as Mistral's route of this name does: the reply is a chat's."""
    body, service = await body_of(request, FimRequest), service_of(request)
    name = service.require_model(body.model)
    generation = await completions.generation_request(service, body, key_of(request))
    told = {"messages": [{"role": "user", "content": ""}], "stream_options": body.stream_options}
    handle = RequestHandle(service, generation)
    reply = chat.ChatReply(service, ChatRequest.model_validate(told), name, handle)
    return await answered(request, handle, reply, stream=body.stream)


async def embeddings(request: Request) -> Response:
    """Vectors of texts."""
    body, service = await body_of(request, EmbeddingRequest), service_of(request)
    name = service.require_model(body.model)
    if body.pooling is None and service.is_reranker:
        raise bad(f"{name} is a reranker, which scores documents: use /v1/rerank, or set pooling", "pooling")
    texts = await in_thread_if_long(size_of(body.input), encode_inputs, service, body.input)
    request.state.prompt_tokens = n = sum(map(len, texts))
    with service.admitted(n):
        found = await unless_left(request, vectors_of(service, texts, body.pooling or ""))
    data = [{"object": "embedding", "index": i, "embedding": _written(row, body)} for i, row in enumerate(found)]
    usage = {"prompt_tokens": n, "total_tokens": n}
    return json_response({"object": "list", "data": data, "model": name, "usage": usage})


async def _scored(service: Service, prompts: Sequence[list[int]], k: int) -> list[list[LogProbs]]:
    return [(await service.client.score(prompt, k)).logprobs for prompt in prompts]


async def vectors_of(
    service: Service, texts: Sequence[list[int]], pooling: str = "", *, normalize: bool = True
) -> F32:
    """Vectors of texts, float32 [n, n_embd]; `pooling` "" is the model's own."""
    start, found, answers = monotonic(), [], []
    for i in range(0, len(texts), TOGETHER):
        vectors = await service.client.embed(list(texts[i : i + TOGETHER]), pooling, normalize=normalize)
        found.append(np.frombuffer(vectors.data, "<f4").reshape(-1, vectors.width))
        answers.append(vectors)
    service.metrics.embedded([*map(len, texts)], monotonic() - start, answers)
    return np.concatenate(found)


def encode_inputs(service: Service, given: object, *, cut: bool = False) -> list[list[int]]:
    """The tokens of what is to be embedded: a text, tokens, or several of these. `cut`: longer ones to the context.

    Raises ApiError.
    """
    parts: list[Any] = given if isinstance(given, list) else [given]
    if parts and isinstance(parts[0], int):
        parts = [parts]
    written = [part for part in parts if isinstance(part, str)]
    if service.tokenizer.most_tokens is None and not cut:
        for part in written:
            service.require_short(part, "input")
    encoded = iter(encode_texts(service.tokenizer, written))
    texts = [next(encoded) if isinstance(part, str) else part for part in parts]
    if cut:
        texts = [service.tokenizer.cut(text, service.most_tokens) for text in texts]
    for text in texts:
        service.require_fitting(text, "input", reply=False)
    return texts


def cut_vector(row: Vector, dimensions: int) -> Vector:
    """The first values of a vector, which is then again of length 1."""
    return row if dimensions == len(row) else (row[:dimensions] / (np.linalg.norm(row[:dimensions]) or 1)).astype("<f4")


def _written(row: Vector, body: EmbeddingRequest) -> Raw | str:
    """A vector, of the wanted number of dimensions."""
    if body.dimensions is not None:
        if body.dimensions > len(row):
            raise bad(f"dimensions is {body.dimensions} (allowed: 1 to {len(row)})", "dimensions")
        row = cut_vector(row, body.dimensions)
    if body.encoding_format == "base64":
        return base64.b64encode(row.tobytes()).decode()
    return Raw(to_json(row.tolist()))
