"""Runs that keep what they have made in a folder beside their result, each way that there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.calibrate import collect_statistics
from octavo.calibrate.gguf.gguf_method import GgufMethod
from octavo.calibrate.schemes.scheme_method import SchemeMethod
from octavo.quantizers import quantize_checkpoint, quantize_file
from tests.runtime import tiny

OPTIONS: dict[str, Any] = {"context": 32, "device": "reference", "threads": 1}
WAYS = ("calibrate", "scheme", "gguf")

Start = Callable[..., object]


@pytest.fixture(params=WAYS)
def start(request: pytest.FixtureRequest, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Begins a run over a model that keeps what it has in tmp_path / "out.work"."""
    tiny.widen(monkeypatch)
    out = tmp_path / "out"

    def calibrated(src: str, resume: bool = False, progress: Any = None) -> object:
        told = None if progress is None else lambda done, total: progress("calibration", done, total)
        return collect_statistics(src, text, out, context=32, device="reference", resume=resume, progress=told)

    def of_scheme(src: str, resume: bool = False, progress: Any = None) -> object:
        method = SchemeMethod(text, resume=resume, progress=progress, **OPTIONS)
        return quantize_checkpoint(src, out, "w4a16-g128", method=method, threads=1)

    def of_gguf(src: str, resume: bool = False, progress: Any = None) -> object:
        method = GgufMethod(text, resume=resume, progress=progress, work=f"{out}.work", **OPTIONS)
        return quantize_file(src, out, "Q4_K_S", method=method, threads=1)

    return {"calibrate": calibrated, "scheme": of_scheme, "gguf": of_gguf}[request.param]


def command(way: str, src: str, text: str, out: str, *more: str) -> tuple[str, ...]:
    """The same at the command line."""
    method = ("--method", "gptq", "--calibration", text, "-c", "32", "--device", "reference", *more)
    return {
        "calibrate": ("calibrate", src, text, "-o", out, "-c", "32", "--device", "reference", *more),
        "scheme": ("quantize", src, out, "--scheme", "w4a16-g128", *method),
        "gguf": ("quantize", src, out, "Q4_K_S", *method),
    }[way]
