"""What threads do ahead: the same, in order, no more than asked for, on all threads; errors come where they would."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier, Lock, current_thread
from typing import Any

import numpy as np
import pytest

from octavo.formats import QTensor, by_name, quantize_reference
from octavo.io.gguf import GGUFFile
from octavo.quantizers import quantize_file
from octavo.quantizers.job import recode
from octavo.quantizers.job.recode import InlineExecutor, Pipeline, workers
from tests.limits import HANG_S
from tests.runtime import tiny


@pytest.fixture(params=[1, 2])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    made = workers(request.param)
    assert isinstance(made, InlineExecutor if request.param == 1 else ThreadPoolExecutor)
    yield made
    made.shutdown(cancel_futures=True)


def numbers(asked: list[int], stop: int, fail: int = -1) -> Iterator[tuple[int, Callable[[], int]]]:
    """Calls of size 2."""

    def call(i: int) -> int:
        if i == fail:
            raise ValueError(i)
        return i

    for i in range(stop):
        asked.append(i)
        yield 2, partial(call, i)


@pytest.mark.parametrize("ahead", [0, 1, 7])
def test_all_in_order(executor: Executor, ahead: int) -> None:
    assert list(Pipeline(numbers([], 50), executor, ahead)) == list(range(50))
    assert list(Pipeline(numbers([], 0), executor, ahead)) == []


def test_no_more_than_there_is_room_for(executor: Executor) -> None:
    asked: list[int] = []
    items = Pipeline(numbers(asked, 50), executor, 5)  # of which the third is more than is left
    for i in range(10):
        assert next(items) == i
        assert len(asked) == i + 4
    assert (recode.room(1), recode.room(2)) == (0, 8 * recode.SLAB)


def test_large_tensors_that_stay_are_not_all_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tensor holds is in memory from when it is asked for until it is written."""
    src = tiny.write(tmp_path / "src.gguf")
    sizes = {tensor.name: math.prod(tensor.shape) for tensor in GGUFFile.open(src).tensors.values()}
    largest, real, lock, held, most = max(sizes.values()), GGUFFile.tensor, Lock(), set[str](), 0
    monkeypatch.setattr(recode, "SLAB", largest // 64)

    def read(file: GGUFFile, name: str, *, copy: bool = False) -> QTensor:
        nonlocal most
        with lock:
            held.add(name)
            most = max(most, sum(sizes[each] for each in held))
        return real(file, name, copy=copy)

    def told(name: str, done: int, total: int) -> None:
        with lock:
            held.intersection_update(list(sizes)[list(sizes).index(name) :])

    monkeypatch.setattr(GGUFFile, "tensor", read)
    quantize_file(src, tmp_path / "out.gguf", "F32", threads=2, progress=told)
    assert largest <= most <= recode.room(2) + 2 * largest < sum(sizes.values()) / 2


def test_an_error_comes_in_its_place(executor: Executor) -> None:
    items = Pipeline(numbers([], 50, fail=4), executor, 3)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="4"):
        next(items)


@pytest.fixture
def small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows of the tiny model's matrices are a slab."""
    tiny.widen(monkeypatch)
    monkeypatch.setattr(recode, "SLAB", 8 * 256)


WORK = ("dequantize", "encode", "_errors")
"""What is done with a slab."""


@pytest.mark.usefixtures("small_slabs")
@pytest.mark.parametrize("threads", [2, 4])
def test_all_that_is_done_with_a_slab_is_done_by_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Of a quantized source: this many slabs are read, encoded and measured at once, none of them by the thread that
    writes. A thread that did it alone would wait at the barrier for others."""
    src = tmp_path / "src.gguf"
    weights = {n: x if x.ndim == 1 else quantize_reference(x, by_name("Q8_0"), n) for n, x in tiny.tensors().items()}
    tiny.write(src, weights=weights)
    seen, counting = Counter[str](), Lock()
    quantize_file(src, tmp_path / "one.gguf", "Q4_K_S", threads=1, allow_requantize=True)
    barrier = Barrier(threads)

    def met(name: str, real: Callable[..., Any], *given: Any, **options: Any) -> Any:
        assert current_thread().name.startswith("octavo-quantize")
        with counting:
            seen[name] += 1
            first = seen[name] <= threads
        if first:
            barrier.wait(HANG_S)
        return real(*given, **options)

    for name in WORK:
        monkeypatch.setattr(recode, name, partial(met, name, getattr(recode, name)))
    quantize_file(src, tmp_path / "many.gguf", "Q4_K_S", threads=threads, allow_requantize=True)
    assert seen["encode"] > 4 * threads
    assert (tmp_path / "many.gguf").read_bytes() == (tmp_path / "one.gguf").read_bytes()


@pytest.mark.usefixtures("small_slabs")
def test_work_is_a_slab_each_whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are read, encoded and measured for each of a tensor: as many where it has 16 times the rows."""
    values: list[int] = []
    real = recode.dequantize
    monkeypatch.setattr(recode, "dequantize", lambda t: values.append(t.size) or real(t))
    rng = np.random.default_rng(0)

    def cost(rows: int) -> float:
        values.clear()
        tensor = quantize_reference(rng.standard_normal((rows, 256)).astype(np.float32), by_name("Q8_0"), "x")
        recode.recode(tensor, by_name("Q4_K"), threads=2)
        assert max(values) <= recode.SLAB
        return sum(values) / tensor.size

    assert cost(16 * 64) <= 1.5 * cost(64)
    assert cost(64) == 2  # what it was, and what it became
