"""Tensors are converted beside each other, a few at a time, and what fails does so where it is taken."""

from __future__ import annotations

from threading import Barrier, Event

import numpy as np
import pytest

from octavo.errors import ModelError
from octavo.formats import DeferredQTensor, QTensor, by_name
from octavo.formats.qtensor import TimesQTensor
from octavo.graph import read_ahead
from octavo.graph.read_ahead import ReadAhead
from tests.limits import HANG_S

F32 = by_name("F32")


def deferred(i: int, load: object = None) -> DeferredQTensor:
    def made() -> QTensor:
        if callable(load):
            load()
        return QTensor(F32, (1, 1), np.float32([[i]]).view(np.uint8))

    return DeferredQTensor(F32, (1, 1), made, str(i))


def number(tensor: QTensor) -> float:
    return float(tensor.data.view(np.float32)[0, 0])


def test_several_are_read_at_once_and_taken_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead.os, "cpu_count", lambda: 4)
    together = Barrier(4)
    tensors = [deferred(i, lambda: together.wait(HANG_S)) for i in range(12)]
    with ReadAhead(tensors) as ahead:
        found = [ahead.take(tensor) for tensor in tensors]
    assert [number(tensor) for tensor in found] == list(range(12))
    assert all(type(tensor) is QTensor for tensor in found)


def test_few_wait_to_be_taken() -> None:
    begun, last = list[int](), Event()
    tensors = [deferred(i, lambda i=i: (begun.append(i), len(begun) == read_ahead.WINDOW and last.set()))
               for i in range(3 * read_ahead.WINDOW)]
    with ReadAhead(tensors) as ahead:
        assert last.wait(HANG_S)
        assert len(begun) == read_ahead.WINDOW
        assert number(ahead.take(tensors[5])) == 5  # those before are not wanted
        assert number(ahead.take(tensors[2])) == 2  # or are, after all
    assert len(begun) < len(tensors)


def test_what_fails_is_raised_where_it_is_taken() -> None:
    def fail() -> None:
        raise ModelError("cut", file="a file")

    tensors = [deferred(0), deferred(1, fail), deferred(2)]
    with ReadAhead(tensors) as ahead:
        assert number(ahead.take(tensors[0])) == 0
        with pytest.raises(ModelError, match="cut"):
            ahead.take(tensors[1])
        assert number(ahead.take(tensors[2])) == 2


def test_factors_of_rows_stay() -> None:
    tensor = TimesQTensor(deferred(3), np.float32([2]))
    with ReadAhead([tensor]) as ahead:
        assert ahead.take(tensor) is tensor
