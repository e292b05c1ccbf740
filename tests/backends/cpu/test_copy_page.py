"""A page of a cache, copied over another one: all of it, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.graph.node import PAGE_SIZE

HEADS, DIM, PAGES = 2, 32, 4


@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0", "int8", "fp8", "int4"])
def test_on_the_cpu(cache_type: Any) -> None:
    cache = CpuBackend(threads=1).cache((PAGES * PAGE_SIZE, HEADS, DIM), cache_type)
    raw = cache.view(np.uint8).reshape(PAGES, -1)
    raw[...] = np.random.default_rng(1).integers(0, 255, raw.shape)
    want = raw[[0, 1, 2, 1]]
    CpuBackend(threads=1).copy_page(cache, 3, 1)
    np.testing.assert_array_equal(raw, want)


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "int8", "fp8", "int4"])
def test_by_definition(cache_type: Any) -> None:
    backend, places = ReferenceBackend(), np.arange(PAGES * PAGE_SIZE)
    cache = backend.cache((len(places), HEADS, DIM), cache_type)
    cache[places] = np.random.default_rng(1).standard_normal((len(places), HEADS, DIM)).astype(np.float32)
    want = cache[places].reshape(PAGES, PAGE_SIZE, HEADS, DIM)[[0, 1, 2, 1]]
    backend.copy_page(cache, 3, 1)
    np.testing.assert_array_equal(cache[places].reshape(want.shape), want)
