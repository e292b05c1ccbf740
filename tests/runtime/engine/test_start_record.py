"""What a start found out saves the next one time, and nothing that is wrong with it costs more than that."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from octavo.graph.protocol import RememberingBackend
from octavo.models import ModelSpec
from octavo.runtime import Engine
from octavo.runtime.engine.captured_sizes import StepSize
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.start_record import record_of
from tests.runtime.engine.test_core import PROMPTS, request, run
from tests.runtime.engine.test_warm_up import SIZES, Compiled, go_on


class Remembering(Compiled):
    """A backend with a folder."""

    folder: Path | None = None
    card = "a card"

    def remembers(self) -> tuple[Path | None, str]:
        return self.folder, self.card


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Remembering, "folder", tmp_path)
    return tmp_path


def started(architecture: ModelSpec) -> EngineCore:
    assert isinstance(Remembering(), RememberingBackend)
    return EngineCore(Engine(architecture, [Remembering()], SIZES))


def warmed_up(architecture: ModelSpec) -> tuple[EngineCore, int]:
    """An engine that is ready, and the steps that took."""
    core = started(architecture)
    core.warm_up()
    return core, core.engine.load().n_launched


def file_of(folder: Path) -> Path:
    (path,) = folder.glob("steps-*.json")
    return path


def test_times_are_found_out_once(architecture: ModelSpec, folder: Path) -> None:
    first, steps = warmed_up(architecture)
    again, fewer = warmed_up(architecture)
    sizes = {size for group in first.engine.sizes() for size in group}
    timed = sum(size.tokens > 0 for size in sizes)
    assert (steps, fewer) == (2 * len(sizes) + 2 * (len(sizes) - timed) + timed, steps - timed)
    assert again.scheduler.budget.measured._seconds == first.scheduler.budget.measured._seconds
    assert json.loads(file_of(folder).read_text("utf-8"))["version"] == 1


def test_sizes_that_steps_had_come_first(architecture: ModelSpec, folder: Path) -> None:
    core, _ = warmed_up(architecture)
    run(core, *(request(prompt, 40) for prompt in PROMPTS[:3]))
    core.remember()
    other = started(architecture)
    other.begin_warm_up()
    assert other.warming is not None
    assert StepSize(3, 0) in [*other.warming._unbound][:3]
    assert other.warming._record.steps[StepSize(3, 0)] > 0
    go_on(other)
    assert other.warming is None
    kept = record_of(other.engine)
    assert 0 < kept.steps[StepSize(3, 0)] <= other.record.steps[StepSize(3, 0)]  # type: ignore[union-attr]


DAMAGED = (
    "", "{", "[]", "null", '{"version": 2, "sizes": []}', '{"version": 1}', '{"version": 1, "sizes": [[1, 2, 3]]}',
    '{"version": 1, "sizes": [[-1, 0, null, 1]]}', '{"version": 1, "sizes": [[1, 0, NaN, 1]]}',
    '{"version": 1, "sizes": [[0, 64, -1.0, 1]]}', '{"version": 1, "sizes": [[0, 64, "1", 1]]}',
    '{"version": 1, "sizes": [[0, 64, 1.0, 1e400]]}', "[" * 100_000, "\udc80",
)


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_left_out(
    text: str, architecture: ModelSpec, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = started(architecture).engine
    path = record_of(engine).path
    assert path is not None
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with caplog.at_level(logging.INFO, "octavo"):
        found = record_of(engine)
    assert (found.seconds, found.steps) == ({}, {})
    assert str(path) in caplog.text
    found.seconds[StepSize(0, 64)] = 0.5
    found.save(found.steps)
    assert record_of(engine).seconds == {StepSize(0, 64): 0.5}


def test_another_model_card_or_config_has_its_own(
    architecture: ModelSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = started(architecture).engine
    path = record_of(engine).path
    assert record_of(started(architecture).engine).path == path
    monkeypatch.setattr(Remembering, "card", "another card")
    assert record_of(engine).path != path
    monkeypatch.setattr(Remembering, "card", "a card")
    found = os.stat(architecture.file.path)
    os.utime(architecture.file.path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    assert record_of(engine).path != path
    monkeypatch.setattr(Remembering, "folder", None)
    assert record_of(engine).path is None


def test_a_folder_that_can_not_be_written(
    architecture: ModelSpec, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Remembering, "folder", folder / "absent")
    with caplog.at_level(logging.INFO, "octavo"):
        warmed_up(architecture)
    assert "can't be kept" in caplog.text
