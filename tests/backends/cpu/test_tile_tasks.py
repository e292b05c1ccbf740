"""How products by matrix tiles are divided."""

from __future__ import annotations

import pytest

from octavo.backends.cpu.matmul.tile_sweep import PANELS, panels_of_task
from octavo.backends.cpu.matmul.w8a8.amx_kernel import panels_of
from octavo.jit import host_cpu


@pytest.mark.parametrize(("rows", "threads", "panels", "of_a_thread"), [
    (2048, 1, 8, 128), (2048, 2, 8, 64), (2048, 14, 5, 10), (2048, 16, 8, 8), (6144, 14, 7, 28), (6144, 16, 8, 24),
    (1024, 16, 4, 4), (37, 4, 1, 1), (151936, 16, 8, 600), (16, 64, 1, 1),
])
def test_threads_have_as_much_to_do(rows: int, threads: int, panels: int, of_a_thread: int) -> None:
    found = panels_of_task(rows, threads)
    tasks = -(-rows // (16 * found))
    assert found == panels <= PANELS
    assert -(-tasks // threads) * found == of_a_thread < rows / 16 / threads + PANELS


@pytest.mark.parametrize(("why", "panels"), [("", 8), ("switched off", 1)])
def test_int8_without_tiles_has_a_task_for_each_panel(why: str, panels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_cpu, "why_no_tiles", lambda: why)
    assert panels_of(2048, 16) == panels
