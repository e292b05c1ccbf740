"""What a model needs of memory: estimated before it is loaded, and as an error says it."""

from __future__ import annotations

from math import ceil

from msgspec.structs import replace

from octavo.errors import MemoryLimitError, OctavoError
from octavo.server.engine.engine_protocol import Asks
from octavo.server.serve_options import EngineOptions

PROCESSES = 300 << 20
"""Bytes of a model's two processes, with what they may take for grammars and kernels; measured: 300 to 330 MiB."""
UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
LESS = "a smaller --kv-memory, --ctx-size or --max-sequences needs less"


def in_unit(nbytes: int, unit: str) -> str:
    """Bytes in a unit of `UNITS`, at least as many: 300M, 1.25G."""
    digits = 100 if unit in ("G", "T") else 1
    return f"{ceil(nbytes * digits / (1 << UNITS[unit])) / digits:.12g}{unit}"


def estimate(options: EngineOptions) -> Asks | None:
    """What a model takes at least, by its file's head; None where that is not known: on a GPU, of a broken file."""
    from octavo.huggingface import open_model_file
    from octavo.io.model_path import resolve
    from octavo.models import read_model
    from octavo.replicas.local import cards
    from octavo.runtime.cache.page_pool import page_bytes
    from octavo.runtime.cache.window_pool import pages_for
    from octavo.runtime.engine.engine_limits import context_of
    from octavo.runtime.text_embedding import is_embedding_model

    if options.device not in ("cpu", "reference") and cards():
        return None
    try:
        with open_model_file(resolve(options.path)) as file:
            spec = read_model(file)
            weights = sum(info.nbytes for info in file.tensors.values())
            caches = options.kv_memory
            if caches is None:  # all contexts, or a quarter of --memory, see `usual_kv_memory`
                pages = pages_for(context_of(spec, options.n_ctx)) * options.max_sequences
                whole = 0 if is_embedding_model(spec) else pages * page_bytes(spec.graph(cache_type=options.cache_type))
                caches = min(whole, (weights + PROCESSES) // 3)
    except (OctavoError, OSError):
        return None
    return Asks(weights, caches, 0, PROCESSES)


def at_least(needs: Asks, estimated: Asks | None, options: EngineOptions) -> Asks:
    """What an engine asked for, with the cache that it would have if just that were allowed."""
    if estimated is None or options.kv_memory is not None:
        return needs
    rest = needs.total - needs.caches
    is_whole = estimated.caches < (estimated.total - estimated.caches) // 3
    return replace(needs, caches=max(estimated.caches, needs.caches) if is_whole else rest // 3 + 1)


def too_large(
    name: str, nbytes: int, needs: Asks | None, memory: int | None, free: int | None, unit: str = "G"
) -> MemoryLimitError:
    """That a model takes more than there can be, with the numbers in a unit of `UNITS`.

    `nbytes` is what it takes where `needs` is not known; one of `memory` and `free` is what there is.
    """
    parts = {"processes": nbytes} if needs is None else {
        "processes": needs.process, "weights": needs.weights, "cache": needs.caches, "work": needs.work,
    }
    told = ", ".join(f"{what} {in_unit(n, unit)}" for what, n in parts.items() if n)
    total = nbytes if needs is None else needs.total
    most = (free or 0) if memory is None else memory
    room = f"--memory is {in_unit(most, unit)}"
    if memory is None:
        room = f"{in_unit(most, unit)} is free, and no other model takes as much as is lacking"
    less = f": {LESS}" if needs is not None and total - needs.caches <= most else ""
    return MemoryLimitError(f"{name} needs at least {in_unit(total, unit)} ({told}); {room}{less}")
