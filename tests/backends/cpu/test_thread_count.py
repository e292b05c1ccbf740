"""Steps of small models run on fewer threads than there are, those of large ones on all."""

from __future__ import annotations

import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.cpu import backend as backend_module
from octavo.backends.cpu.launch.thread_count import threads_for, work_of
from octavo.bench.cases import OpCase, executor
from octavo.formats import by_name


@pytest.mark.parametrize(
    ("what", "work", "waits", "want"),
    [
        ("the demo model on 64 cores", 19_431_424, 97, 13),
        ("1.1 GB", 1_100_000_000, 313, 58),
        ("8B", 5_200_000_000, 401, 64),
        ("nothing to read", 0, 0, 8),
    ],
)
def test_threads_grow_with_the_root_of_the_work_between_waits(what: str, work: int, waits: int, want: int) -> None:
    assert threads_for(work, waits, 64) == want
    assert threads_for(work, waits, 5) == 5, "few threads are all used"


def works(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []

    def noted(*arguments: object) -> int:
        found.append(work_of(*arguments))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(backend_module, "work_of", noted)
    built = case.build()
    executor(built, [CpuBackend(threads=2)]).run(*built.steps[0])
    return [work for work in found if work]


def test_work_is_the_weights_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    each = 48 * by_name("Q8_0").row_bytes(512)
    assert works(OpCase("mul_mat", 1, {"n": 48, "k": 512}, ("Q8_0",)), monkeypatch) == [each * 9 // 8]
    assert works(OpCase("mul_mat", 8, {"n": 48, "k": 512}, ("Q8_0",)), monkeypatch) == [each * 2]
    experts = {"experts": 8, "used": 2, "n": 48, "k": 512, "shared": 1}
    assert works(OpCase("mul_mat_id", 1, experts, ("Q8_0",)), monkeypatch) == [each * 2 * 9 // 8], "two of them"
    assert works(OpCase("mul_mat_id", 16, experts, ("Q8_0",)), monkeypatch) == [each * 8 * 3], "all of them"


def test_a_small_step_runs_on_few_of_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with the same result."""
    threads: list[int] = []

    def noted(work: int, waits: int, most: int) -> int:
        threads.append(threads_for(work, waits, most))
        return threads[-1]

    monkeypatch.setattr(backend_module, "threads_for", noted)
    built = OpCase("mul_mat", 9, {"n": 50, "k": 1024}, ("Q4_K",)).build()
    small = executor(built, [CpuBackend(threads=64)]).run(*built.steps[0])[0]
    few = executor(built, [CpuBackend(threads=2)]).run(*built.steps[0])[0]
    assert threads == [8, 2]
    assert (small == few).all()
