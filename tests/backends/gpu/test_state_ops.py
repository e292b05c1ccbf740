"""Ops with states on GPUs: steps may divide sequences in any way, and have sequences without tokens."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from tests.backends.state_ops import GRAPHS, divided, whole


@pytest.mark.parametrize("op", GRAPHS)
def test_steps_divide_sequences_in_any_way(op: str) -> None:
    for found, want in zip(divided(op, GpuBackend()), whole(op, ReferenceBackend()), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)
