"""Scores of documents by a reranker: /rerank as Jina's and Cohere's clients ask for it, /score as vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from octavo.formats.spec import F32
from octavo.server.engine.engine_protocol import RANK
from octavo.server.generation.ids import new_id
from octavo.server.generation.service import Service
from octavo.server.http.background import in_thread_if_long
from octavo.server.routes.answer import body_of, json_response, service_of, unless_left
from octavo.server.routes.openai import TOGETHER
from octavo.server.routes.rerank_schema import RerankRequest, ScoreRequest


async def rerank(request: Request) -> Response:
    """Documents in the order in which they answer a query."""
    body, service = await body_of(request, RerankRequest), service_of(request)
    name, documents = service.require_model(body.model), body.given()
    scores, n = await _scored(request, service, [(body.query, one) for one in documents], raw=body.raw)
    order = sorted(range(len(documents)), key=lambda i: -scores[i])[: body.top_n]
    if body.texts is not None:
        texts = [{"text": documents[i]} if body.return_text else {} for i in order]
        return json_response([{"index": i, "score": float(scores[i]), **text}
                              for i, text in zip(order, texts, strict=True)])
    shown: list[dict[str, Any]] = [{"document": {"text": documents[i]}} if body.return_documents else {} for i in order]
    rows = [{"index": i, "relevance_score": float(scores[i]), **more} for i, more in zip(order, shown, strict=True)]
    return json_response({
        "id": new_id("rerank-"), "model": name, "object": "list", "results": rows, "usage": _usage(n),
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    })


async def score(request: Request) -> Response:
    """Scores of pairs of texts."""
    body, service = await body_of(request, ScoreRequest), service_of(request)
    name = service.require_model(body.model)
    scores, n = await _scored(request, service, body.pairs(), raw=body.raw)
    return json_response({
        "id": new_id("score-"), "object": "list", "created": int(service.created), "model": name,
        "data": [{"index": i, "object": "score", "score": float(one)} for i, one in enumerate(scores)],
        "usage": _usage(n),
    })


def _usage(n: int) -> dict[str, int]:
    return {"prompt_tokens": n, "total_tokens": n}


async def _scored(
    request: Request, service: Service, given: Sequence[tuple[str, str]], *, raw: bool
) -> tuple[F32, int]:
    """A score for each pair, between 0 and 1 unless `raw`, and the tokens of all. Raises ApiError."""
    _ = service.info
    size = sum(len(a) + len(b) for a, b in given)
    pairs = await in_thread_if_long(size, _tokens, service, given)
    request.state.prompt_tokens = n = sum(len(a) + len(b) for a, b in pairs)
    with service.admitted(n):
        found = await unless_left(request, _computed(service, pairs))
    if service.pairs.encodes and not raw:  # those of others are between 0 and 1 already
        found = (1 / (1 + np.exp(-found.astype(np.float64)))).astype(np.float32)
    return found, n


def _tokens(service: Service, given: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
    """Pairs as tokens. Raises ApiError for a model that is not a reranker, and for a pair that is too long."""
    encoder, found = service.pairs, list[tuple[list[int], list[int]]]()
    for query, document in given:
        if service.tokenizer.most_tokens is None:
            service.require_short(query + document, "documents")
        first, second = encoder.tokens(query, document)
        service.require_fitting([*first, *second], "documents", reply=False)
        found.append((first, second))
    return found


async def _computed(service: Service, pairs: Sequence[tuple[list[int], list[int]]]) -> F32:
    """The classifier's numbers, float32 [n]."""
    start, found, answers = monotonic(), [], []
    for i in range(0, len(pairs), TOGETHER):
        some = pairs[i : i + TOGETHER]
        seconds = [len(b) for _, b in some]
        scores = await service.client.embed([a + b for a, b in some], RANK, normalize=False, seconds=seconds)
        found.append(np.frombuffer(scores.data, "<f4"))
        answers.append(scores)
    service.metrics.embedded([len(a) + len(b) for a, b in pairs], monotonic() - start, answers)
    return np.concatenate(found)
