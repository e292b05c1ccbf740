"""The one parallel region: threads that run a program's calls in step."""

from __future__ import annotations

from numba import njit, prange

from octavo.backends.cpu.simd import atomic_add, atomic_load, call, pause, yield_thread

SPINS = 2000


@njit(parallel=True, cache=True, nogil=True)
def run_program(table, counters, threads):
    """Run the calls of `table`, int64 [calls, 3] (kernel, args, tasks); `counters` is the address of zeroed counters.

    A thread goes on to the next call when all tasks of this one are done, by whomever: so the program ends even if the
    system gives it fewer threads than it asked for.
    """
    for _thread in prange(threads):
        for i in range(len(table)):
            taken = counters + i * 128
            done = taken + 64
            tasks = table[i, 2]
            task = atomic_add(taken, 1)
            while task < tasks:
                call(table[i, 0], table[i, 1], task)
                atomic_add(done, 1)
                task = atomic_add(taken, 1)
            waited = 0
            while atomic_load(done) < tasks:
                pause()
                waited += 1
                if waited % SPINS == 0:
                    yield_thread()  # the thread that we wait for may need this core
