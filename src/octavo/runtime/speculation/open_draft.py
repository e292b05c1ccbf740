"""Opening a draft model beside the model that it drafts for: the same vocabulary, and room for both."""

from __future__ import annotations

from octavo.errors import BackendError, HostMemoryError, ModelError, UsageError
from octavo.graph.protocol import AsyncBackend, Backend, BoundedBackend
from octavo.io.gguf import GGUFFile
from octavo.io.system_memory import room
from octavo.models import ModelSpec, read_model
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.engine_config import EngineConfig
from octavo.runtime.engine.engine_limits import context_of
from octavo.runtime.text_embedding import require_generating
from octavo.text import Tokenizer

GIB = 1 << 30


def open_draft(file: GGUFFile, main: Engine, vocabulary: Tokenizer, beside: int = 0) -> Engine:
    """The engine of the draft model in a file, whose weights are not read yet. It has a cache for as many sequences as
    `main`. A head that drafts, too, takes the bytes `beside` it.

    Raises ModelError for a model of another vocabulary, or with states, from which it can't take tokens back; for one
    that does not fit beside the other HostMemoryError, or BackendError of a GPU's memory; UsageError where `main` makes
    embeddings, or is divided among ranks.
    """
    if main.config.embeds:
        raise UsageError("draft: there is no draft model for a model that makes embeddings", argument="draft")
    require_undivided(main.ranks)
    spec = read_model(file)
    require_fit(spec, vocabulary)
    require_way_back(main.model, main.backends[0])
    config = EngineConfig(
        n_ctx=min(main.n_ctx, context_of(spec, main.n_ctx)), max_sequences=main.config.max_sequences,
        cache_type=main.config.cache_type, n_batch=main.config.n_batch, n_pages=main.pool.n_pages,
        weight_cache=main.config.weight_cache,
    )
    draft = Engine(spec, main.backends, config)
    require_memory(main, draft.needs().total + beside, "its draft model and head" if beside else "its draft model")
    return draft


def require_undivided(tensor_parallel: int) -> None:
    """Raise UsageError where a model that has a draft model is divided among ranks."""
    if tensor_parallel > 1:
        problem = f"tensor_parallel is {tensor_parallel}, beside a draft model (allowed: 1, or no draft)"
        raise UsageError(problem, argument="tensor_parallel")


def require_way_back(main: ModelSpec, backend: Backend) -> None:
    """Raise ModelError where a model can have no drafts: with layers that have states on a GPU, as steps of several
    tokens round these otherwise than those of one."""
    if isinstance(backend, AsyncBackend) and any(main.graph().leaves("state")):
        raise ModelError("layers with states have no drafts on a GPU", file=main.file.path)


def require_fit(draft: ModelSpec, vocabulary: Tokenizer) -> None:
    """Raise ModelError for a model that can't draft for one with this vocabulary."""
    require_generating(draft)
    _require_vocabulary(Tokenizer.from_gguf(draft.file), vocabulary, draft.file.path)
    if any(draft.graph().leaves("state")):
        raise ModelError("layers with states take no token back: another draft model is needed", file=draft.file.path)


def _require_vocabulary(own: Tokenizer, other: Tokenizer, path: str) -> None:
    """Raise ModelError unless all tokens that both have are the same, and one has no more than unused ones besides."""
    most = min(own.n_vocab, other.n_vocab)
    at = next((i for i in range(most) if own.texts[i] != other.texts[i]), None)
    if at is not None:
        texts = f"token {at} is {own.texts[at]!r} in the draft model and {other.texts[at]!r} in the model"
        raise ModelError(f"another vocabulary: {texts}", file=path, field="tokenizer.ggml.tokens")
    if abs(own.n_vocab - other.n_vocab) > MOST_UNUSED:
        texts = f"{own.n_vocab} tokens in the draft model and {other.n_vocab} in the model"
        raise ModelError(f"another vocabulary: {texts}", file=path, field="tokenizer.ggml.tokens")


MOST_UNUSED = 512
"""Tokens by which vocabularies of one family differ, to whose end sizes that kernels like are padded."""


def require_memory(main: Engine, drafting: int, name: str) -> None:
    """Raise HostMemoryError, or BackendError of a GPU's memory, where a model and what drafts for it, which takes
    `drafting` bytes, do not fit."""
    backends = main.backends
    needed = [main.needs().total, drafting]
    what = f"{needed[0] / GIB:.2f} GiB are needed for the model and {needed[1] / GIB:.2f} for {name}"
    advice = "a shorter context would take less, or no drafts"
    if isinstance(backends[0], BoundedBackend):
        if sum(needed) > (free := backends[0].free()):
            raise BackendError(f"device {backends[0].name}: {what}, but {free / GIB:.2f} GiB are free: {advice}")
    elif (found := room()) is not None and sum(needed) > found.free + found.swap:
        raise HostMemoryError(f"{what}, but {found.free / GIB:.2f} GiB are free: {advice}")
