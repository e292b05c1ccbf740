"""Kernels that are compiled together: on all cores at once, by processes that each take the next one.

LLVM holds Python's lock while it compiles, so threads gain nothing. Processes are started where several kernels are not
on disk yet. They are given the kernels as factories with constants, take numbers of these from a pipe, as this process
does, and answer each with a byte. What one of them can't make this process makes itself.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from octavo.jit.clock import spent
from octavo.jit.kernel_cache import kept
from octavo.jit.prepare import end_progress, expect, made_elsewhere

if TYPE_CHECKING:
    from octavo.jit.compile import Kernel

log = logging.getLogger("octavo")

MIN_KERNELS = 2
"""Kernels for each process: to start one takes as long as to compile one."""
MAX_PROCESSES = 16


def compile_together(kernels: Iterable[Kernel], threads: int) -> None:
    """Compile those of the kernels that are not on disk yet, in at most this many processes, what takes long first."""
    missing = sorted((k for k in dict.fromkeys(kernels) if not k.is_there), key=lambda k: not k.long)
    if not missing:
        return
    start = time.perf_counter()
    expect(len(missing))
    others = min(threads, len(missing) // MIN_KERNELS, MAX_PROCESSES) - 1
    if others > 0 and kept() and sys.platform != "win32":
        with suppress(OSError, pickle.PicklingError):
            _share(missing, others)
    for kernel in missing:
        _ = kernel.address
    end_progress()
    log.info("%d kernels were made ready in %.2f s", len(missing), time.perf_counter() - start)


def _share(missing: Sequence[Kernel], others: int) -> None:
    """Compile kernels here and in this many other processes."""
    given = pickle.dumps([(k.factory.__module__, k.factory.__name__, k.constants) for k in missing])
    (numbers, put), (answers, answer) = os.pipe(), os.pipe()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        os.write(put, b"".join(i.to_bytes(2, "little") for i in range(len(missing))))
        os.close(put)
        for _ in range(others):
            program = "from octavo.jit.parallel_compile import help; help()"
            command = [sys.executable, "-c", program, f"{numbers}", f"{answer}"]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            process = subprocess.Popen(
                command, pass_fds=(numbers, answer), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(given)
            process.stdin.close()
        os.close(answer)
        os.set_blocking(answers, False)
        while number := os.read(numbers, 2):
            _ = missing[int.from_bytes(number, "little")].address
            _count(answers)
        start = time.perf_counter()
        os.set_blocking(answers, True)
        while _count(answers):
            pass
        spent(time.perf_counter() - start)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for fd in (numbers, answers):
            os.close(fd)


def _count(answers: int) -> bool:
    """Tell of what other processes have compiled; False where they are all done."""
    try:
        found = len(os.read(answers, 1 << 12))
    except BlockingIOError:
        return True
    made_elsewhere(found)
    return found > 0


def help() -> None:
    """What one of these processes does."""
    from octavo.jit.prepare import prepare

    numbers, answer = int(sys.argv[1]), int(sys.argv[2])
    given: list[tuple[str, str, tuple[Any, ...]]] = pickle.load(sys.stdin.buffer)
    prepare()
    while number := os.read(numbers, 2):
        module, name, constants = given[int.from_bytes(number, "little")]
        with suppress(Exception):  # who asked meets it too
            _ = getattr(importlib.import_module(module), name)(*constants).address
        os.write(answer, b".")
