"""What a run stage by stage takes: memory, disk and time, known before it begins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from octavo.errors import HostMemoryError
from octavo.evals.layerwise.memory import process_bytes, stage_bytes
from octavo.evals.layerwise.placement import kept_bytes
from octavo.evals.layerwise.runner import Layerwise
from octavo.evals.layerwise.values import DTYPES
from octavo.graph.node import Node, bind
from octavo.graph.stages import Stage
from octavo.io.memory import own, room
from octavo.quantizers.calibration.channels import FIELDS
from octavo.quantizers.calibration.hessian import hessian_bytes
from octavo.quantizers.tiles import TILE, run_tiles

MODEL_SHARE, SUM_SHARE = 0.4, 0.7
"""Speeds of a model's stages, and of sums of products, over that of a plain product of floats."""
PROBE = 512
"""Rows and columns of the products by which the machine's speed is found."""
STATISTIC = 88
"""Bytes of a channel's statistics while all are put together."""


@dataclass(frozen=True)
class Needs:
    """What a run takes.

    memory   bytes of the process at most, with what it has already; files in memory are not counted
    values   bytes of the values that are kept of all samples at a time on the disk
    hessians bytes of the Hessians, if they are written
    statistics  of the channels of all inputs, if they are written
    seconds  about so long
    """

    memory: int
    values: int
    hessians: int
    statistics: int
    seconds: float

    @property
    def disk(self) -> int:
        """Bytes on the disk at most, without Hessians: statistics are there twice while they are put together."""
        return self.values + 2 * self.statistics


def needs(run: Layerwise, *, hessians: bool) -> Needs:
    """What a run takes, with `hessians` when those of all inputs are added up one after the other."""
    products = [(product, _inputs(product)) for stage in run.stages for product in stage.products]
    largest = max((size for _, (_, size) in products), default=1)
    inputs = {(id(p.inputs[1]), *map(id, p.inputs[2:])): (experts, size) for p, (experts, size) in products}
    sums = 2 * hessian_bytes(largest) if hessians else 0
    channels = sum(experts * size for experts, size in inputs.values())
    memory = process_bytes(largest**2 if hessians else 0, device=run.device) + kept_in_memory(run, folder=True)
    memory += max(sums, STATISTIC * channels, *(stage_bytes(run, stage) for stage in run.stages))
    written = sum(experts * 4 * size**2 for experts, size in inputs.values()) if hessians else 0
    statistics = 4 * len(FIELDS) * channels
    return Needs(memory, values_kept(run), written, statistics, seconds(run, hessians=hessians))


def require_memory(takes: int, what: str, hint: str = "") -> None:
    """Raise HostMemoryError where this process can't come to have `takes` bytes; `what` names who does."""
    there, more = room(), takes - own()
    if there is not None and more > there.free + there.swap:
        raise HostMemoryError(f"{what} takes {more:,} bytes of memory, and {there.free + there.swap:,} are free{hint}")


def values_kept(run: Layerwise) -> int:
    """Bytes of the values that are kept of all samples at a time in files, where the run has a folder."""
    return max(_kept(run, stage) for stage in run.stages) if run.in_files else 0


def kept_in_memory(run: Layerwise, *, folder: bool) -> int:
    """Bytes of the values that are kept of all samples, at most, in the host's memory, of a run that has a folder or
    has none."""
    return 0 if run.keeps or (folder and run.in_files) else kept_bytes(run.stages, run.samples.all, len(run.streams))


def _kept(run: Layerwise, stage: Stage) -> int:
    """Bytes of the values that are there while a stage runs."""
    later = {n: node for s in run.stages[: stage.number + 1] for n, node in s.gives.items()}
    read = {n for s in run.stages[stage.number :] for n in s.takes} | stage.gives.keys()
    alive = (node for n, node in later.items() if n in read)
    item = {name: np.dtype(kind).itemsize for name, kind in DTYPES.items()}
    return len(run.streams) * sum(math.prod(bind(n.shape, run.samples.all)) * item[n.dtype] for n in alive)


def seconds(run: Layerwise, *, hessians: bool) -> float:
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
    return (model / MODEL_SHARE + (sums / SUM_SHARE if hessians else 0)) / _speed(run.device)


def _inputs(product: Node) -> tuple[int, int]:
    """A product's experts, 1 for a plain one, and the numbers of a vector that it is given."""
    shape = product.inputs[0].tensor.shape
    return (shape[0] if len(shape) == 3 else 1), shape[-1]


def _speed(device: str | None) -> float:
    """Operations a second of products of floats, on a device or in all threads."""
    if device is not None:
        return _device_speed(device)
    from octavo.backends.cores import cores

    x = np.ones((PROBE, PROBE), np.float32)

    def products() -> None:
        for _ in range(4):
            _ = x @ x

    products()
    start = perf_counter()
    run_tiles([products] * cores())
    return 4 * cores() * 2 * PROBE**3 / (perf_counter() - start)


def _device_speed(device: str) -> float:
    """The same of factors of 11 bits on a device."""
    import torch

    from octavo.quantizers.calibration.tensors import rounded_factors

    size = 8 * PROBE if device == "cuda" else PROBE
    x = torch.ones((size, size), device=device)
    with rounded_factors():
        float((x @ x)[0, 0])
        start = perf_counter()
        float((x @ x @ x @ x @ x)[0, 0])
    return 4 * 2 * size**3 / (perf_counter() - start)
