"""Scores of documents by route, as `transformers` has them, and as clients of others' APIs read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import cohere
import httpx
import numpy as np
import pytest

import octavo
from tests.models.test_ranking import DOCUMENTS, QUERY, encoder, qwen
from tests.server.live_server import Server, running_model


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, np.ndarray]]:
    """A random reranker, and its scores of the documents."""
    folder = tmp_path_factory.mktemp("ranker")
    want = encoder(folder, "XLMRoberta")
    with octavo.load(folder, device="reference") as model, running_model(model) as server:
        yield server, want


def test_jinas_and_coheres_shape(ranker: tuple[Server, np.ndarray]) -> None:
    server, want = ranker
    shares, order = 1 / (1 + np.exp(-want)), [*map(int, np.argsort(-want))]
    for path in ("/v1/rerank", "/rerank", "/v2/rerank", "/reranking"):
        found = server.post(path, model="any", query=QUERY, documents=DOCUMENTS)
        assert [one["index"] for one in found["results"]] == order
        np.testing.assert_allclose([one["relevance_score"] for one in found["results"]], shares[order], atol=1e-5)
    assert (found["model"], found["object"]) == ("demo", "list")
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0
    top = server.post("/rerank", query=QUERY, documents=[{"text": one} for one in DOCUMENTS], top_n=1,
                      return_documents=True, raw_scores=True)
    assert top["results"] == [{"index": order[0], "relevance_score": pytest.approx(want[order[0]], abs=1e-5),
                               "document": {"text": DOCUMENTS[order[0]]}}]


def test_text_embeddings_inferences_shape(ranker: tuple[Server, np.ndarray]) -> None:
    server, want = ranker
    found = server.post("/rerank", query=QUERY, texts=DOCUMENTS, return_text=True, raw_scores=True)
    assert [one["text"] for one in found] == [DOCUMENTS[one["index"]] for one in found]
    np.testing.assert_allclose([one["score"] for one in found], np.sort(want)[::-1], atol=1e-5)


def test_vllms_pairs(ranker: tuple[Server, np.ndarray]) -> None:
    server, want = ranker
    for body in ({"text_1": QUERY, "text_2": DOCUMENTS}, {"queries": [QUERY] * 3, "documents": DOCUMENTS}):
        found = server.post("/v1/score", use_activation=False, **body)
        assert [one["index"] for one in found["data"]] == [0, 1, 2]
        np.testing.assert_allclose([one["score"] for one in found["data"]], want, atol=1e-5)
    (one,) = server.post("/score", text_1=QUERY, text_2=DOCUMENTS[0])["data"]
    assert one["score"] == pytest.approx(1 / (1 + np.exp(-want[0])), abs=1e-5)


def test_coheres_clients(ranker: tuple[Server, np.ndarray]) -> None:
    server, want = ranker
    for kind in (cohere.Client, cohere.ClientV2):
        with httpx.Client() as connection:
            client = kind("no-key", base_url=server.url, httpx_client=connection)
            found = client.rerank(model="any", query=QUERY, documents=DOCUMENTS, top_n=2)
        assert [one.index for one in found.results] == [*np.argsort(-want)][:2]
        assert found.results[0].relevance_score > found.results[1].relevance_score


@pytest.mark.parametrize(("body", "words"), [
    ({"documents": []}, "documents must not be empty"),
    ({}, "documents: is needed, or texts, and not both"),
    ({"documents": ["a"], "texts": ["a"]}, "and not both"),
    ({"documents": [1]}, "documents"),
    ({"documents": 5}, "documents"),
    ({"documents": ["a"], "top_n": 0}, "top_n must be 1 or more"),
    ({"documents": ["a"], "rank_fields": ["title"]}, "rank_fields"),
    ({"documents": ["the " * 5000]}, "This model's maximum context length is"),
    ({"documents": ["a"], "query": 5}, "query must be a string"),
])
def test_what_is_refused(ranker: tuple[Server, np.ndarray], body: dict[str, object], words: str) -> None:
    status, error = ranker[0].refused("/v1/rerank", {"query": QUERY, **body})
    assert status == 400
    assert words in error["message"]


def test_pairs_that_do_not_match(ranker: tuple[Server, np.ndarray]) -> None:
    server, _ = ranker
    for body, words in (
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "text_1: has 2 texts, and text_2 1"),
        ({"text_1": "a"}, "text_2: is needed, or documents"),
        ({"text_1": "a", "queries": "b", "text_2": "c"}, "text_1: is needed, or queries, and not both"),
    ):
        status, error = server.refused("/v1/score", body)
        assert status == 400
        assert words in error["message"]


def test_a_reranker_gives_nothing_else(ranker: tuple[Server, np.ndarray]) -> None:
    server, _ = ranker
    status, error = server.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
    assert (status, error["message"]) == (400, "demo is a reranker, which generates no text: use /v1/rerank")
    status, error = server.refused("/v1/embeddings", {"input": "a"})
    assert status == 400
    assert "reranker" in error["message"]


def test_a_model_that_generates_is_no_reranker(model: octavo.Model) -> None:
    with running_model(model) as server:
        status, error = server.refused("/v1/rerank", {"query": "a", "documents": ["b"]})
    assert (status, error["message"]) == (400, "demo is not a reranker, which alone scores documents")


def test_a_share_of_yes_stays_as_it_is(tmp_path: Path) -> None:
    """Of a reranker that generates, whose scores are between 0 and 1 by themselves."""
    qwen(tmp_path / "m.gguf")
    with octavo.load(tmp_path / "m.gguf", device="reference") as model:
        want = model.rank(QUERY, DOCUMENTS)
        with running_model(model) as server:
            found = server.post("/v1/score", text_1=QUERY, text_2=DOCUMENTS)
            assert json.dumps(found)
            np.testing.assert_allclose([one["score"] for one in found["data"]], want, atol=1e-6)
