"""Rows in as large parts as memory has room for."""

from __future__ import annotations

import pytest

from octavo.calibrate.row_batches import made_in_parts, memory_told
from octavo.errors import HostMemoryError


def test_parts_that_do_not_fit_are_halved() -> None:
    tried = list[slice]()

    def make(rows: slice) -> list[int]:
        tried.append(rows)
        if rows.stop - rows.start > 3:
            raise MemoryError("too many")
        return list(range(rows.start, rows.stop))

    found = made_in_parts([slice(0, 10), slice(10, 12)], make)
    assert [row for part in found for row in part] == list(range(12))
    assert tried[:3] == [slice(0, 10), slice(0, 5), slice(0, 2)]


def test_a_row_that_does_not_fit() -> None:
    def make(rows: slice) -> None:
        raise MemoryError("8 GiB")

    with pytest.raises(HostMemoryError, match="of the system does not hold what a row of weights takes: 8 GiB"):
        made_in_parts([slice(0, 2)], make)


def test_other_errors_are_raised() -> None:
    def make(rows: slice) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        made_in_parts([slice(0, 2)], make)


def test_a_run_that_memory_does_not_hold() -> None:
    with pytest.raises(HostMemoryError, match="what the method takes: 8 GiB"), memory_told("the method"):
        raise MemoryError("8 GiB")
    with pytest.raises(RuntimeError, match="broken"), memory_told("the method"):
        raise RuntimeError("broken")
