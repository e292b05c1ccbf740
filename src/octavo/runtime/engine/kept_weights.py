"""A model's packed weights, kept for the next start by the backends that keep them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from octavo.graph.protocol import Backend, KeepingBackend, WeightSource
from octavo.graph.schedule import Schedule
from octavo.jit.kernel_cache import sources
from octavo.models import ModelSpec
from octavo.models.shared.registry import packages_of

READS = ("formats", "io", "huggingface", "models", "backends/cpu")
"""The folders whose code makes weights of a file."""


@contextmanager
def keeping_weights(
    model: ModelSpec, schedule: Schedule, backends: Sequence[Backend], *, keep: bool
) -> Iterator[int]:
    """While this lasts, weights are loaded from what is kept of the model, or into it; gives the bytes that are mapped.

    Without `keep`, what is kept of it is removed.
    """
    mapped = 0
    with ExitStack() as stack:
        for i, backend in enumerate(backends):
            nodes = schedule.on(i)
            if nodes and isinstance(backend, KeepingBackend):
                mapped += stack.enter_context(backend.keeping(nodes, _source(model, keep)))
        yield mapped


def _source(model: ModelSpec, keep: bool) -> WeightSource:
    file, here = model.file, Path(__file__).parents[2]
    beside = map(str, sorted(Path(file.path).glob("*.json"))) if os.path.isdir(file.path) else ()
    code = [*(here / name for name in READS), *packages_of(model.architecture.name)]
    return WeightSource((*file.files, *beside), file.tensors, tuple(map(sources, code)), file.path, keep)
