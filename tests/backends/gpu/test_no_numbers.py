"""NaN in a KV cache reaches nobody who does not see it, on the GPU.

Kernels for compute capability 9.0, and those where keys are values too, keep to it for what lay in pages before. In
them a later token of the same tile may still make NaN of an earlier one.
"""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.gpu import GpuBackend
from octavo.bench.cases import OpCase
from tests.backends.no_numbers import (
    DECODING,
    LATENT,
    PROMPTS,
    SHAPE,
    held_to_clean_pages,
    held_to_what_is_seen,
)
from tests.sampling import slow

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, with which kernels are interpreted
STEPS = {"decoding": DECODING, "prompts": PROMPTS}
CACHES = ["f16", "int8", *(slow(cache) for cache in ("f32", "q8_0", "fp8", "int4"))]
ODD = {**SHAPE, "dim": 96}
"""Heads that kernels for compute capability 9.0 do not take."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    "shape", [SHAPE, slow(LATENT), slow({**SHAPE, "dim": 128})], ids=lambda shape: str(shape["dim"])
)
def test_what_lay_in_pages_before(shape: dict[str, int], cache: str, step: str) -> None:
    tokens, past = STEPS[step]
    held_to_clean_pages(OpCase("attention", tokens, {**shape, "cache": cache}, past=past), GpuBackend())


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("value", [np.nan, slow(np.inf)])
@pytest.mark.parametrize("token", [10, slow(0), slow(19)])
def test_a_later_token_of_a_prompt(token: int, value: float, name: str) -> None:
    """A weight of 0 times NaN is NaN: earlier tokens of the same tile would become NaN, too."""
    tokens, past = PROMPTS
    held_to_what_is_seen(
        OpCase("attention", tokens, {**ODD, "cache": "f16"}, past=past), GpuBackend(), name, token, value
    )


OTHERS = ({"cache": "int8"}, *(slow({"cache": cache}) for cache in ("f32", "q8_0", "fp8", "int4")),
          slow({"cache": "f16", "sinks": 1}), slow({"cache": "f16", "window": 70}))  # fmt: skip


@pytest.mark.parametrize("shape", OTHERS, ids=lambda shape: "-".join(map(str, shape.values())))
def test_a_later_token_in_other_caches(shape: dict[str, int]) -> None:
    held_to_what_is_seen(OpCase("attention", 20, {**ODD, **shape}, past=(130,)), GpuBackend(), "v", 13, np.nan)


@pytest.mark.parametrize("cache", ["int8", slow("fp8")])
def test_a_later_token_where_each_query_has_scales_of_its_own(cache: str) -> None:
    case = OpCase("attention", 20, {**ODD, "cache": cache}, past=(130,))
    held_to_what_is_seen(case, GpuBackend(deterministic=True), "v", 13, np.nan)
