"""Ranking: how well documents answer a query, as rerankers score it; both are read as one text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from octavo.errors import ModelError
from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.models.bert import Bert
from octavo.runtime.embedding import Embedder

TEMPLATE = "tokenizer.chat_template.rerank"
"""The key of a text with `{query}` and `{document}`, of models that generate."""
_HEAD, _LAST = ("cls.weight", "cls.bias"), ("cls.output.weight", "cls.output.bias")


class Ranker:
    """Scores documents with an embedder's engine and the classifier in its file."""

    def __init__(self, embedder: Embedder) -> None:
        """Raises ModelError for a file without a classifier, and for one whose scores mean something else."""
        self._embedder, model = embedder, embedder.engine.model
        file, self._encodes = model.file, model.architecture.encoder
        if _LAST[0] not in file.tensors:
            raise ModelError("is missing", file=file.path, field=f"tensor {_LAST[0]}", allowed="one in a reranker")
        self._head, self._output = (
            [dequantize(file.tensor(name)) if name in file.tensors else None for name in names]
            for names in (_HEAD, _LAST)
        )
        scores = model.hparams.n_labels
        if scores != (allowed := 1 if self._encodes else 2):
            raise ModelError(f"gives {scores} scores", file=file.path, field=f"tensor {_LAST[0]}", allowed=str(allowed))
        if isinstance(model.hparams, Bert) and model.hparams.two_texts and self._head[0] is None:
            allowed = "BERT's pooler; llama.cpp's converter leaves it out, octavo convert doesn't"
            raise ModelError("is missing", file=file.path, field=f"tensor {_HEAD[0]}", allowed=allowed)
        self._template = file.metadata.get_str(TEMPLATE, default="")
        if not self._encodes and not {"{query}", "{document}"} <= set(_parts(self._template)):
            raise ModelError("has no {query} and {document}", file=file.path, field=TEMPLATE)

    def scores(self, query: str, documents: Sequence[str]) -> F32:
        """How well each document answers the query, float32 [n]; see `Model.rank`."""
        pairs = [self._tokens(query, document) for document in documents]
        vectors = self._embedder.vectors_of([a + b for a, b in pairs], [len(b) for _, b in pairs])
        rows = np.array([v[0 if self._encodes else -1] for v in vectors], np.float32)
        if not documents:
            return np.zeros(0, np.float32)
        if self._head[0] is not None:
            rows = np.tanh(_linear(rows, self._head))
        found = _linear(rows, self._output)
        if self._encodes:
            return found[:, 0]
        shares: F32 = (1 / (1 + np.exp(found[:, 1] - found[:, 0]))).astype(np.float32)
        return shares

    def _tokens(self, query: str, document: str) -> tuple[list[int], list[int]]:
        """The tokens of the query and of the document; of a model that generates all are in the first."""
        tokenizer = self._embedder.tokenizer
        if self._encodes:
            return tokenizer.encode_pair(query, document)
        marks = tokenizer.marks({"{query}": query, "{document}": document}, self._template)
        text, foreign = marks.read("".join(marks.data.get(part, part) for part in _parts(self._template)))
        return tokenizer.encode(text, foreign=foreign), []


def _parts(template: str) -> list[str]:
    return re.split(r"(\{query\}|\{document\})", template)


def _linear(x: F32, layer: Sequence[F32 | None]) -> F32:
    """x [n, K] times a matrix [N, K] and plus a bias, if there is one: [n, N]."""
    weight, bias = layer
    assert weight is not None
    y: F32 = x @ np.atleast_2d(weight).T
    return y if bias is None else y + bias
