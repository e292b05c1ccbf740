"""The model of a server's engine: loaded as the options say, with a cache of a share of the free memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.graph.protocol import Backend, BoundedBackend
from octavo.huggingface import open_model_file
from octavo.io.model_path import resolve
from octavo.io.system_memory import UNLIMITED, room
from octavo.models import ModelSpec, read_model
from octavo.progress import Show, in_log, shown
from octavo.runtime.cache.page_pool import page_bytes
from octavo.runtime.cache.window_pool import pages_for
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.engine_config import EngineConfig, asked_speculation, usual_batch
from octavo.runtime.engine.engine_limits import context_of
from octavo.runtime.engine.placement import backends_for
from octavo.runtime.engine.tensor_overrides import device_of, overrides
from octavo.runtime.loading import model_of
from octavo.runtime.model import Model
from octavo.runtime.text_embedding import is_embedding_model
from octavo.server.serve_options import EngineOptions

USUAL_RANK = 16


def load_model(
    options: EngineOptions, before: Callable[[Engine], None] = lambda engine: None, show: Show | None = None
) -> Model:
    """The model that options name. Raises OctavoError.

    `before` is called before its weights are read. `show` is told how far it is, in place of the terminal or the log.
    """
    wanted = options.gpu_layers
    backends, layers = backends_for(
        options.device, options.threads, wanted,  # type: ignore[arg-type]
        deterministic=options.deterministic, attention=options.attention, tensor_parallel=options.tensor_parallel,
        pipeline=options.pipeline, step_timeout=options.step_timeout,
    )
    file = open_model_file(resolve(options.path))
    spec = read_model(file)
    kv_memory = options.kv_memory
    if kv_memory is None and not is_embedding_model(spec):
        kv_memory = usual_kv_memory(options, spec, backends[: options.pipeline])
    config = EngineConfig(
        n_ctx=options.n_ctx, n_batch=usual_batch(options.max_sequences, backends[0]), cache_type=options.cache_type,
        gpu_layers=layers, pipeline=options.pipeline,
        kv_memory=kv_memory, max_sequences=options.max_sequences, weight_cache=options.weight_cache,
        speculate=asked_speculation(options.speculate, options.draft),
        overrides=overrides(dict(options.override_tensor), options.n_cpu_moe),
        max_loras=options.max_loras, max_lora_rank=options.max_lora_rank or highest_rank(options, spec),
    )
    with in_log() if show is None else shown(show):
        return model_of(file, backends, config, options.lora, before, options.draft)


def highest_rank(options: EngineOptions, spec: ModelSpec) -> int:
    """The highest rank of the adapters that requests choose, or USUAL_RANK where that is more."""
    from octavo.huggingface.adapters.adapter import open_adapter

    found = [open_adapter(path, spec) for _, path in options.lora_modules]
    return max(USUAL_RANK, *(part.rank for one in found for part in one.parts.values()), 0)


def usual_kv_memory(options: EngineOptions, spec: ModelSpec, backends: Sequence[Backend]) -> int | None:
    """Bytes of the cache: for all contexts whole, or a share of the memory that is free; None: not known."""
    graph = spec.graph(cache_type=options.cache_type)
    of_page = page_bytes(graph)
    whole = of_page * pages_for(context_of(spec, options.n_ctx)) * options.max_sequences
    share = _share(spec, backends, options)
    return None if share is None else max(min(whole, share), of_page) or None


def _share(spec: ModelSpec, backends: Sequence[Backend], options: EngineOptions) -> int | None:
    """Half of what weights leave of the GPUs' memory, or a quarter of the system's; None where that is not known."""
    cards = [backend for backend in backends if isinstance(backend, BoundedBackend)]
    most = options.memory or UNLIMITED
    if cards:
        free = min(sum(card.free() for card in cards) * options.tensor_parallel, most)
        moved = overrides(dict(options.override_tensor), options.n_cpu_moe)
        left = free - sum(each.nbytes for name, each in spec.file.tensors.items() if device_of(name, moved) != "cpu")
        return max(left // 2, free // 8)
    machine = room()
    return None if machine is None else min(machine.free, most) // 4 // options.servers
