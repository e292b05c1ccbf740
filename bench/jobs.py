"""Tasks of a benchmark that need nothing of each other, shared among processes."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

Task = TypeVar("Task")
Found = TypeVar("Found")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def results(work: Callable[[Task], Found], tasks: Sequence[Task], jobs: int = 1) -> Iterator[tuple[Task, Found]]:
    """Each task with what `work` returns for it, as they end: one after another, or by `jobs` processes.

    Processes share the cores out, so each has some to itself, and begin tasks in the order given. What a task raises is
    printed, and the others go on.
    """
    found = partial(_tried, work)
    for task, result in map(found, tasks) if jobs == 1 else _by_processes(found, tasks, jobs):
        if isinstance(result, _Failed):
            print(f"{task}:\n{result.text}", flush=True)
        else:
            yield task, result


class _Failed:
    """What a task raised, as text: not every error can be sent to another process."""

    def __init__(self, text: str) -> None:
        self.text = text


def _tried(work: Callable[[Task], Found], task: Task) -> tuple[Task, Found | _Failed]:
    try:
        return task, work(task)
    except Exception:
        return task, _Failed(traceback.format_exc())


def _by_processes(found: Callable[[Task], Any], tasks: Sequence[Task], jobs: int) -> Iterator[Any]:
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // jobs)
    os.environ.update({name: str(share) for name in THREADS})  # libraries read it as a process begins
    context = multiprocessing.get_context("spawn")
    counter = context.Value("i", 0)
    with context.Pool(jobs, _stay, (counter, cores, share)) as pool:
        yield from pool.imap_unordered(found, tasks)


def _stay(counter: Any, cores: Sequence[int], share: int) -> None:
    """Keep this process to its cores, where the system does so."""
    with counter.get_lock():
        at, counter.value = counter.value * share, counter.value + 1
    with suppress(OSError):
        os.sched_setaffinity(0, {cores[(at + i) % len(cores)] for i in range(share)})
