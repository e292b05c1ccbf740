"""Programs: any number of threads runs a program's calls in order, each task once, and ends."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from octavo.backends.cores import quota
from octavo.backends.cpu import CpuBackend
from octavo.bench.cases import OpCase, executor
from octavo.io.cpu_topology import physical_cores
from octavo.jit import program as program_module
from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.program import KernelCall, Program
from octavo.jit.simd import atomic_add, atomic_load, f32_pointer, i64_pointer
from octavo.jit.task_driver import free_share
from tests.backends.cpu.levels import ROOT, environment
from tests.limits import HANG_S
from tests.sampling import some

THREADS = [1, 2, 3, 7]


@kernels(record("seen total"))
def count():
    """Count a call of `task`, and all calls."""

    def count(a, task):
        atomic_add(a.seen + task * 8, 1)
        atomic_add(a.total, 1)

    return count


@kernels(record("x y n"))
def follow():
    """y[task] = the sum of all n of x, + 1: right only if everything before has been written."""

    def follow(a, task):
        x, y, n = i64_pointer(a.x), i64_pointer(a.y), a.n
        total = 0
        for i in range(n):
            total += x[i]
        y[task] = total % 1000003 + 1

    return follow


@kernels(record("out value:f4"))
def fill(factor: float):
    def fill(a, task):
        f32_pointer(a.out)[task] = a.value * factor

    return fill


@kernels(record("hold done"))
def held():
    """Task 0 says that it runs, and waits for all others."""

    def held(a, task):
        done, others = i64_pointer(a.done), 0
        if task == 0:
            atomic_add(a.hold, 1)
            while others < 40:
                others = 0
                for i in range(1, 41):
                    others += atomic_load(a.done + 8 * i)
        done[task] += 1

    return held


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("tasks", [0, 1, 2, 31, 1000])
def test_each_task_runs_once(threads: int, tasks: int) -> None:
    seen, total = np.zeros(tasks + 1, np.int64), np.zeros(1, np.int64)
    program = Program([KernelCall(count(), tasks, seen=seen, total=total)], threads)
    for run in range(1, 4):
        program()
        np.testing.assert_array_equal(seen[:tasks], run)
        assert seen[tasks] == 0
        assert total[0] == run * tasks


@pytest.mark.parametrize("threads", THREADS)
def test_program_of_nothing(threads: int) -> None:
    Program([], threads)()
    seen, total = np.zeros(1, np.int64), np.zeros(1, np.int64)
    nothing = KernelCall(count(), 0, seen=seen, total=total)
    something = KernelCall(count(), 1, seen=seen, total=total)
    Program([nothing, nothing, something, nothing], threads)()
    assert total[0] == 1


@pytest.mark.parametrize("threads", THREADS)
def test_a_call_waits_for_the_one_before(threads: int) -> None:
    n, steps = 37, 300
    values = [np.ones(n, np.int64), np.zeros(n, np.int64)]
    calls = []
    for i in range(steps):
        x, y = values[i % 2], values[(i + 1) % 2]
        calls.append(KernelCall(follow(), n, x=x, y=y, n=n))
    Program(calls, threads)()
    expected = 1
    for _ in range(steps):
        expected = n * expected % 1000003 + 1
    np.testing.assert_array_equal(values[steps % 2], expected)


@pytest.mark.parametrize("threads", THREADS)
def test_calls_that_overlap_are_all_done_before_the_next(threads: int) -> None:
    n = 64
    parts, total = np.zeros((3, n), np.int64), np.zeros(n, np.int64)
    one = np.array([1], np.int64)
    for first_overlaps in (False, True):
        parts[:] = 0
        calls = [KernelCall(follow(), n, x=one, y=p, n=1) for p in parts]
        calls[0].overlaps = calls[1].overlaps = first_overlaps
        calls.append(KernelCall(follow(), n, x=parts, y=total, n=3 * n))
        for _ in range(50):
            Program(calls, threads)()
            np.testing.assert_array_equal(total, 2 * 3 * n + 1)


def one_thread(program: Program) -> Callable[[int], None]:
    """What each thread of a program runs: the kernel with its number."""
    program.make_ready()
    kernel, args = program._call
    run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(kernel)
    return lambda thread: run(args, thread)


def test_a_thread_that_never_comes_delays_nobody_and_one_that_is_late_does_nothing() -> None:
    """Its range is done by the others; and a held up task only by who has it."""
    n, steps = 41, 5
    seen, total = np.zeros(n + 1, np.int64), np.zeros(1, np.int64)
    calls = [KernelCall(count(), n, seen=seen, total=total) for _ in range(steps)]
    calls[1].overlaps = calls[2].overlaps = True
    run = one_thread(Program(calls, 3))
    for turn, share in enumerate((1, 0, 2)):
        run(share)
        assert total[0] == n * steps, f"after thread {share}, number {turn}"
    np.testing.assert_array_equal(seen[:n], steps)
    hold, done = np.zeros(1, np.int64), np.zeros(n, np.int64)
    run = one_thread(Program([KernelCall(held(), n, hold=hold, done=done)], 2))
    threads = [threading.Thread(target=run, args=(share,)) for share in (0, 1)]
    threads[0].start()  # whose first task waits until the others have done all but that
    while hold[0] == 0:
        time.sleep(0.001)
    threads[1].start()
    for thread in threads:
        thread.join(HANG_S)
    np.testing.assert_array_equal(done, 1)


def test_threads_of_a_memory_node_take_neighbouring_shares() -> None:
    """And those of the other node when theirs are taken, as where the system moves a thread."""
    taken = np.zeros(2 * 16, np.int64)
    got = [njit(free_share)(taken.ctypes.data, 5, 2, node) for node in (1, 0, 0, 0, 1)]
    assert got == [2, 0, 1, 3, 4]


def test_a_program_on_two_memory_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "_nodes", lambda: (2, np.arange(8192, dtype=np.int64) % 2))
    seen, total = np.zeros(38, np.int64), np.zeros(1, np.int64)
    program = Program([KernelCall(count(), 37, seen=seen, total=total)] * 9, 5)
    for run in range(1, 4):
        program()
        np.testing.assert_array_equal(seen[:37], 9 * run)


def test_times_of_a_run() -> None:
    """Each thread's are in order, and no call that waits for another one is over before it."""
    x = np.ones(40, np.int64)
    program = Program([KernelCall(follow(), 40, x=x, y=np.zeros(40, np.int64), n=40) for _ in range(3)], 3)
    with program_module.timed(program) as times:
        program()
    assert times.shape == (3, 3, 3)
    assert (times > 0).all()
    assert (np.diff(times.transpose(1, 0, 2).reshape(3, 9)) >= 0).all()
    noted = times.copy()
    program()
    np.testing.assert_array_equal(times, noted)


def test_calls_say_which_weight_is_next() -> None:
    calls = [KernelCall(fill(1.0), 5, out=np.zeros(8, np.float32), value=1.0) for _ in range(5)]
    calls[1].reads, calls[3].reads = (4096, 64), (8192, 128)
    program = Program(calls, 2)
    program.make_ready()
    assert program._table is not None
    np.testing.assert_array_equal(program._table[:, 5:], [
        [0, 0, 1], [4096, 64, 3], [0, 0, 3], [8192, 128, 5], [0, 0, 5],
    ])


def test_kernels_of_one_source_and_other_constants_are_their_own() -> None:
    out = np.zeros((3, 8), np.float32)
    calls = [KernelCall(fill(float(i)), 8, out=row, value=2.0) for i, row in enumerate(out)]
    Program(calls, 2)()
    np.testing.assert_array_equal(out, [[0] * 8, [2] * 8, [4] * 8])
    assert fill(1.0) is fill(1.0)


def test_the_last_call_is_waited_for_even_if_it_overlaps() -> None:
    out = np.zeros(5000, np.float32)
    call = KernelCall(fill(1.0), len(out), out=out, value=1.5)
    call.overlaps = True
    Program([call], 2)()
    np.testing.assert_array_equal(out, 1.5)


def test_programs_of_several_python_threads_run_side_by_side() -> None:
    def work(seed: int) -> bool:
        n, ok = 16 + seed, True
        x, y = np.full(n, seed, np.int64), np.zeros(n, np.int64)
        program = Program([KernelCall(follow(), n, x=x, y=y, n=n)] * 20, 2)
        for _ in range(30):
            y[:] = 0
            program()
            ok = ok and bool((y == n * seed + 1).all())
        return ok

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_arguments_live_as_long_as_a_program() -> None:
    kept = np.zeros(3, np.float32)
    program = Program([KernelCall(fill(1.0), 3, (kept,), out=kept.ctypes.data, value=2.0)], 1)
    address = kept.ctypes.data
    del kept
    trash = [np.zeros(3, np.float32) for _ in range(1000)]
    assert all(t.ctypes.data != address for t in trash)
    program()
    assert not any(t.any() for t in trash)


STEPS = [
    OpCase("mul_mat", 9, {"n": 50, "k": 1024}, ("Q4_K",)),
    OpCase("mul_mat_concat", 9, {"n": 48, "n2": 256, "k": 512}, ("Q4_K", "Q6_K", "Q8_0")),
    OpCase("mul_mat_id", 5, {"experts": 8, "used": 3, "n": 50, "k": 512, "shared": 1}, ("Q4_K",)),
    OpCase("attention", 3, {"heads": 4, "kv_heads": 2, "dim": 64}, past=(5, 128, 300)),
    OpCase("rope_set_rows", 33, {"heads": 4, "kv_heads": 2, "dim": 64, "norms": 1, "interleaved": 0}),
]


@pytest.mark.parametrize("case", some(STEPS, 3), ids=lambda c: c.op)
def test_results_are_the_same_to_the_bit_in_every_run(case: OpCase) -> None:
    """And for any number of threads; only attention of single tokens, whose pages are split among them, is rounded
    otherwise."""
    built, results = case.build(), []
    for threads in THREADS:
        ready = executor(built, [CpuBackend(threads=threads)])
        runs = [[ready.run(*step)[0] for step in built.steps] for _ in range(3)]
        results.append(runs[0])
        for run in runs[1:]:
            for got, want in zip(run, runs[0], strict=True):
                np.testing.assert_array_equal(got, want)
    for result in results[1:]:
        for got, want in zip(result, results[0], strict=True):
            if case.op == "attention":
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(got, want)


def test_threads_default_to_the_cores_of_the_process() -> None:
    assert CpuBackend().threads == min(physical_cores(frozenset(os.sched_getaffinity(0))), quota())
    assert CpuBackend(threads=5).threads == 5


def test_threads_are_honoured_where_cores_are_not_known_by_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows."""
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    monkeypatch.setattr("octavo.backends.cores.physical_cores", len)
    assert CpuBackend().threads == 12
    assert CpuBackend(threads=3).threads == 3


def test_backend_runs_in_a_python_thread() -> None:
    """The first parallel region of a process may be outside its main thread."""
    built, found = STEPS[0].build(), []

    def work() -> None:
        ready = executor(built, [CpuBackend(threads=2)])
        found.append(ready.run(*built.steps[0])[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(HANG_S)
    assert len(found) == 1


RUN_CASES = """
from octavo.backends.cpu import CpuBackend
from octavo.bench.cases import run
from tests.backends.cpu.test_program import STEPS
for case in STEPS:
    run(case.build(), [CpuBackend(threads=2)])
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    """There is a file for each function that was compiled: then there are no new ones."""
    written = []
    for _ in range(2):
        command = [sys.executable, "-c", RUN_CASES]
        subprocess.run(command, env=environment(None, tmp_path), cwd=ROOT, capture_output=True, check=True)
        written.append({p.name: p.stat().st_mtime_ns for p in tmp_path.rglob("*.kernel")})
    assert len(written[0]) > 10
    assert written[1] == written[0]
