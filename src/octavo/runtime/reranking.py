"""Ranking: how well documents answer a query, as rerankers score it; both are read as one text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from octavo.errors import ModelError
from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.models import ModelSpec
from octavo.runtime.engine.thread import Pieces
from octavo.runtime.text_embedding import TYPES, Embedder, Pooling, pooled
from octavo.text import Tokenizer

TEMPLATE = "tokenizer.chat_template.rerank"
"""The key of a text with `{query}` and `{document}`, of models that generate."""
_HEAD, _LAST, _NORM = ("cls.weight", "cls.bias"), ("cls.output.weight", "cls.output.bias"), "cls.norm.weight"


class PairEncoder:
    """Queries and documents as tokens, as a reranker reads them."""

    def __init__(self, tokenizer: Tokenizer, model: ModelSpec) -> None:
        """Raises ModelError for a model that generates whose file does not say how."""
        self._tokenizer, self.encodes = tokenizer, model.architecture.encoder
        self._template = model.file.metadata.get_str(TEMPLATE, default="")
        if not self.encodes and not {"{query}", "{document}"} <= set(_parts(self._template)):
            raise ModelError("has no {query} and {document}", file=model.file.path, field=TEMPLATE)

    def tokens(self, query: str, document: str) -> tuple[list[int], list[int]]:
        """The tokens of the query and of the document; of a model that generates all are in the first."""
        if self.encodes:
            return self._tokenizer.encode_pair(query, document)
        marks = self._tokenizer.marks({"{query}": query, "{document}": document}, self._template)
        text, foreign = marks.read("".join(marks.data.get(part, part) for part in _parts(self._template)))
        return self._tokenizer.encode(text, foreign=foreign), []


class Ranker:
    """Scores documents with an embedder's engine and the classifier in its file."""

    def __init__(self, embedder: Embedder) -> None:
        """Raises ModelError for a file without a classifier, and for one whose scores mean something else."""
        self._embedder, model = embedder, embedder.engine.model
        file, self._encodes = model.file, model.architecture.encoder
        self._classify, self._means = _Classifier(model), _pools_means(model)
        scores, wanted = model.hparams.n_labels, 1 if self._encodes else 2
        if scores != wanted:
            raise ModelError(f"gives {scores} scores", file=file.path, field=f"tensor {_LAST[0]}", allowed=str(wanted))
        self._pairs = PairEncoder(embedder.tokenizer, model)

    def scores(self, query: str, documents: Sequence[str]) -> F32:
        """How well each document answers the query, float32 [n]; see `Model.rank`."""
        pairs = [self._pairs.tokens(query, document) for document in documents]
        engine = self._embedder.engine
        scoring = self.scoring([a + b for a, b in pairs], [len(b) for _, b in pairs], lambda: engine.config.n_batch)
        return engine.thread.finish(scoring)

    def scoring(self, texts: Sequence[list[int]], seconds: Sequence[int], room: Callable[[], int]) -> Pieces[F32]:
        """Scores of pairs that are tokens already, float32 [n], piece by piece; see `Embedder.computed`."""
        if not texts:
            return np.zeros(0, np.float32)
        pooling: Pooling = "last" if not self._encodes else "mean" if self._means else "cls"
        vectors = yield from self._embedder.computed(texts, room, seconds, kept=partial(pooled, pooling=pooling))
        found = self._classify(np.array(vectors, np.float32))
        if self._encodes:
            return found[:, 0]
        shares: F32 = (1 / (1 + np.exp(found[:, 1] - found[:, 0]))).astype(np.float32)
        return shares


class _Classifier:
    """What makes scores [n, labels] of vectors [n, K]: perhaps a matrix, an activation and a norm, then a matrix."""

    def __init__(self, model: ModelSpec) -> None:
        """Raises ModelError for a file without it."""
        from octavo.models.encoder.bert import Bert

        file, self._eps = model.file, model.hparams.eps
        self._activation = np.tanh if model.architecture.rerank_head.activation == "tanh" else _gelu
        if _LAST[0] not in file.tensors:
            raise ModelError(f"is not a reranker: it has no tensor {_LAST[0]}", file=file.path)
        names = (*_HEAD, *_LAST, _NORM)
        *first, self._weight, self._bias, self._norm = (
            dequantize(file.tensor(name)) if name in file.tensors else None for name in names
        )
        self._first = first
        if isinstance(model.hparams, Bert) and model.hparams.two_texts and first[0] is None:
            problem = "is missing: llama.cpp's converter drops BERT's pooler, octavo convert keeps it"
            raise ModelError(problem, file=file.path, field=f"tensor {_HEAD[0]}")

    def __call__(self, x: F32) -> F32:
        if self._first[0] is not None:
            x = self._activation(_linear(x, *self._first))
        if self._norm is not None:
            x = x - x.mean(axis=1, keepdims=True)
            x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + self._eps) * self._norm
        return _linear(x, self._weight, self._bias)


def _pools_means(model: ModelSpec) -> bool:
    """Whether the classifier gets the mean of tokens' vectors; otherwise that of the first."""
    usual = TYPES.index(model.architecture.rerank_head.pooling)
    key = f"{model.architecture.name}.classifier.pooling_type"
    return model.file.metadata.get_int(key, default=usual) == TYPES.index("mean")


def _gelu(x: F32) -> F32:
    erf = np.frompyfunc(math.erf, 1, 1)(x * math.sqrt(0.5)).astype(np.float32)
    y: F32 = np.float32(0.5) * x * (1 + erf)
    return y


def _parts(template: str) -> list[str]:
    return re.split(r"(\{query\}|\{document\})", template)


def _linear(x: F32, weight: F32 | None, bias: F32 | None) -> F32:
    """x [n, K] times a matrix [N, K] and plus a bias, if there is one: [n, N]."""
    assert weight is not None
    y: F32 = x @ np.atleast_2d(weight).T
    return y if bias is None else y + bias
