"""Launches that share a compiled kernel: only such as Triton compiles one for. See `test_compiled` for their launch."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import native_specialize_impl

from octavo.backends.gpu.launch import call
from octavo.backends.gpu.launch.arguments import matrix
from octavo.backends.gpu.launch.call import _kind, set_carveouts

X = torch.zeros(8, 16)
LARGE = torch.empty(1 << 31, dtype=torch.int8, device="meta")
ARGUMENTS = (
    *(0, 1, 2, 16, 17, -1, -16, True, False, None, 0.5, 1.0),
    *(2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**33, 2**63 - 1, 2**63),
    *(X, X[0], X[0, 1:], X.to(torch.int8), X.to(torch.float8_e4m3fn), X.view(torch.int32), LARGE),
    *((), (1,), (2,), (None,), (X, 1), (X, 2), (X[0, 1:], 2), matrix(X), (matrix(X), 2), (matrix(X), 1)),
)


@pytest.mark.parametrize("target", [GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)])
def test_arguments_of_one_kind_are_compiled_for_alike(target: GPUTarget) -> None:
    backend = make_backend(target)
    of_one_kind = [(a, b) for a, b in combinations(ARGUMENTS, 2) if _kind(a) == _kind(b)]
    assert len(of_one_kind) > 5
    for a, b in of_one_kind:
        first, second = (native_specialize_impl(backend, x, False, True, True) for x in (a, b))
        assert first == second, (a, b)


class Loaded:
    """A launch of a loaded kernel, or of one of which nothing is known."""

    def __init__(self, function: int, shared: int | None) -> None:
        self.shared_memory = None if shared is None else (function, shared)


@pytest.mark.parametrize(
    ("shared", "percent"), [((0, 20480, 256), -1), ((0, 48 << 10), 75), ((0, 200 << 10), -1), ((0, None, 64 << 10), 75)]
)
def test_kernels_of_a_step_ask_for_one_division_of_the_l1(
    monkeypatch: pytest.MonkeyPatch, shared: tuple[int | None, ...], percent: int
) -> None:
    asked = []
    monkeypatch.setattr(call, "prefer_shared_memory", lambda kernels, percent: asked.append((list(kernels), percent)))
    set_carveouts([Loaded(i, n) for i, n in enumerate(shared)])  # type: ignore[misc]
    assert asked == [([i for i, n in enumerate(shared) if n is not None], percent)]
    set_carveouts([])
    assert len(asked) == 1
