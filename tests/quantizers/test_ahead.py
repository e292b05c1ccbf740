"""Items worked out ahead: the same, in order, no more than asked for; errors come where their item would."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from octavo.quantizers.job.ahead import Ahead, Inline, worker


@pytest.fixture(params=[1, None])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    made = worker(request.param)
    assert isinstance(made, Inline if request.param else ThreadPoolExecutor)
    yield made
    made.shutdown(cancel_futures=True)


def counted(seen: list[int], stop: int, fail: int = -1) -> Iterator[int]:
    for i in range(stop):
        seen.append(i)
        if i == fail:
            raise ValueError(i)
        yield i


def test_all_items_in_order(executor: Executor) -> None:
    assert list(Ahead(counted([], 50), executor)) == list(range(50))
    assert list(Ahead(counted([], 0), executor)) == []


def test_no_more_than_asked_for(executor: Executor) -> None:
    seen: list[int] = []
    items = Ahead(counted(seen, 50), executor, depth=3)
    for i in range(10):
        assert next(items) == i
        executor.submit(int).result()  # what was submitted before is done
        assert len(seen) == i + 4


def test_an_error_comes_in_its_place(executor: Executor) -> None:
    items = Ahead(counted([], 50, fail=4), executor)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="4"):
        next(items)
