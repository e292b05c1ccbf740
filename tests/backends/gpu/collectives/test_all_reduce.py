"""The sum of ranks by the kernel: two processes, whose inboxes are memory that both see, with Triton's interpreter."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import torch

from octavo.backends.gpu.collectives import communicator
from octavo.backends.gpu.collectives.communicator import visible_to

RANKS, MOST, BLOCK = 2, 256, 64
SIZES = (1, 64, 200, 256, 130, 7, 256, 256)


def _values(call: int, rank: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([call, rank]).standard_normal(SIZES[call]).astype(np.float32))


def _work(rank: int, inboxes: list[torch.Tensor], sums: torch.Tensor) -> None:
    from octavo.backends.gpu.collectives.all_reduce_kernel import all_reduce_kernel
    from octavo.backends.gpu.launch.arguments import for_triton

    kernel: Any = all_reduce_kernel
    calls = torch.zeros(MOST // BLOCK, dtype=torch.int32)
    for call, size in enumerate(SIZES):
        x, term = _values(call, rank), torch.full((size,), float(call))
        terms = (term,) if call % 2 else ()
        addresses = tuple(inbox.data_ptr() for inbox in inboxes)
        arguments = for_triton((x, terms, sums[rank, call], addresses, calls, size, MOST))
        kernel[(-(-size // BLOCK),)](*arguments, RANK=rank, RANKS=RANKS, B=BLOCK, PDL=False)


def test_two_ranks_get_one_sum() -> None:
    """Of sizes with and without a last part that is not full, more than two in turn, equal to the bit on both."""
    inboxes = [torch.zeros((2, RANKS, MOST), dtype=torch.int64).share_memory_() for _ in range(RANKS)]
    sums = torch.zeros((RANKS, len(SIZES), MOST)).share_memory_()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work, args=(rank, inboxes, sums), daemon=True) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    for call, size in enumerate(SIZES):
        wanted = sum(_values(call, rank) for rank in range(RANKS)) + (call if call % 2 else 0)
        assert torch.equal(sums[0, call, :size], wanted)
        assert torch.equal(sums[0, call], sums[1, call])
        assert not sums[0, call, size:].any()


def test_each_process_has_its_own_gpu_first(monkeypatch: Any) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_to(1, 4)["CUDA_VISIBLE_DEVICES"] == "1,2,3,0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    found = visible_to(1, 2)
    assert found.pop("CUDA_VISIBLE_DEVICES") == "GPU-b,GPU-a"
    assert found == communicator.SETTINGS
