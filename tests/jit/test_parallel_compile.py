"""Kernels that several processes compile, and `octavo warm`, which has it done ahead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S
from tests.sampling import slow


def octavo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OCTAVO_CACHE": str(folder)}
    command = [sys.executable, "-m", "octavo", "-v", *arguments, "--device", "cpu"]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=True, stdin=subprocess.DEVNULL
    )


def made(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "INFO: compiled " in line]


@pytest.mark.parametrize("threads", [slow("1"), slow("3")])
def test_a_start_with_no_kernels(tmp_path: Path, threads: str) -> None:
    done = octavo(tmp_path, "run", "demo", "What is 12 times 7?", "--temp", "0", "-t", threads, "-n", "5")
    assert done.stdout == "12 times 7\n"
    files = list(tmp_path.rglob("*.kernel"))
    kernels = len(files) - 2  # the driver has two files
    assert len(made(done)) == kernels if threads == "1" else 0 < len(made(done)) < kernels
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".tmp", ".lock")]


@pytest.mark.slow
def test_what_is_compiled_ahead_is_there(tmp_path: Path) -> None:
    assert "kernels are ready" in octavo(tmp_path, "warm", "demo").stdout
    done = octavo(tmp_path, "run", "demo", "What is 12 times 7?", "--temp", "0")
    assert done.stdout == "12 times 7 is 84.\n"
    assert made(done) == []
