"""Rows in as large parts as memory has room for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gptq", "qronos"])
def test_what_a_run_takes_is_told_before(tmp_path: Path, method: str) -> None:
    """Of the process' largest memory, which has Python and mapped files, within a third."""
    command = ["quantize", "demo", str(tmp_path / "out.gguf"), "Q4_K_M", "--method", method, "--calibration", "demo"]
    run = [sys.executable, "-m", "octavo", *command, "--device", "cpu"]
    with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        said = child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    told = re.search(r"16,384 tokens are run: about ([\d.]+) MB of memory", said)
    assert told, said
    assert 1024 * used.ru_maxrss == pytest.approx(1e6 * float(told[1]), rel=1 / 3)
