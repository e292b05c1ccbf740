"""NaN in a KV cache reaches nobody who does not see it, on the CPU and in the reference."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
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


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("value", [np.nan, slow(np.inf)])
@pytest.mark.parametrize("token", [10, slow(0), slow(19)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_later_token_of_a_prompt(backend: str, token: int, value: float, name: str) -> None:
    """A weight of 0 times NaN is NaN: earlier tokens of the same step would become NaN, too."""
    tokens, past = PROMPTS
    case = OpCase("attention", tokens, {**SHAPE, "cache": "f16"}, past=past)
    held_to_what_is_seen(case, BACKENDS[backend], name, token, value)


OTHERS = ({"cache": "int8"}, *(slow({"cache": cache}) for cache in ("f32", "q8_0", "fp8", "int4")),
          slow({"cache": "f16", "sinks": 1}), slow({"cache": "f16", "window": 70}))  # fmt: skip


@pytest.mark.parametrize("shape", OTHERS, ids=lambda shape: "-".join(map(str, shape.values())))
def test_a_later_token_in_other_caches(shape: dict[str, int]) -> None:
    held_to_what_is_seen(OpCase("attention", 20, {**SHAPE, **shape}, past=(600,)), BACKENDS["cpu"], "v", 13, np.nan)


@pytest.mark.parametrize("cache", CACHES)
def test_a_later_token_where_keys_are_values_too(cache: str) -> None:
    case = OpCase("attention", 20, {**LATENT, "cache": cache}, past=(50,))
    held_to_what_is_seen(case, BACKENDS["cpu"], "k", 13, np.nan)
