"""What the machine can do at best, measured next to what is compared with it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from octavo.graph.protocol import Backend


def read_limit(threads: int, *, nbytes: int = 1 << 29, rounds: int = 5) -> float:
    """GB/s at which `threads` threads read memory that is in no cache: the most of some rounds.

    Each thread sums a part of `nbytes` with vector loads.
    """
    from octavo.jit.prepare import prepare

    prepare()
    from octavo.backends.cpu.device.bandwidth import read_kernel
    from octavo.jit.program import KernelCall, Program

    data, out = np.ones(nbytes // 4, np.float32), np.zeros(1024, np.float32)
    part = nbytes // 1024
    call = KernelCall(read_kernel(), 1024, data=data, sums=out, part_bytes=part)
    seconds = fastest(Program([call], threads), rounds)
    assert float(out.sum()) == nbytes // 4, "every byte was read"
    return nbytes / seconds / 1e9


def fastest(call: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest of some rounds; one before them warms up."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def read_limit_of(backend: Backend, threads: int) -> Callable[[], float] | None:
    """What measures the read limit of a backend, GB/s; None for a GPU whose kernels are interpreted."""
    if backend.name != "gpu":
        return lambda: read_limit(threads)
    from octavo.bench import gpu

    return gpu.read_limit if gpu.has_events(backend) else None
