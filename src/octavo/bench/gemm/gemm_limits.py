"""The least time that a product could take: to read its operands, or to do its multiplications."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.bench import limits

DOTS_PER_CLOCK = {"sm_80": 4096, "sm_86": 2048, "sm_89": 2048, "sm_90": 8192, "sm_100": 16384, "sm_103": 16384}
"""Operations on 8-bit numbers that a multiprocessor's tensor cores do in a clock, without sparsity."""


@dataclass(frozen=True)
class Limit:
    """What bounds a product, in words with its figure, and the seconds that it takes at least."""

    name: str
    seconds: float


def limit(operations: int, nbytes: int, threads: int, scheme: str) -> Limit | None:
    """The limit of a number of operations and bytes; None if unknown. `threads` are the CPU's, 0 for the GPU.

    CPU: measured are how fast memory is read, and how fast the product's inner loop runs on data in the first cache.
    The inner loops of fp8 are not measured, so their limit is not known.
    GPU: memory is measured, and operations follow from the multiprocessors and their clock.
    """
    if threads and scheme.startswith("fp8"):
        return None
    rates = _cpu(threads) if threads else _gpu()
    found = [
        Limit(f"{rate:,.0f} {unit}", count / rate / 1e9)
        for rate, unit, count in ((rates[0], "GB/s", nbytes), (rates[1], "GOPS", operations))
        if rate
    ]
    return max(found, key=lambda each: each.seconds, default=None)


def _cpu(threads: int) -> tuple[float, float]:
    return limits.read_limit(threads), dot_limit(threads)


def dot_limit(threads: int, rounds: int = 5, tasks: int = 256) -> float:
    """GOPS of `threads` threads that add up products of int8 in the first cache: the most of some rounds."""
    from octavo.jit.prepare import prepare

    prepare()
    from octavo.backends.cpu.matmul.w8a8.dot_limit import OPERATIONS, dot_limit_kernel, tile_limit_kernel
    from octavo.jit.host_cpu import has_tiles
    from octavo.jit.program import KernelCall, Program

    out = np.ones(tasks, np.int64)
    kernel = tile_limit_kernel() if has_tiles() else dot_limit_kernel()
    run = Program([KernelCall(kernel, tasks, out=out)], threads)
    seconds = limits.fastest(run, rounds)
    assert not out.any(), "sums of products of zeros"
    return OPERATIONS * tasks / seconds / 1e9


def _gpu() -> tuple[float, float]:
    from octavo.backends.gpu.device.torch_device import interpreted
    from octavo.bench import gpu

    return (0.0, 0.0) if interpreted() else (gpu.read_limit(), dots_of_gpu())


def dots_of_gpu() -> float:
    """GOPS of 8-bit numbers at the card's highest clock; 0 where its architecture or its clock is not known."""
    import torch

    from octavo.backends.gpu.device.torch_device import target

    properties = torch.cuda.get_device_properties(0)
    clock = getattr(properties, "clock_rate", 0)  # kHz; not in every version of torch
    return DOTS_PER_CLOCK.get(target().arch, 0) * properties.multi_processor_count * clock * 1e-6
