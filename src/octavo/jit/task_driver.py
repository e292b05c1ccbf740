# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""What each thread does of a program, itself a kernel: its tasks are the threads.

A call's tasks are divided into ranges of neighbours, one for each thread, so each reads its own part of a weight, and
nobody but the owner touches the range's counter. Who is done takes tasks from the ranges of others, and who then waits
fetches the beginning of its part of the next weight: memory is not idle while a norm or the last tasks are computed.
"""

from __future__ import annotations

from typing import Any

from numba import njit, prange

from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kept, kernels
from octavo.jit.simd import (
    atomic_add,
    atomic_load,
    atomic_swap,
    call,
    i64_pointer,
    pause,
    prefetch_to_l2,
    processor,
    ticks,
    yield_thread,
)

SPINS = 4000
FIELDS = 8
"""int64 of a call: its kernel, its args, its tasks, tasks to take at a time, whether it is waited for; where the weight
lies that task after task reads and bytes of a task, or 0; and the first call after it that reads such a weight."""
WORD = 128
"""Bytes from one counter to the next: CPUs fetch lines of 64 bytes in pairs."""
FETCHED = 512

DRIVER = record("table calls", "counters threads ahead", "nodes node_of", "times")
"""table             `FIELDS` of each call
counters          zeros: `WORD` bytes for tasks that are done, for each thread, and for each memory node
ahead             bytes that a thread that waits fetches at most
nodes, node_of    how many memory nodes there are, and of which one each processor is, int64
times             int64 [calls, threads, 3], made: when a thread began a call, found no more tasks, and went on; or 0
"""


@kernels(DRIVER)
def share_kernel(timed: bool = False) -> Any:
    """Task i is the work of one of the threads.

    A thread goes on when all tasks up to a call that is waited for are done, by whomever: so the program ends even
    if the system gives it fewer threads than it asked for.
    """
    run, share_of, note = inner(run_range), inner(free_share), inner(note_ticks if timed else note_nothing)

    def share(a, task):
        table, counters, shares, me = i64_pointer(a.table), a.counters, a.threads, task
        if a.nodes > 1:
            me = share_of(counters + WORD * (shares + 1), shares, a.nodes, i64_pointer(a.node_of)[processor()])
        total, weight, at, end, left = 0, -1, 0, 0, 0
        for i in range(a.calls):
            row, times = FIELDS * i, a.times + 24 * (i * shares + me)
            note(times)
            tasks, waited_for = table[row + 2], table[row + 4] != 0
            each, more = tasks // shares, tasks % shares
            total += tasks
            if table[row + 6] > 0:
                left = a.ahead
            for step in range(shares):
                other = me + step if me + step < shares else me + step - shares
                done = run(table, i, counters, other, each, more)
                if done > 0 and atomic_add(counters, done) + done >= total and waited_for:
                    break
            note(times + 8)
            spins = 0
            while waited_for and atomic_load(counters) < total:
                following = table[FIELDS * max(weight, i) + 7]
                if weight > i and at < end:
                    for line in range(0, FETCHED, 64):
                        prefetch_to_l2(at + line)
                    at += FETCHED
                elif left > 0 and following < a.calls:
                    weight, row = following, FIELDS * following
                    each, more = table[row + 2] // shares, table[row + 2] % shares
                    at = table[row + 5] + (me * each + min(me, more)) * table[row + 6]
                    end = at + min(left, (each + (me < more)) * table[row + 6])
                    left -= end - at
                else:
                    pause()
                    spins += 1
                    if spins % SPINS == 0:
                        yield_thread()  # the thread that is waited for may need this core
            note(times + 16)

    return share


def note_ticks(address):
    """Store the time."""
    i64_pointer(address)[0] = ticks()


def note_nothing(address):
    """Where times are not asked for."""


def run_range(table, i, counters, share, each, more):
    """Run what nobody has taken of a share's tasks of call i, and return how many these were.

    The counter holds the number of a call, and how many of its tasks are taken, those of later calls none. It never
    goes back, so a thread that is late takes nothing twice.
    """
    start, size = share * each + min(share, more), each + (share < more)
    row, counter, done = FIELDS * i, counters + WORD * (share + 1), 0
    while size > 0:
        found = atomic_load(counter)
        taken = found - (i << 32) if found >> 32 >= i else 0
        if taken >= size:
            break
        n = min(table[row + 3], size - taken)
        if atomic_swap(counter, found, (i << 32) + taken + n):
            for task in range(start + taken, start + taken + n):
                call(table[row], table[row + 1], task)
            done += n
    return done


def free_share(taken, shares, nodes, node):
    """A share that no thread has yet, of those of a memory node if there is one: theirs are neighbours."""
    while True:
        share = shares * node // nodes + atomic_add(taken + WORD * node, 1)
        if share < shares * (node + 1) // nodes:
            return share
        node = (node + 1) % nodes


@kept
@njit(parallel=True, nogil=True)
def run_threads(kernel, args, threads):
    """Run each task of a kernel in a thread of its own; where there are fewer threads, one runs several."""
    for task in prange(threads):
        call(kernel, args, task)


@kept
@njit(nogil=True)
def run_tasks(kernel, args, tasks):
    """Run all tasks of one kernel in this thread."""
    for task in range(tasks):
        call(kernel, args, task)
