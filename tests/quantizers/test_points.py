"""Encoders of formats with a grid or three levels against llama.cpp's errors, and what a preset of theirs asks for."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.formats import by_name
from octavo.quantizers.encoding.encoder_threads import is_searched_in_points
from octavo.quantizers.mix.presets import PRESETS, WEIGHTED
from tests.quantizers.test_encode import samples, squared_error
from tests.sampling import slow

# Sums of squared errors times importance that ggml_quantize_chunk of llama-cpp-python 0.3.36 leaves on the same values.
GGML = {
    "IQ1_S": 3119.69,
    "IQ1_M": 2269.26,
    "IQ2_XXS": 1729.48,
    "IQ2_XS": 1147.94,
    "IQ2_S": 1014.56,
    "IQ3_XXS": 391.36,
    "IQ3_S": 272.44,
    "TQ1_0": 7267.83,
    "TQ2_0": 7267.83,
}


@pytest.mark.parametrize("name", ["IQ2_XXS", "TQ2_0", *map(slow, sorted(set(GGML) - {"IQ2_XXS", "TQ2_0"}))])
def test_errors_are_below_those_of_llama_cpp(name: str) -> None:
    importance = np.random.default_rng(1).chisquare(2, 512).astype(np.float32)
    assert squared_error(name, samples("heavy", 4, 512), importance, importance) < GGML[name]


def test_which_formats_are_searched_in_points() -> None:
    assert set(GGML) == {f for f in GGML if is_searched_in_points(by_name(f))}
    assert not any(is_searched_in_points(by_name(f)) for f in ("Q2_K", "Q4_0", "IQ4_NL", "MXFP4"))


def test_presets_of_weighted_types_are_known() -> None:
    assert {p.base for p in PRESETS} >= WEIGHTED
