"""Whole models in layouts that other tools publish, on the GPU backend with its kernels interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.backends.gpu import GpuBackend
from tests.huggingface.published import PUBLISHED
from tests.huggingface.test_published import agrees, publish


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.filterwarnings("ignore:overflow encountered")  # in sums for tokens beyond the last, which are not kept
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_logits(tmp_path: Path, name: str) -> None:
    publish(tmp_path, name)
    agrees(tmp_path, GpuBackend())
