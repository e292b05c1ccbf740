"""How large the steps of an engine may be, and its cache."""

from __future__ import annotations

from octavo.graph.node import PAGE_SIZE, Graph, Sizes
from octavo.runtime.arguments import integer
from octavo.runtime.cache.page_pool import PagePool, page_bytes, state_bytes
from octavo.runtime.cache.state_pool import StatePool
from octavo.runtime.cache.window_pool import WindowPool
from octavo.runtime.engine.captured_sizes import most_filled
from octavo.runtime.engine.config import EngineConfig
from octavo.runtime.sampling.device_processors import most_adjusted, size_for


def cache_pages(
    graph: Graph, config: EngineConfig, max_pages: int, windows: WindowPool | None, states: StatePool | None
) -> int:
    """Pages of the cache. Raises UsageError where `kv_memory` holds none.

    max_pages  pages of the longest sequence
    """
    if config.kv_memory is None:
        return config.n_pages or max_pages * config.max_sequences
    of_page = page_bytes(graph)
    others = page_bytes(graph, "window_rows") * windows.n_pages if windows is not None else 0
    others += state_bytes(graph) * states.n_slots if states is not None else 0
    integer("kv_memory", config.kv_memory, of_page + others)
    return (config.kv_memory - others) // of_page if of_page else max_pages * config.max_sequences


def step_limits(config: EngineConfig, pool: PagePool, max_pages: int, *, fills: bool) -> Sizes:
    """The largest sizes of a step.

    max_pages  pages of the longest sequence
    fills      steps are filled up to sizes that repeat: with more sequences, one of them of a prompt, and a page more
    """
    sequences, pages = config.max_sequences, pool.n_pages
    tokens, outputs = max(config.n_batch, sequences), max(min(config.n_batch, config.n_outputs), sequences)
    window_pages = pool.windows.n_pages if pool.windows is not None else 0
    states = pool.states.n_slots if pool.states is not None else 0
    if fills:
        sequences, pages, states = most_filled(sequences), pages + 1, states + 1
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
        "adjusted": most_adjusted(changed),
        "masked": size_for(changed),
    }
