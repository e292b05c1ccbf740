"""NaN that lay in pages of a KV cache before reaches nobody, on the GPU."""

from __future__ import annotations

import pytest

from octavo.backends.gpu import GpuBackend
from octavo.bench.cases import OpCase
from tests.backends.no_numbers import DECODING, LATENT, PROMPTS, SHAPE, held_to_clean_pages
from tests.sampling import slow

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, with which kernels are interpreted
STEPS = {"decoding": DECODING, "prompts": PROMPTS}
CACHES = ["f16", "int8", *(slow(cache) for cache in ("f32", "q8_0", "fp8", "int4"))]


@pytest.mark.few(3)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    "shape", [SHAPE, slow(LATENT), slow({**SHAPE, "dim": 128})], ids=lambda shape: str(shape["dim"])
)
def test_what_lay_in_pages_before(shape: dict[str, int], cache: str, step: str) -> None:
    tokens, past = STEPS[step]
    held_to_clean_pages(OpCase("attention", tokens, {**shape, "cache": cache}, past=past), GpuBackend())
