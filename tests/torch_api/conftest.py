"""torch.compile counts how often a function was compiled anew, over all tests, unless it is told to forget."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _forget() -> None:
    torch._dynamo.reset()
