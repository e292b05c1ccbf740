"""Limits of an engine: its context, its steps and its cache."""

from __future__ import annotations

import logging

from octavo.errors import UsageError
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.graph.builder import CacheType
from octavo.graph.node import PAGE_SIZE, Graph, Sizes
from octavo.models import ModelSpec
from octavo.runtime.argument_checks import integer
from octavo.runtime.cache.page_pool import PagePool, page_bytes, state_bytes
from octavo.runtime.cache.state_pool import StatePool
from octavo.runtime.cache.window_pool import WindowPool
from octavo.runtime.engine.captured_sizes import max_padded
from octavo.runtime.engine.engine_config import EngineConfig
from octavo.runtime.sampling.processors import mask_bucket, max_adjusted

log = logging.getLogger("octavo")

DEFAULT_CONTEXT = 4096


def default_context(model: ModelSpec) -> int:
    """The context where none is asked for; a log line where a sliding window makes it shorter."""
    hp, most = model.hparams, min(model.hparams.n_ctx_train, DEFAULT_CONTEXT)
    if hp.n_ctx_most < most:
        log.info("%s: a context of %d tokens, its sliding window", model.file.path, hp.n_ctx_most)
    return min(most, hp.n_ctx_most)


def context_of(model: ModelSpec, n_ctx: int | None) -> int:
    """The context for an `n_ctx`: None is the default, 0 the longest that the model can have here."""
    return default_context(model) if n_ctx is None else n_ctx or model.hparams.n_ctx_most


def require_context(model: ModelSpec, n_ctx: int) -> None:
    """Raise UsageError for a context that is longer than the model can have here."""
    hp, most = model.hparams, model.hparams.n_ctx_most
    if n_ctx <= most:
        return
    if most < hp.n_ctx_train:
        why = f"the model's sliding window of {most} tokens is the longest context that can be computed"
    else:
        why = f"the model was made for {most} tokens"
    raise UsageError(f"n_ctx is {n_ctx}, but {why} (allowed: 1 to {most})", argument="n_ctx")


def require_heads(cache_type: CacheType, dim: int) -> None:
    """Raise UsageError unless heads of `dim` values can be kept so."""
    group = CACHE_FORMATS[cache_type].group
    if not CACHE_FORMATS[cache_type].fits(dim):
        raise UsageError(f"cache_type {cache_type} needs heads of a multiple of {group} values; these have {dim}")


def cache_pages(
    graph: Graph, config: EngineConfig, max_pages: int, windows: WindowPool | None, states: StatePool | None,
    ranks: int = 1,
) -> int:
    """Pages of the cache. Raises UsageError where `kv_memory` holds none.

    max_pages  pages of the longest sequence
    ranks      that share `kv_memory`
    """
    if config.kv_memory is None:
        return config.n_pages or max_pages * config.max_sequences
    of_page = page_bytes(graph)
    others = page_bytes(graph, "window_rows") * windows.n_pages if windows is not None else 0
    others += state_bytes(graph) * states.n_slots if states is not None else 0
    integer("kv_memory", config.kv_memory, (of_page + others) * ranks)
    return (config.kv_memory // ranks - others) // of_page if of_page else max_pages * config.max_sequences


def step_limits(config: EngineConfig, pool: PagePool, max_pages: int, *, pads: bool) -> Sizes:
    """The largest sizes of a step.

    max_pages  pages of the longest sequence
    pads       steps are padded to sizes that repeat: with more sequences, one of them of a prompt, and a page more
    """
    sequences, pages = config.max_sequences, pool.n_pages
    tokens, outputs = max(config.n_batch, sequences), max(min(config.n_batch, config.n_outputs), sequences)
    window_pages = pool.windows.n_pages if pool.windows is not None else 0
    states = pool.states.n_slots if pool.states is not None else 0
    if pads:
        sequences, pages, states = max_padded(sequences), pages + 1, states + 1
        window_pages += 1
        tokens, outputs = config.n_batch + sequences, max(outputs, sequences)
    changed = sequences if config.speculate == "off" else outputs  # rows whose logits are changed, drafts' too
    return {
        "tokens": tokens,
        "outputs": outputs,
        "sequences": sequences,
        "boundaries": sequences + 1,
        "pages": max_pages,
        "rows": pages * PAGE_SIZE,
        "window_rows": window_pages * PAGE_SIZE,
        "states": states,
        "adjusted": max_adjusted(changed),
        "masked": mask_bucket(changed),
    }
