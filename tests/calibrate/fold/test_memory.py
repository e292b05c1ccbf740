"""What a tensor takes while it is turned or scaled: a few arrays of its size, however large it is."""

from __future__ import annotations

import importlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from octavo.calibrate.fold import rotate
from octavo.calibrate.fold.fold import FoldPart, scaled
from octavo.formats import dequantize
from octavo.io.gguf import GGUFFile
from tests.runtime import tiny

module = importlib.import_module("octavo.calibrate.fold.rotation")
BESIDE = 1 << 20
"""Bytes of small arrays."""


def peak(make: Callable[[], object]) -> int:
    """Bytes that are there at most while something is made."""
    tracemalloc.start()
    try:
        make()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_tensor_is_turned_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tiny.tensors("qwen3")
    with GGUFFile.open(tiny.write(tmp_path / "src.gguf", weights=weights)) as file:
        turned = rotate(file)
        whole = {name: dequantize(turned.tensor(name)) for name in turned.tensors}
        monkeypatch.setattr(module, "VALUES", 1)
        for name, want in whole.items():
            np.testing.assert_allclose(dequantize(turned.tensor(name)), want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("end", ["rows", "columns"])
def test_a_large_tensor_takes_a_few_times_its_size(end: Literal["rows", "columns"]) -> None:
    values = np.ones((1024, 2048), np.float32)
    part = FoldPart("w", end, np.arange(values.shape[0 if end == "rows" else 1]), 1)
    rotation = module.RandomRotation.random(len(part.index), np.random.default_rng(0))
    turned = module._turning(part, [np.arange(len(part.index))], rotation)
    assert peak(lambda: turned(values)) < values.nbytes + 48 * module.VALUES + BESIDE
    assert peak(lambda: scaled(part, np.full(len(part.index), 2.0), values)) < values.nbytes + BESIDE
