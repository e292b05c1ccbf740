"""What a run stage by stage takes: memory, disk and time, known before it begins."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from octavo.evals.layerwise.runner import Layerwise
from octavo.evals.layerwise.values import DTYPES
from octavo.graph.node import Node, bind
from octavo.graph.protocol import HostBackend
from octavo.graph.stages import Stage
from octavo.quantizers.calibration.hessian import hessian_bytes
from octavo.quantizers.tiles import TILE, run_tiles

MODEL_SHARE, SUM_SHARE = 0.4, 0.7
"""Of what a plain product of floats reaches, what a model's stages and sums of products reach."""
PROGRAM = 48 << 20
"""Bytes of compiled kernels and what they are made and run with."""
ARRAYS = 12
"""Arrays of a weight's size in float32 that there are while one is made."""
MATRICES = 6
"""Matrices [K, K] in float64 that there are then."""
ENCODERS = 12 << 20
"""Bytes of the kernels that make weights, and of threads that multiply matrices."""
SLACK = 1.08
"""Bytes that the system gives for one that is asked for, as measured: what was freed is not all given back."""
PROBE = 512
"""Rows and columns of the products by which the machine's speed is found."""


@dataclass(frozen=True)
class Needs:
    """What a run takes.

    memory   bytes of the process at most, beside what it has when it begins; files in memory are not counted
    values   bytes of the values that are kept of all samples at a time: on the disk with a journal, else in memory
    hessians bytes of the Hessians, if they are written
    seconds  about so long
    """

    memory: int
    values: int
    hessians: int
    seconds: float


def needs(run: Layerwise, *, hessians: bool) -> Needs:
    """What a run takes, with `hessians` when those of all inputs are added up one after the other."""
    values = max(_kept(run, stage) for stage in run.stages)
    inputs = [(product, _inputs(product)) for stage in run.stages for product in stage.products]
    largest = max((size for _, (_, size) in inputs), default=1)
    written = {(id(p.inputs[1]), *map(id, p.inputs[2:])): experts * 4 * size**2 for p, (experts, size) in inputs}
    sums = 2 * hessian_bytes(largest) + 4 * largest**2 if hessians else 0
    memory = PROGRAM + max(sums, *(_stage_bytes(run, stage) for stage in run.stages))
    return Needs(memory, values, sum(written.values()) if hessians else 0, _seconds(run, hessians=hessians))


def method_bytes(run: Layerwise, shapes: Iterable[tuple[int, ...]], kept: int) -> int:
    """Bytes of the process, beside what it has when it begins, while weights [N, K] are made one after the other.

    shapes  of all weights, of experts [E, N, K]
    kept    bytes of what is there in any case: values of all samples that are in memory, and weights that were made

    First a Hessian is factorized; then it is there, half as many matrices, beside the weight's arrays.
    """
    matrices = MATRICES * (len(run.streams) + 1) // 2
    made = (8 * max(matrices * k**2, matrices * k**2 // 2 + ARRAYS * n * k // 2) for *_, n, k in shapes)
    stage = max(_stage_bytes(run, stage) for stage in run.stages)
    return PROGRAM + ENCODERS + int(SLACK * (stage + max(made, default=0) + kept))


def kept_in_memory(run: Layerwise) -> int:
    """Bytes of the values that are kept of all samples, at most, where there is no journal: as `Values` takes them."""
    total = top = 0
    spare, sizes = set[int](), dict[int, int]()
    item = {name: np.dtype(kind).itemsize for name, kind in DTYPES.items()}
    for stage in run.stages:
        for n, node in stage.gives.items():
            sizes[n] = math.prod(bind(node.shape, run.samples.all)) * item[node.dtype]
            total += 0 if sizes[n] in spare else sizes[n]
            spare.discard(sizes[n])
        top = max(top, total)
        later = {n for s in run.stages[stage.number + 1 :] for n in s.takes}
        for n in sizes.keys() - later:
            size = sizes.pop(n)
            total -= size if size in spare else 0
            spare.add(size)
    return len(run.streams) * top


def _kept(run: Layerwise, stage: Stage) -> int:
    """Bytes of the values that are there while a stage runs."""
    later = {n: node for s in run.stages[: stage.number + 1] for n, node in s.gives.items()}
    read = {n for s in run.stages[stage.number :] for n in s.takes} | stage.gives.keys()
    alive = (node for n, node in later.items() if n in read)
    item = {name: np.dtype(kind).itemsize for name, kind in DTYPES.items()}
    return len(run.streams) * sum(math.prod(bind(n.shape, run.samples.all)) * item[n.dtype] for n in alive)


def _stage_bytes(run: Layerwise, stage: Stage) -> int:
    """Bytes in memory of a stage that runs: weights and one that is being loaded, caches, and values of a step."""
    if not (stage.gives or stage.written):
        return 0
    made = run.scheduled(stage)
    nodes = [n for n in made.graph.nodes if not n.is_leaf]
    hosts = [b for b in run.backends if isinstance(b, HostBackend)]
    weights = sum(b.weight_bytes(nodes) + b.cache_bytes(nodes, run.samples.limits) for b in hosts[:1])
    given = sum(4 * math.prod(bind(n.shape, run.samples.limits)) for n in stage.takes.values())
    results = (*stage.gives.values(), *stage.made.values())
    read = sum(4 * math.prod(bind(n.shape, run.samples.limits)) for n in results)
    as_floats = (4 * math.prod(p.inputs[0].tensor.shape) for p in stage.products)
    return weights + max(as_floats, default=0) + sum(made.memory) + 2 * given + read


def _seconds(run: Layerwise, *, hessians: bool) -> float:
    """Seconds, by the operations of products and the speed that a plain product of floats has here."""
    tokens, model, sums, seen = run.samples.all["tokens"], 0.0, 0.0, set()
    for product in (p for stage in run.stages if stage.gives for p in stage.products):
        experts, size = _inputs(product)
        used = product.shape[1] if experts > 1 and isinstance(product.shape[1], int) else 1
        model += 2.0 * tokens * used * math.prod(product.inputs[0].tensor.shape) / experts
        if id(product.inputs[1]) not in seen:
            sums += tokens * used * float(size) * (size + TILE)
            seen.add(id(product.inputs[1]))
    model *= len(run.streams)
    return (model / MODEL_SHARE + (sums / SUM_SHARE if hessians else 0)) / _speed()


def _inputs(product: Node) -> tuple[int, int]:
    """A product's experts, 1 for a plain one, and the numbers of a vector that it is given."""
    shape = product.inputs[0].tensor.shape
    return (shape[0] if len(shape) == 3 else 1), shape[-1]


def _speed() -> float:
    """Operations a second of products of floats in all threads."""
    from octavo.backends.cores import cores

    x = np.ones((PROBE, PROBE), np.float32)

    def products() -> None:
        for _ in range(4):
            _ = x @ x

    products()
    start = perf_counter()
    run_tiles([products] * cores())
    return 4 * cores() * 2 * PROBE**3 / (perf_counter() - start)
