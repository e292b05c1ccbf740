"""Programs: kernels with their arguments, run one after the other by all threads inside one compiled call.

A kernel is `void(arguments, task)`: where its arguments lie, a record, and a number from 0 to `tasks` - 1.
Tasks of one call may run at the same time, in any order; a call starts when all tasks of the one before it are done.
Each thread has a range of them, and takes from the others' when it is through: so one that the system holds up delays
nobody by more than a task. See `task_driver`.

A process that is forked after Numba's threads have begun has none of them, and GNU's OpenMP can't begin new ones: it
runs programs in the thread that asks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.io.cpu_topology import memory_nodes, processors, second_cache
from octavo.jit.argument_record import addresses
from octavo.jit.prepare import turn

if TYPE_CHECKING:
    from octavo.jit.compile import Kernel

PLAIN = int, float, np.ndarray, np.generic

LINE = 64  # bytes of a cache line
MOST_AHEAD = 1 << 18  # bytes that a waiting thread fetches; half of the second cache where that is less
MOST_PROCESSORS = 8192  # as many as Linux can be made for
GRAINS = 32  # a thread takes its tasks of a call in about this many parts


class _ForkedChild:
    """Whether this process was forked after Numba's threads had begun."""

    alone = False


def _forked() -> None:
    layer = sys.modules.get("numba.np.ufunc.parallel")
    _ForkedChild.alone = _ForkedChild.alone or (layer is not None and bool(layer._is_initialized))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class KernelCall:
    """A kernel with its arguments bound by name. An array is bound by its address, and lives as long as the call.

    `keep` is what else must live so long; `overlaps` says that the next call does not need what this one makes, and may
    start before it is done. `reads` is where a weight lies that is read task after task, and bytes of a task. An
    argument that is a kernel, or a call, is its address, set before the first run. Raises TypeError for an argument
    that the kernel's record lacks, or that is not given. A tuple of kernels is an int64 array of their addresses.
    """

    def __init__(
        self,
        kernel: Kernel,
        tasks: int,
        keep: Sequence[Any] = (),
        /,
        **arguments: int | float | AnyArray | Kernel | KernelCall | tuple[Kernel, ...],
    ) -> None:
        self.kernel, self.tasks, self.overlaps, self.reads = kernel, tasks, False, (0, 0)
        self.others: dict[str, Any] = {n: value for n, value in arguments.items() if not isinstance(value, PLAIN)}
        given: dict[str, Any] = {**arguments, **dict.fromkeys(self.others, 0)}
        self.args: AnyArray = kernel.record.new(**given)
        self._keep: tuple[Any, ...] = keep, arguments

    def other_kernels(self) -> Iterator[Kernel]:
        """Those that its arguments are addresses of."""
        for other in self.others.values():
            if isinstance(other, KernelCall):
                yield other.kernel
                yield from other.other_kernels()
            elif isinstance(other, tuple):
                yield from other
            else:
                yield other

    @property
    def address(self) -> int:
        """Of the kernel, whose arguments are complete from then on."""
        if self.others:
            found = {name: _address_of(other) for name, other in self.others.items()}
            self.kernel.record.fill(self.args, addresses(self._keep[1] | found))
            self._keep, self.others = (*self._keep, found), {}
        return self.kernel.address

    def fill(self, arguments: Mapping[str, int | float]) -> None:
        """Set all arguments anew, for the next run; the caller keeps what they are addresses of."""
        self.kernel.record.fill(self.args, arguments)

    def run(self) -> None:
        """Run in this thread alone, and without the interpreter's lock."""
        from octavo.jit.task_driver import run_tasks

        run_tasks(self.address, self.args.ctypes.data, self.tasks)


class Program:
    """Calls that run as one. `threads` is how many threads share each call's tasks."""

    def __init__(self, calls: Sequence[KernelCall], threads: int) -> None:
        import numba

        from octavo.jit.task_driver import run_threads, share_kernel

        self._run, self.threads, self.calls, self.kernel = run_threads, threads, tuple(calls), share_kernel()
        self._system_threads = min(threads, int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
        self._set_threads, self._turn = numba.set_num_threads, turn()
        self._table: AnyArray | None = None

    def make_ready(self) -> None:
        """Compile all kernels, unless that is done; the first run does it too."""
        from octavo.jit.task_driver import FIELDS, WORD

        nodes, node_of = self._nodes = _nodes()
        self._table = np.array(list(self._rows()), np.int64).reshape(-1, FIELDS)
        counters = np.zeros((self.threads + nodes + 2) * WORD // 8, np.int64)
        start = -counters.ctypes.data % WORD // 8
        self._counters = counters[start : start + (self.threads + nodes + 1) * WORD // 8]
        self._args = self.kernel.record.new(
            table=self._table, calls=len(self.calls), counters=self._counters, threads=self.threads,
            ahead=min(MOST_AHEAD, second_cache() // 2), nodes=nodes, node_of=node_of, times=0,
        )
        self._call = self.kernel.address, self._args.ctypes.data  # an address takes no array's type to look up

    def _rows(self) -> Iterator[tuple[int, ...]]:
        last = len(self.calls) - 1
        following, first = [], last + 1
        for i in range(last, -1, -1):
            following.append(first)
            first = i if self.calls[i].reads[1] else first
        for i, c in enumerate(self.calls):
            grain = max(1, c.tasks // (self.threads * GRAINS))
            waits = not c.overlaps or i == last
            yield c.address, c.args.ctypes.data, c.tasks, grain, waits, *c.reads, following[last - i]

    def __call__(self) -> None:
        if self._table is None:
            self.make_ready()
        if _ForkedChild.alone:
            for call in self.calls:
                call.run()
        elif self.calls:
            with self._turn:
                self._counters.fill(0)
                self._set_threads(self._system_threads)
                self._run(*self._call, self.threads)


@cache
def _nodes() -> tuple[int, AnyArray]:
    """How many memory nodes there are, and the number of each processor's, int64."""
    nodes = list(memory_nodes(processors()).values())
    numbers = {cpu: i for i, cpus in enumerate(nodes) for cpu in cpus}
    return len(nodes), np.array([numbers.get(cpu, 0) for cpu in range(MOST_PROCESSORS)], np.int64)


@contextmanager
def timed(program: Program) -> Iterator[AnyArray]:
    """What the runs of a program in this block note, the last of them int64 [calls, threads, 3]: when each thread began
    a call, found no more tasks of it to do, and went on to the next, in ticks of the CPU's clock."""
    from octavo.jit.task_driver import DRIVER, share_kernel

    program.make_ready()
    times, usual = np.zeros((len(program.calls), program.threads, 3), np.int64), program._call
    program._args[DRIVER.names.index("times")] = times.ctypes.data
    program._call = share_kernel(True).address, usual[1]
    try:
        yield times
    finally:
        program._call = usual


def run_call(call: KernelCall, threads: int) -> None:
    """Run one call on this many threads; on one in this thread, beside what others run."""
    if threads == 1:
        call.run()
    else:
        Program([call], threads)()


def _address_of(other: Any) -> int | AnyArray:
    """The address of a kernel or a call; those of several kernels as an array."""
    return np.array([k.address for k in other], np.int64) if isinstance(other, tuple) else int(other.address)


def address(array: AnyArray) -> int:
    """Where an array's values begin; it must be contiguous and outlive the calls that use it."""
    return int(array.ctypes.data)
