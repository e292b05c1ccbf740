"""What is written down of the machine, and how busy it was."""

from __future__ import annotations

import os
import platform
import sys
import time

import octavo
from octavo.bench import machine
from octavo.bench.others import Watch


def test_machine_and_versions() -> None:
    found = machine.machine()
    assert found["cpu"]
    assert 1 <= found["cores"] <= (os.cpu_count() or 1)
    assert found["memory"] is None or found["memory"] > 1 << 28
    versions = machine.versions()
    assert versions["octavo"] == octavo.__version__
    assert versions["python"] == platform.python_version()
    assert versions["numpy"]


def test_nothing_names_the_host() -> None:
    assert set(machine.machine()) == {"cpu", "family", "cores", "features", "memory", "os"}
    assert machine.machine()["os"] == f"{platform.system()} {platform.machine()}"


def test_a_commit_is_of_this_checkout_or_none() -> None:
    found = machine.commit()
    assert found is None or len(found.removesuffix("-dirty")) == 12


def test_commands_lose_their_folders() -> None:
    line = machine.shortened(["octavo", "bench", "model", "/home/me/m.gguf", "-o", "bench/results/", "--depth", "0,1"])
    assert line == "octavo bench model m.gguf -o results --depth 0,1"


def test_others_are_those_that_are_not_watched() -> None:
    watch, blind = Watch([os.getpid()]), Watch([])
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        pass
    known, unknown = watch.others(), blind.others()
    if not sys.platform.startswith("linux"):
        assert (known, unknown) == (None, None)
        return
    assert known is not None
    assert unknown is not None
    assert 0 <= known <= unknown <= 1
    assert unknown > known or unknown == 1, "our own work counts where it is not watched"


def test_a_process_that_has_ended_is_no_measure() -> None:
    assert Watch([2**22 + 1]).others() is None
