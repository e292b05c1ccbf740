# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""The one parallel region: threads that run a program's calls in step."""

from __future__ import annotations

from numba import njit, prange

from octavo.jit.compile import kept
from octavo.jit.simd import atomic_add, atomic_load, call, i64_pointer, pause, yield_thread

SPINS = 4000


@kept
@njit(parallel=True, nogil=True)
def run_program(address, calls, counters, threads):
    """Run calls, of which int64 [calls, 5] lie at an address; `counters` is that of zeroed counters, 128 bytes a call.

    A row is kernel, args, tasks, tasks to take at a time, and the first call that must be done before the next one
    starts (-1: the next one need not wait). A thread goes on when those are done, by whomever: so the program ends even
    if the system gives it fewer threads than it asked for.
    """
    for _thread in prange(threads):
        table = i64_pointer(address)
        for i in range(calls):
            taken, row = counters + i * 128, 5 * i
            tasks, grain = table[row + 2], table[row + 3]
            task = atomic_add(taken, grain)
            while task < tasks:
                stop = min(task + grain, tasks)
                for t in range(task, stop):
                    call(table[row], table[row + 1], t)
                atomic_add(taken + 64, stop - task)
                task = atomic_add(taken, grain)
            if table[row + 4] >= 0:
                for waited_for in range(table[row + 4], i + 1):
                    wait(counters + waited_for * 128 + 64, table[5 * waited_for + 2])


@kept
@njit(nogil=True)
def run_tasks(kernel, args, tasks):
    """Run all tasks of one kernel in this thread."""
    for task in range(tasks):
        call(kernel, args, task)


@kept
@njit
def wait(counter, target):
    """Wait until the counter at an address is at its target."""
    spins = 0
    while atomic_load(counter) < target:
        pause()
        spins += 1
        if spins % SPINS == 0:
            yield_thread()  # the thread that is waited for may need this core
