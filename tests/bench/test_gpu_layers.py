"""What the benchmark of a step's kernels takes for a layer."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

LAYER = ["quantize", "matvec", "attention", "matvec", "quantize", "matvec"]


@pytest.fixture
def layers(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("gpu_layers")


@pytest.mark.parametrize("before", [[], ["rows"], ["rows", "quantize", "quantize"]])
@pytest.mark.parametrize("layer", [LAYER, ["quantize", "matvec"]])
def test_the_kernels_of_a_layer(layers: ModuleType, before: list[str], layer: list[str]) -> None:
    first, count = layers.layer_of([*before, *layer * 5, "quantize", "matvec_of_all", "choose"], 5)
    assert count == len(layer)
    assert first == len(before)


def test_kernels_that_are_no_layers(layers: ModuleType) -> None:
    with pytest.raises(ValueError, match="7 kernels do not make 3 equal layers"):
        layers.layer_of(["a", "b", "c", "d", "e", "f", "g"], 3)
