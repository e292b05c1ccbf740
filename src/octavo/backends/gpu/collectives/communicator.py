"""Communicators of ranks that have a GPU each, and of ranks that share one.

Small sums are a kernel of our own on memory that all ranks see (torch's symmetric memory), the rest is NCCL's. Both are
calls on the stream, which a captured graph replays. Values of ranks that share a GPU go over the host.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Protocol

import numpy as np

from octavo.backends.gloo import distributed
from octavo.backends.gpu.device.torch_device import on_card
from octavo.backends.gpu.launch.context import Context
from octavo.errors import BackendError
from octavo.graph.communicator import Communicator, Reduction
from octavo.graph.protocol import Call

log = logging.getLogger("octavo")
MOST_VALUES = 64 << 10
"""Of a sum that the kernel makes: of more, NCCL's ring is faster than every rank reading all."""
BLOCK = 1024
"""Values of a program."""
STEP_S = 7 * 24 * 3600.0
"""Seconds for a collective: the end of a rank is told otherwise, and a server may have nothing to do for days."""
ROUNDS = 2_000
"""Of words that are given to kernels which wait for a rank that has ended, before NCCL's are taken to wait, too: more
than there are sums in two steps."""
LETTING_GO_S = 30.0
"""Seconds in which all that was launched ends once nothing waits any more."""
ENDING_S = 5.0
"""Seconds to wait for the end of a group, where that matters."""
SETTINGS = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Of the environment: without NVLink multicast, which a fault can leave out of service for all; each process calls its
own GPU the first one; and no thread of NCCL's ends the process where a step waits long."""


def visible_to(rank: int, count: int) -> dict[str, str]:
    """Of the environment of a process whose first GPU is that of a rank; the others, `count` in all, come after it."""
    known = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = known.split(",") if known else [str(i) for i in range(count)]
    first = rank % len(names)
    return {**SETTINGS, "CUDA_VISIBLE_DEVICES": ",".join([*names[first:], *names[:first]])}


class GpuCommunicator(Communicator, Protocol):
    """A communicator of tensors on a GPU."""

    captures: bool
    """Whether a captured graph may have its calls."""

    def sum_calls(self, c: Context, x: Any, terms: Sequence[Any], out: Any) -> list[Call]:
        """The calls that make `out` the sum of all ranks' x and of terms, which all have; all of one shape."""


def communicators(store: Any, rank: int, ranks: int, stages: int) -> list[DeviceCommunicator]:
    """Those of a rank, one for each stage, among its cards and those of other ranks; they meet at a store.

    Raises BackendError where this process has a group of its own.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import torch

    dist: Any = distributed()
    wait_for_end()
    if dist.is_initialized():
        raise BackendError("tensor parallelism needs torch.distributed, which this process uses for something else")
    cards, timeout = [torch.device("cuda", stage * ranks) for stage in range(stages)], timedelta(seconds=STEP_S)
    torch.cuda.set_device(cards[0])
    dist.init_process_group(
        "nccl", store=dist.PrefixStore("nccl", store), rank=rank, world_size=ranks, timeout=timeout,
        device_id=cards[0] if stages == 1 else None,  # groups of one card can't be made from one of another
    )
    if stages == 1:
        return [DeviceCommunicator(dist.group.WORLD, rank, ranks, cards[0])]
    found = []
    for card in cards:
        with on_card(card.index):
            found.append(DeviceCommunicator(dist.new_group(timeout=timeout, device_id=card), rank, ranks, card))
    return found


class DeviceCommunicator:
    """One of several ranks, with its card, in a group of torch.distributed that is used for nothing else."""

    captures = True
    failure = ""

    def __init__(self, group: Any, rank: int, ranks: int, device: Any) -> None:
        import torch

        dist: Any = distributed()
        self.rank, self.ranks, self._torch, self._dist, self._group = rank, ranks, torch, dist, group
        self._reductions = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
        self._ended, self._device = Event(), device
        dist.all_reduce(torch.ones(1, device=device), group=group)  # connects now, not while a step is captured
        self._calls = torch.zeros(MOST_VALUES // BLOCK, dtype=torch.int32, device=device)
        self._side: Any = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._counts = torch.empty_like(self._calls, device="cpu", pin_memory=True)
        self._words = torch.empty(2 * ranks, len(self._calls), BLOCK, dtype=torch.int64, pin_memory=True)
        self._inbox, self._inboxes = self._open_inboxes(device)

    def _open_inboxes(self, device: Any) -> tuple[Any, tuple[int, ...]]:
        """Memory of this rank that all write to, empty, and the addresses of all ranks'; none where GPUs don't reach
        each other's memory."""
        torch, shape = self._torch, (2, self.ranks, MOST_VALUES)
        try:
            import torch.distributed._symmetric_memory as symmetric_memory

            own = self._inbox = symmetric_memory.empty(*shape, dtype=torch.int64, device=device)
            self._give_words()
            own.zero_()
            handle = symmetric_memory.rendezvous(own, self._group)
            inboxes = tuple(map(int, handle.buffer_ptrs))
        except (ImportError, RuntimeError, AttributeError) as error:
            log.info("device gpu: all sums of ranks are NCCL's: %s", str(error).partition("\n")[0])
            own, inboxes = None, ()
        torch.cuda.synchronize(device)
        every = torch.tensor([float(bool(inboxes))], device=device)
        self.all_reduce(every, "sum")  # by when all inboxes are empty
        return (own, inboxes) if every.item() == self.ranks else (None, ())

    def _give_words(self) -> None:
        """Put into the inbox the words of every program's next call, all of 0.

        Copies alone do so: while kernels wait, memory can't be allocated nor code be loaded, and programs that were
        launched ahead may leave a multiprocessor no room for another kernel.
        """
        with self._torch.cuda.stream(self._side):
            self._counts.copy_(self._calls, non_blocking=True)
            self._side.synchronize()
            self._words.numpy()[:] = (self._counts.numpy().astype(np.int64)[:, None] + 1) << 32
            self._inbox.view(self._words.shape).copy_(self._words, non_blocking=True)
            self._side.synchronize()

    def sum_calls(self, c: Context, x: Any, terms: Sequence[Any], out: Any) -> list[Call]:
        values = (x, *terms, out)
        if not (self._inboxes and 0 < x.numel() <= MOST_VALUES and all(each.is_contiguous() for each in values)):
            return [partial(_sum, self, x, terms, out)]
        from octavo.backends.gpu.collectives.all_reduce_kernel import all_reduce_kernel

        grid = (-(-x.numel() // BLOCK),)
        return [c.launch(
            all_reduce_kernel, grid, x, tuple(terms), out, self._inboxes, self._calls, x.numel(), MOST_VALUES,
            RANK=self.rank, RANKS=self.ranks, B=BLOCK,
        )]

    def all_reduce(self, value: Any, reduction: Reduction) -> None:
        if value.numel():
            self._dist.all_reduce(value, self._reductions[reduction], group=self._group)

    def all_gather(self, part: Any, out: Any) -> None:
        if part.numel():
            self._dist.all_gather_into_tensor(out, part, group=self._group)

    def abort(self) -> None:
        """Let go of the group, in a thread: NCCL ends it when no captured graph has calls of it any more.

        What waits for a rank that has ended goes on: NCCL's kernels are told, ours are given words of their call.
        """
        if not self._ended.is_set():
            self._ended.set()
            ending = Thread(target=self._end, name="end of ranks", daemon=True)
            _ending.append(ending)
            ending.start()

    def _end(self) -> None:
        """Give words until all kernels have ended. Behind one of NCCL's, which the end of the group lets go of, ours of
        the step that was launched after it may wait, and the group's end for these: so words are given beside that."""
        ending = Thread(target=self._end_group, name="end of a group", daemon=True)
        if self._inboxes:
            last, until, rounds = self._torch.cuda.default_stream(self._device), monotonic() + LETTING_GO_S, 0
            while not last.query() and monotonic() < until:
                if (rounds := rounds + 1) == ROUNDS:
                    ending.start()
                self._give_words()
        if ending.ident is None:
            ending.start()
        ending.join()

    def _end_group(self) -> None:
        with _end_lock:
            if self._dist.is_initialized():  # all groups end with the first
                self._dist.distributed_c10d._abort_process_group()


_ending: list[Thread] = []
"""Threads that end groups, which are waited for before there is another one, and before exit."""
_end_lock = Lock()


@atexit.register
def wait_for_end() -> None:
    """Wait until groups that were let go of have ended, for ENDING_S at most."""
    until = monotonic() + ENDING_S
    for one in _ending:
        one.join(max(until - monotonic(), 0))
    _ending[:] = [one for one in _ending if one.is_alive()]


class HostStagedCommunicator:
    """Collectives of values on a GPU by those of a communicator of arrays; a captured graph can't have them."""

    captures = False
    failure = ""

    def __init__(self, inner: Communicator) -> None:
        self._inner, self.rank, self.ranks = inner, inner.rank, inner.ranks

    def sum_calls(self, c: Context, x: Any, terms: Sequence[Any], out: Any) -> list[Call]:
        return [partial(_sum, self, x, terms, out)]

    def all_reduce(self, value: Any, reduction: Reduction) -> None:
        host = value.cpu()
        self._inner.all_reduce(host.numpy(), reduction)
        value.copy_(host)

    def all_gather(self, part: Any, out: Any) -> None:
        host = out.cpu()
        self._inner.all_gather(part.cpu().numpy(), host.numpy())
        out.copy_(host)

    def abort(self) -> None:
        self._inner.abort()


def _sum(communicator: Communicator, x: Any, terms: Sequence[Any], out: Any) -> None:
    """`out` = the sum of all ranks' x, + terms, by a collective and a kernel for each."""
    out.copy_(x)
    communicator.all_reduce(out, "sum")
    for term in terms:
        out.add_(term)
