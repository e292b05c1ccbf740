"""Embeddings: a text's tokens as vectors, and of these one for the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, get_args

import numpy as np

from octavo.errors import ContextFullError, ModelError, UsageError
from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.graph.node import PAGE_SIZE
from octavo.graph.protocol import Backend
from octavo.io.gguf import GGUFFile
from octavo.io.hub.download_cache import shown_name
from octavo.models import ModelSpec
from octavo.runtime.argument_checks import choice
from octavo.runtime.cache.page_pool import Sequence as Tokens
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.engine.engine_limits import context_of
from octavo.runtime.engine.placement import GpuLayers, Pipeline
from octavo.runtime.engine.tensor_overrides import Overrides
from octavo.runtime.engine.thread import Pieces
from octavo.runtime.token_vectors import VectorSteps, whole
from octavo.text import Tokenizer
from octavo.text.sentences import encode_texts

Pooling = Literal["mean", "cls", "last"]
"""The vector of a text: the mean of its tokens', that of the first, or that of the last."""

TYPES = ("none", "mean", "cls", "last", "rank")
"""What the numbers of `pooling_type` mean; "rank" is a score of two texts."""
SEQUENCES, STEP = 32, 512
"""Texts in a step at most, and tokens of one, unless a text may have more."""


def pooling_of(file: GGUFFile) -> Pooling | None:
    """How a file's model pools; None where it does not say, or is a reranker. Raises ModelError for another number."""
    kind = _pooling_type(file)
    return None if kind in ("none", "rank") else kind  # type: ignore[return-value]


def is_reranker(file: GGUFFile) -> bool:
    """Whether a file's model gives a score of two texts."""
    return _pooling_type(file) == "rank"


def _pooling_type(file: GGUFFile) -> str:
    key = f"{file.metadata.get_str('general.architecture')}.pooling_type"
    number = file.metadata.get_int(key, default=0)
    if not 0 <= number < len(TYPES):
        raise ModelError(f"is {number}", file=file.path, field=key, allowed=f"0 to {len(TYPES) - 1}")
    return TYPES[number]


def require_pooling(file: GGUFFile, pooling: Pooling | None) -> Pooling:
    """The wanted pooling, or the file's. Raises UsageError where there is none."""
    if pooling is not None:
        choice("pooling", pooling, get_args(Pooling))
    pooling = pooling or pooling_of(file)
    if pooling is None:
        if is_reranker(file):
            problem = f"{file.path} is a reranker, which scores documents: use `octavo rank`, or set a pooling"
            raise UsageError(problem, argument="pooling")
        problem = f"{file.path} is not an embedding model: it does not say how to pool"
        way = "set --pooling (pooling= in Python) to mean, cls or last to use it anyway"
        raise UsageError(f"{problem}; {way}", argument="pooling")
    return pooling


def is_embedding_model(model: ModelSpec) -> bool:
    """Whether a model is made to give embeddings: its graph has no logits, or its file says how to pool."""
    return _pooling_type(model.file) != "none" or model.architecture.encoder


def command_for(model: ModelSpec) -> str:
    """The command that a model is for."""
    if not is_embedding_model(model):
        return "run"
    return "rank" if is_reranker(model.file) else "embed"


def require_generating(model: ModelSpec) -> None:
    """Raise UsageError for a model that is made to give embeddings, or scores."""
    if (command := command_for(model)) != "run":
        name = shown_name(model.file.path).removesuffix(".gguf")
        raise UsageError(f"{name} is an embedding model, which generates no text: `octavo {command}` runs it")


def embedding_engine(
    model: ModelSpec, backends: Sequence[Backend], *, n_ctx: int | None = None, gpu_layers: GpuLayers = "all",
    pipeline: Pipeline = 1, strict: bool = False, overrides: Overrides = (),
) -> Engine:
    """An engine whose steps give vectors of tokens; a text is in one step, which has room for several."""
    n_ctx = context_of(model, n_ctx)
    step = max(n_ctx, STEP)
    config = EngineConfig(
        n_ctx=n_ctx, n_batch=step, n_outputs=step, max_sequences=SEQUENCES, cache_type="f32", strict=strict,
        gpu_layers=gpu_layers, pipeline=pipeline, overrides=overrides, embeds=True,
        n_pages=-(-step // PAGE_SIZE) + SEQUENCES,
    )
    return Engine(model, backends, config)


class Embedder:
    """Turns texts into vectors with an engine of `embedding_engine`, or one that generates and shares what it has."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self._shared = None if engine.config.embeds else VectorSteps(engine)
        file = engine.model.file
        self.pooling = pooling_of(file)
        names = [f"dense_{i}.weight" for i in (2, 3)]
        self._projections = [dequantize(file.tensor(name)) for name in names if name in file.tensors]

    def embed(self, texts: Sequence[str], pooling: Pooling | None, *, normalize: bool) -> F32:
        """The vectors of texts, float32 [n, d]; see `Model.embed`."""
        return self.embed_tokens(self._encoded(texts), pooling, normalize=normalize)

    def embed_tokens(self, texts: Sequence[list[int]], pooling: Pooling | None, *, normalize: bool) -> F32:
        """The same of texts that are tokens already."""
        pieces = self.embedding(texts, pooling, lambda: self.engine.config.n_batch, normalize=normalize)
        return self.engine.thread.finish(pieces)

    def embedding(
        self, texts: Sequence[list[int]], pooling: Pooling | None, room: Callable[[], int], *, normalize: bool
    ) -> Pieces[F32]:
        """The same piece by piece; `room()` is the most tokens of the next one, where the model generates."""
        pooling = require_pooling(self.engine.model.file, pooling)
        rows = yield from self.computed(texts, room, kept=partial(pooled, pooling=pooling))
        width = self.engine.model.hparams.n_embd
        found: F32 = np.array(rows, np.float32).reshape(len(rows), width)
        for matrix in self._projections:
            found = found @ matrix.T
        return _unit(found) if normalize else found

    def token_vectors(self, texts: Sequence[str]) -> list[F32]:
        """The vectors of each text's tokens, float32 [tokens, n_embd].

        Raises UsageError for a text without tokens, ContextFullError for one that does not fit.
        """
        return self.vectors_of(self._encoded(texts))

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        return encode_texts(self.tokenizer, texts)

    def vectors_of(
        self, tokens: Sequence[list[int]], seconds: Sequence[int] = (), *, kept: Callable[[F32], F32] = whole
    ) -> list[F32]:
        """The same of texts that are tokens already; `seconds`: how many at the end of each are of a second text.

        `kept`: what is wanted of a text's vectors, the rest of which is not held until the others are computed.
        """
        pieces = self.computed(tokens, lambda: self.engine.config.n_batch, seconds, kept=kept)
        return self.engine.thread.finish(pieces)

    def computed(
        self, tokens: Sequence[list[int]], room: Callable[[], int], seconds: Sequence[int] = (), *,
        kept: Callable[[F32], F32],
    ) -> Pieces[list[F32]]:
        """What `vectors_of` gives, piece by piece; `room()` is the most tokens of the next one."""
        self._require_fitting(tokens)
        if self._shared is not None:
            return (yield from self._shared.computed(tokens, room, kept))
        found: dict[int, F32] = {}
        for group in self._groups([len(t) for t in tokens]):
            rows = self._step([tokens[i] for i in group], [seconds[i] for i in group] if seconds else [0] * len(group))
            found |= zip(group, map(kept, rows), strict=True)
            yield
        return [found[i] for i in range(len(tokens))]

    def _require_fitting(self, tokens: Sequence[list[int]]) -> None:
        for i, text in enumerate(tokens):
            if not text:
                raise UsageError(f"text {i} has no tokens", argument="texts")
            if len(text) > (most := self.engine.n_ctx):
                raise ContextFullError(f"text {i}, of {len(text)} tokens, does not fit the context of {most}")

    def _groups(self, lengths: list[int]) -> Iterator[list[int]]:
        """Texts by number that are one step, those of about one length together."""
        group: list[int] = []
        room = self.engine.limits["tokens"]
        for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
            if group and (len(group) == SEQUENCES or sum(lengths[j] for j in group) + lengths[i] > room):
                yield group
                group = []
            group.append(i)
        if group:
            yield group

    def _step(self, texts: list[list[int]], seconds: list[int]) -> list[F32]:
        engine, sequences = self.engine, [Tokens() for _ in texts]
        parts = zip(sequences, texts, seconds, strict=True)
        feeds = [Feed(s, tokens, outputs=len(tokens), second=second) for s, tokens, second in parts]
        try:
            rows = engine.step(feeds)
        finally:
            for sequence in sequences:
                engine.pool.release(sequence)
        return np.split(rows, np.cumsum([len(tokens) for tokens in texts])[:-1])


def pooled(vectors: F32, pooling: Pooling) -> F32:
    """One vector [d] of those of a text's tokens, [tokens, d], in memory of its own."""
    if pooling == "mean":
        mean: F32 = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean
    row: F32 = vectors[0 if pooling == "cls" else -1].copy()
    return row


def _unit(vectors: F32) -> F32:
    """Rows of length 1; a row of zeros stays."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: F32 = (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)
    return unit
