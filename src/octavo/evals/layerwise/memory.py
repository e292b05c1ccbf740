"""Memory of a run stage by stage: what a process has in any case, and what a stage takes while it is run."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NoReturn

from octavo.backends.cores import cores
from octavo.evals.layerwise.runner import Layerwise
from octavo.formats import DeferredQTensor, QTensor, by_name
from octavo.graph.node import Node, bind
from octavo.graph.protocol import HostBackend
from octavo.graph.stages import Stage
from octavo.io.gguf import GGUFFile
from octavo.io.memory import own
from octavo.quantizers.fold import ChangedFile

LATER = 9 << 20
"""Bytes of what is imported and compiled when the work begins."""
THREAD, PANEL = 1 << 18, 10 << 20
"""Bytes of a thread, and of what a BLAS library copies factors to at most: for each thread that multiplies alone, and
half of it where threads multiply together."""

PACKED, AT_A_TIME, PACKERS = 9, 1 << 19, 4
"""Bytes beside a value, of so many, while a thread puts weights into the backend's layout; threads at a time."""
DRIVER, MAKERS = 340 << 20, 300 << 20
"""Bytes of a process for a device: its driver, libraries and compiler; and more where weights are made on it."""
CHANGED = 3
"""Arrays of a tensor in float32 while it is read with changes."""


def process_bytes(largest: int, *, apart: bool = False, device: str | None = None, makes: bool = False) -> int:
    """Bytes of this process when it is at work, beside arrays: what it has now, kernels, and threads.

    largest  values of the largest matrix that is multiplied
    apart    threads multiply such matrices each by itself, too
    device   what torch calls the device that holds what is as large as matrices; None: the host does
    makes    weights are made on that device
    """
    process = own() + LATER + cores() * THREAD
    if device is not None:
        return process + DRIVER + makes * MAKERS
    together, alone = min(2 * PANEL, 8 * largest), cores() * min(PANEL, 4 * largest) if apart else 0
    return process + together + alone


def stage_bytes(run: Layerwise, stage: Stage, replaced: Collection[str] = ()) -> int:
    """Bytes of a stage while it is run: its weights, one that is being loaded, caches and values of a sample; the first
    and the last two are on the device, if there is one.

    replaced  names of the weights that are put in: floats, which are there beside what the backend makes of them
    """
    if not (stage.gives or stage.written):
        return 0
    if run.device is not None:
        return max((read_bytes(run.spec.file, product.inputs[0].tensor) for product in stage.products), default=0)
    tensors = [product.inputs[0].tensor for product in stage.products]
    floats = {t.name: _floats(t) for t in tensors if t.name in replaced or not t.format.is_float}
    made = run.scheduled(stage, floats)
    nodes = [n for n in made.graph.nodes if not n.is_leaf]
    limits = run.samples.limits
    hosts = [b for b in run.backends if isinstance(b, HostBackend)]
    loaded = sum(b.weight_bytes(nodes) + b.cache_bytes(nodes, limits) for b in hosts[:1])
    given = sum(4 * math.prod(bind(n.shape, limits)) for n in stage.takes.values())
    results = sum(4 * math.prod(bind(n.shape, limits)) for n in (*stage.gives.values(), *stage.made.values()))
    held = sum(4 * tensor.size for tensor in floats.values())
    read = (read_bytes(run.spec.file, leaf.tensor) for leaf in _weights(nodes) if leaf.name not in floats)
    packing = (
        PACKED * min(cores(), PACKERS) * min(AT_A_TIME, max((leaf.tensor.size for leaf in _weights(nodes)), default=0))
    )
    return loaded + held + max(read, default=0) + packing + sum(made.memory) + 2 * given + results


def _weights(nodes: list[Node]) -> list[Node]:
    return [leaf for node in nodes for leaf in node.inputs if leaf.op == "weight"]


def read_bytes(file: GGUFFile, tensor: QTensor) -> int:
    """Bytes of a tensor while it is loaded: none of one in a file that is mapped; of one that changes a few copies."""
    if isinstance(file, ChangedFile) and tensor.name in file.changes:
        return CHANGED * 4 * tensor.size
    return tensor.nbytes if isinstance(tensor, DeferredQTensor) else 0


def _floats(tensor: QTensor) -> DeferredQTensor:
    """A tensor's floats as a graph has them, without any values."""
    return DeferredQTensor(by_name("F32"), tensor.shape, _never, tensor.name)


def _never() -> NoReturn:
    raise AssertionError("values of a stage that is not run")
