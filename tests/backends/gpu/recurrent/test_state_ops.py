"""Ops with states on GPUs: steps may divide sequences in any way, and have sequences without tokens."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.recurrent import scan_tiles
from octavo.backends.reference import ReferenceBackend
from octavo.formats.spec import F32
from tests.backends.state_ops import WITH_KERNELS, Steps, divided, whole
from tests.sampling import slow, some

MOST = 1e-7
"""Mean squared error, of the mean square of what was expected: the tolerance of an op case."""


def error(found: F32, want: F32) -> float:
    return float(((found - want) ** 2).mean() / (want**2).mean())


@pytest.mark.few(2)
@pytest.mark.parametrize("op", WITH_KERNELS)
@pytest.mark.parametrize("deterministic", [False, slow(True)])
def test_steps_divide_sequences_in_any_way(op: str, deterministic: bool) -> None:
    for found, want in zip(divided(op, GpuBackend(deterministic)), whole(op, ReferenceBackend()), strict=True):
        assert error(found, want) < MOST
        if deterministic or op == "causal_conv":
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("op", some(WITH_KERNELS, 2))
def test_deterministic_is_token_by_token(op: str) -> None:
    """To the bit, however a sequence is divided."""
    for found, want in zip(divided(op, GpuBackend(True)), whole(op, GpuBackend(True)), strict=True):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("chunk", [16, slow(32), slow(64)])
@pytest.mark.parametrize("alike", [False, True])
def test_chunks(alike: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are all one, which powers of a system do not survive; decays to nothing beside those to nearly all."""
    tile = scan_tiles.ChunkTile(chunk, 16, 4, 1, 16, 4)
    monkeypatch.setattr(scan_tiles, "delta_tile", lambda *_: tile)
    results = []
    for backend in (GpuBackend(), ReferenceBackend()):
        steps = Steps("gated_delta_rule", backend)
        keys = steps.values["k"]
        keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
        if alike:
            keys[:] = keys[:, :1]
        steps.values["beta"][:] = 9
        steps.values["alpha"][:] = -9
        steps.values["alpha"][:, ::7] = 300
        results.append([rows for parts in (((0, 17), (1, 21)), ((0, 23),)) for rows in steps.step(*parts)])
    for found, want in zip(*results, strict=True):
        assert error(found, want) < MOST


@pytest.mark.parametrize("chunk", [16, slow(32), slow(64)])
def test_chunks_of_the_selective_scan(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decays to nothing beside those to nearly all."""
    monkeypatch.setattr(scan_tiles, "scan_tile", lambda *_: scan_tiles.ChunkTile(chunk, 16, 4, 1, 16, 4))
    results = []
    for backend in (GpuBackend(), ReferenceBackend()):
        steps = Steps("selective_scan", backend)
        steps.values["dt"][:] = -9
        steps.values["dt"][:, ::7] = 300
        results.append([rows for parts in (((0, 17), (1, 21)), ((0, 23),)) for rows in steps.step(*parts)])
    for found, want in zip(*results, strict=True):
        assert error(found, want) < MOST
