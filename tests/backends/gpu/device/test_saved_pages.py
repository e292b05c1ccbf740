"""Pages and states that are saved to the host's memory, and filled from there, have the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.graph.node import PAGE_SIZE


def raw(values: list[Any]) -> list[bytes]:
    return [value.cpu().contiguous().view(torch.uint8).numpy().tobytes() for value in values]


@pytest.mark.parametrize("dtype", ["f16", "f32", "q8_0", "int8", "fp8", "int4"])
@pytest.mark.parametrize("static", [False, True])
def test_a_page_is_what_another_one_was(dtype: Any, static: bool) -> None:
    static = static and dtype in ("int8", "fp8")
    backend, rng = GpuBackend(), np.random.default_rng(0)
    cache = backend.cache((4 * PAGE_SIZE, 2, 64), dtype, np.ones(2, np.float32) if static else None)
    for page in range(3):
        for part in backend.page_parts(cache, page):
            into = part.view(torch.uint8)
            into.copy_(torch.from_numpy(rng.integers(0, 100, part.nbytes, np.uint8)).view(into.shape))
    expected = raw(backend.page_parts(cache, 1))
    assert len(expected) == 1 + (not static and dtype not in ("f16", "f32"))
    saved = backend.save(backend.page_parts(cache, 1))
    assert saved.nbytes == sum(map(len, expected))
    backend.copy_page(cache, 1, 0)  # the page is another one's by now
    assert raw(backend.page_parts(cache, 1)) != expected
    backend.restore(backend.page_parts(cache, 3), saved)
    assert raw(backend.page_parts(cache, 3)) == expected
    assert saved.data().tobytes() == b"".join(expected)
    backend.restore(backend.page_parts(cache, 2), saved.data().copy())
    assert raw(backend.page_parts(cache, 2)) == expected


def test_a_state() -> None:
    backend = GpuBackend()
    states = backend.states((3, 2, 5))
    states.copy_(torch.arange(30, dtype=torch.float32).reshape(3, 2, 5))
    saved = backend.save([states[1], states[2]])
    states.zero_()
    backend.restore([states[0], states[1]], saved)
    assert states.cpu().flatten().tolist() == [*map(float, range(10, 30)), *[0.0] * 10]
