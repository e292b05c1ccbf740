"""Products of 8 bits on CPUs with less than this one has, in processes that compile for those."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.backends.cpu.levels import run_tests


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86-64 CPU")
@pytest.mark.slow
@pytest.mark.parametrize("level", ["avx2", "x86-64"])
def test_products_on_lower_levels(level: str, tmp_path: Path) -> None:
    tests = "../ops/test_products.py", "../ops/test_quantize.py"
    assert "passed" in run_tests(level, tmp_path, *tests, leaving_out="refuse or torch or gpu or weight_only or names")
