# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""The one parallel region: threads that run a program's calls in step.

A call's tasks are divided into ranges of neighbours, one for each thread, so each reads its own part of a weight, and
nobody but the owner touches the range's counter. Who is done takes tasks from the ranges of others, and who then waits
fetches the beginning of its part of the next weight: memory is not idle while a norm or the last tasks are computed.
"""

from __future__ import annotations

from numba import njit, prange

from octavo.jit.compile import kept
from octavo.jit.simd import (
    atomic_add,
    atomic_load,
    atomic_swap,
    call,
    i64_pointer,
    pause,
    prefetch_to_l2,
    processor,
    yield_thread,
)

SPINS = 4000
FIELDS = 8
"""int64 of a call: its kernel, its args, its tasks, tasks to take at a time, whether it is waited for; where the weight
lies that task after task reads and bytes of a task, or 0; and the first call after it that reads such a weight."""
WORD = 128
"""Bytes from one counter to the next: CPUs fetch lines of 64 bytes in pairs."""
FETCHED = 512


@kept
@njit(parallel=True, nogil=True)
def run_program(address, calls, counters, threads, ahead, nodes, node_of):
    """Run calls, whose `FIELDS` lie at an address. At `counters` lie zeros: `WORD` bytes, as many for each thread, and
    for each memory node; at `node_of` the node, int64, of each processor.

    A thread goes on when all tasks up to a call that is waited for are done, by whomever: so the program ends even
    if the system gives it fewer threads than it asked for. A waiting thread fetches up to `ahead` bytes.
    """
    for thread in prange(threads):
        share = thread
        if nodes > 1:
            share = share_of(counters + WORD * (threads + 1), threads, nodes, i64_pointer(node_of)[processor()])
        run_share(address, calls, counters, share, threads, ahead)


@kept
@njit(nogil=True)
def share_of(taken, shares, nodes, node):
    """A share that no thread has yet, of those of a memory node if there is one: theirs are neighbours."""
    while True:
        first = shares * node // nodes
        share = first + atomic_add(taken + WORD * node, 1)
        if share < shares * (node + 1) // nodes:
            return share
        node = (node + 1) % nodes


@kept
@njit(nogil=True)
def run_share(address, calls, counters, share, shares, ahead):
    """What one of `shares` threads does of a program."""
    table = i64_pointer(address)
    total, weight, at, end, left = 0, -1, 0, 0, 0
    for i in range(calls):
        row = FIELDS * i
        tasks, waited_for = table[row + 2], table[row + 4] != 0
        each, more = tasks // shares, tasks % shares
        total += tasks
        if table[row + 6] > 0:
            left = ahead
        done = run_range(table, i, counters, share, each, more)
        if done > 0 and atomic_add(counters, done) + done >= total and waited_for:
            continue
        for step in range(1, shares):
            other = share + step
            done = run_range(table, i, counters, other if other < shares else other - shares, each, more)
            if done > 0:
                atomic_add(counters, done)
        spins = 0
        while waited_for and atomic_load(counters) < total:
            if weight > i and at < end:
                for line in range(0, FETCHED, 64):
                    prefetch_to_l2(at + line)
                at += FETCHED
                continue
            following = table[FIELDS * max(weight, i) + 7]
            if left > 0 and following < calls:
                weight, row = following, FIELDS * following
                each, more = table[row + 2] // shares, table[row + 2] % shares
                at = table[row + 5] + (share * each + min(share, more)) * table[row + 6]
                end = at + min(left, (each + (share < more)) * table[row + 6])
                left -= end - at
                continue
            pause()
            spins += 1
            if spins % SPINS == 0:
                yield_thread()  # the thread that is waited for may need this core


@kept
@njit(nogil=True)
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


@kept
@njit(nogil=True)
def run_tasks(kernel, args, tasks):
    """Run all tasks of one kernel in this thread."""
    for task in range(tasks):
        call(kernel, args, task)
