"""Methods of checkpoints that were killed: where they go on, and that they end with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.errors import UsageError
from octavo.quantizers.job.quantization_record import FILE
from tests.calibrate.test_schemes import quantize
from tests.sampling import slow


class Killed(BaseException):
    """As a signal ends a process, where no handler sees it."""


@pytest.mark.few(1)
@pytest.mark.parametrize(("at", "files"), [(5, True), (5, False), slow((20, True)), slow((20, False))])
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(
    at: int, files: bool, source: str, text: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if files:
        request.getfixturevalue("in_files")
    told = []

    def killed(what: str, done: int, total: int) -> None:
        told.append(done)
        if len(told) == at:
            raise Killed

    whole, again = tmp_path / "whole", tmp_path / "again"
    options: dict[str, Any] = {"kv": "fp8", "samples": 4}
    quantize(source, whole, "w8a16", text, "smoothquant", **options)
    with pytest.raises(Killed):
        quantize(source, again, "w8a16", text, "smoothquant", progress=killed, **options)
    assert not again.exists()
    with pytest.raises(UsageError, match="is of a run with another option: give the same"):
        quantize(source, again, "w8a16", text, "rtn", resume=True, **options)
    runs = []
    report = quantize(
        source, again, "w8a16", text, "smoothquant", resume=True, progress=lambda *told: runs.append(told), **options
    )
    assert runs[0][1] == 1  # stages that were done are run again with what was made
    assert len(report.scaled) > 0
    assert sum(row.how is not None for row in report.rows) == 14
    for name in ("model.safetensors", "config.json", FILE):
        assert (again / name).read_bytes() == (whole / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "src.gguf", "text.txt", "whole"]


def test_a_search_that_is_done_is_not_begun_again(
    source: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no stage was run after it."""

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("octavo.calibrate.schemes.scheme_method.SchemeRun.weights", stopped)
        with pytest.raises(KeyboardInterrupt):
            quantize(source, tmp_path / "made", "w8a16", text, "smoothquant")
    searched = "octavo.calibrate.schemes.scheme_method.scale_model"
    monkeypatch.setattr(searched, lambda *_, **__: pytest.fail("is searched for again"))
    assert quantize(source, tmp_path / "made", "w8a16", text, "smoothquant", resume=True).scaled
