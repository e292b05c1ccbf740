"""NaN that lay in pages of a KV cache before reaches nobody, on the CPU and in the reference."""

from __future__ import annotations

import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.bench.cases import OpCase
from tests.backends.no_numbers import DECODING, LATENT, PROMPTS, SHAPE, held_to_clean_pages
from tests.sampling import slow

BACKENDS = {"cpu": CpuBackend(threads=2), "reference": ReferenceBackend()}
STEPS = {"decoding": DECODING, "prompts": PROMPTS}
CACHES = ["f16", "int8", *(slow(cache) for cache in ("f32", "q8_0", "fp8", "int4"))]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("shape", [SHAPE, slow(LATENT)], ids=["values", "keys alone"])
def test_what_lay_in_pages_before(shape: dict[str, int], cache: str, step: str) -> None:
    tokens, past = STEPS[step]
    held_to_clean_pages(OpCase("attention", tokens, {**shape, "cache": cache}, past=past), BACKENDS["cpu"])


@pytest.mark.parametrize("step", STEPS)
def test_what_lay_in_pages_before_is_nothing_to_the_reference(step: str) -> None:
    tokens, past = STEPS[step]
    held_to_clean_pages(OpCase("attention", tokens, {**SHAPE, "cache": "f16"}, past=past), BACKENDS["reference"])
