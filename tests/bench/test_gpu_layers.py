"""What the benchmark of a step's kernels takes for a layer."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

from tests.bench.conftest import ROOT

LAYER = ["quantize", "matvec", "attention", "matvec", "quantize", "matvec"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return import_module("gpu_layers")


@pytest.mark.parametrize("before", [[], ["rows"], ["rows", "quantize", "quantize"]])
@pytest.mark.parametrize("layer", [LAYER, ["quantize", "matvec"]])
def test_the_kernels_of_a_layer(script: ModuleType, before: list[str], layer: list[str]) -> None:
    first, count = script.layer_of([*before, *layer * 5, "quantize", "matvec_of_all", "choose"], 5)
    assert count == len(layer)
    assert first == len(before)


def test_kernels_that_are_no_layers(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="7 kernels are no 3 equal layers"):
        script.layer_of(["a", "b", "c", "d", "e", "f", "g"], 3)
