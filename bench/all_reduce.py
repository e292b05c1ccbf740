"""Times sums of all ranks alone, on cards of one host; writes bench/results/all-reduce-<arch>-<date>.json.

    python bench/all_reduce.py [--ranks N] [--kib 8,16,...] [-o FOLDER]

Calls are captured in a graph, LAUNCHES in turn. Microseconds of one, of the slowest rank, by ways to do it: `kernel`
is Octavo's (values up to 256 KiB), `nccl`, and torch's `one_shot` (with the copy into symmetric memory) and `two_shot`.
What a way can't do is left out. The sums are checked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import results_file
from octavo.backends.gloo import find_store, open_store
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.collectives.communicator import DeviceCommunicator, communicators, visible_to
from octavo.bench import gpu

KIB = (8, 16, 32, 64, 128, 256, 1024, 4096, 16384, 65536)
LAUNCHES, REPLAYS = 32, 7


def ways(c: DeviceCommunicator, backend: GpuBackend, x: Any, out: Any) -> dict[str, Callable[[], object]]:
    """How to make `out` the sum of all ranks' x."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric_memory

    found: dict[str, Callable[[], object]] = {}
    calls = c.sum_calls(backend._context, x, (), out)
    if not isinstance(calls[0], partial):
        found["kernel"] = calls[0]
    found["nccl"] = lambda: (out.copy_(x), dist.all_reduce(out))
    group = dist.group.WORLD
    assert group is not None
    shared, name = symmetric_memory.empty(x.numel(), dtype=x.dtype, device=x.device), group.group_name
    symmetric_memory.rendezvous(shared, group)
    one, two = torch.ops.symm_mem.one_shot_all_reduce_copy_out, torch.ops.symm_mem.two_shot_all_reduce_
    if x.numel() <= 1 << 20:
        found["one_shot"] = lambda: one(shared, x, "sum", name, out)
    found["two_shot"] = lambda: (shared.copy_(x), two(shared, "sum", name), out.copy_(shared))
    return found


def rank_times(store: Any, rank: int, ranks: int, sizes: list[int]) -> list[dict[str, float]]:
    """Microseconds by way, for each number of KiB."""
    import torch

    (communicator,), backend = communicators(store, rank, ranks, 1), GpuBackend()
    times = []
    for kib in sizes:
        x = torch.full((kib * 256,), float(rank + 1), device="cuda")
        out, found = torch.empty_like(x), dict[str, float]()
        for way, call in ways(communicator, backend, x, out).items():
            out.zero_()
            call()
            if not bool((out == ranks * (ranks + 1) / 2).all()):
                raise SystemExit(f"rank {rank}: {way} of {kib} KiB gives {out[:3].tolist()}")
            seconds = gpu.seconds([call] * LAUNCHES, replays=REPLAYS)
            slowest = torch.tensor([sorted(seconds)[REPLAYS // 2]], device="cuda")
            communicator.all_reduce(slowest, "max")
            found[way] = round(1e6 * slowest.item(), 2)
        times.append({"kib": kib, **found})
        if rank == 0:
            print(times[-1], flush=True)
    communicator.abort()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kib", default=",".join(map(str, KIB)))
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sizes = [int(n) for n in asked.kib.split(",")]
    if asked.rank:
        rank, port = json.loads(asked.rank)
        rank_times(find_store(port), rank, asked.ranks, sizes)
        return
    store = open_store()
    others = [
        subprocess.Popen(
            [sys.executable, __file__, "--ranks", str(asked.ranks), "--kib", asked.kib,
             "--rank", json.dumps([rank, store.port])],
            env={**os.environ, **visible_to(rank, asked.ranks)},
        )
        for rank in range(1, asked.ranks)
    ]
    try:
        cases = rank_times(store, 0, asked.ranks, sizes)
    finally:
        for other in others:
            other.wait(30)
    card = gpu.describe(GpuBackend())
    result = {**results_file.described(card), "ranks": asked.ranks, "unit": "microseconds", "cases": cases}
    results_file.write(f"all-reduce-{card['arch']}", result, asked.output)


if __name__ == "__main__":
    main()
