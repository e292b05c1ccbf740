"""What is written down of the machine, and how busy it was."""

from __future__ import annotations

import os
import platform
import sys
import time

import pytest

import octavo
from octavo.bench import machine, others
from octavo.bench.others import LoadWatch


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


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="counts ticks as Linux does")
def test_others_are_those_that_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores work for 12 of 2 * 10 seconds, of which 5 are a process's own: what /proc would say of that."""
    tick = os.sysconf("SC_CLK_TCK")
    now, core, own = 100.0, [8, 1, 2, 30, 4, 0, 1, 2], [3, 1]
    monkeypatch.setattr(others, "_words", lambda path: ["cpu", *(str(tick * n) for n in core)])
    monkeypatch.setattr(others, "_after_name", lambda pid: ["x"] * 11 + [str(tick * n) for n in own])
    monkeypatch.setattr(others.time, "perf_counter", lambda: now)
    monkeypatch.setattr(others.os, "cpu_count", lambda: 2)
    watch, blind = LoadWatch([1]), LoadWatch([])
    now, core, own = 110.0, [15, 2, 4, 35, 7, 0, 1, 4], [7, 2]
    assert watch.others() == pytest.approx((12 - 5) / 20)
    assert blind.others() == pytest.approx(12 / 20), "our own work counts where it is not watched"


def test_what_this_system_says() -> None:
    watch, blind = LoadWatch([os.getpid()]), LoadWatch([])
    before, end = watch._now(), time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = watch._now()
    if not sys.platform.startswith("linux"):
        assert (before, after, watch.others()) == (None, None, None)
        return
    assert before is not None
    assert after is not None
    assert after[2] - before[2] >= 0.2
    assert all(0 <= (share or 0) <= 1 for share in (watch.others(), blind.others()))


def test_a_process_that_has_ended_is_no_measure() -> None:
    assert LoadWatch([2**22 + 1]).others() is None
