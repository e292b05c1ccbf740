"""Products by matrix tiles (AMX) on a CPU that has none: with tiles in memory, and what the machine code is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.jit import host_cpu
from tests.backends.cpu.levels import ROOT, environment, run_tests

needs_vnni = pytest.mark.skipif(host_cpu.level() != "avx512vnni", reason="the level below tiles is AVX-512 VNNI")
EMULATED = "tests.jit.tile_emulation"
pytestmark = pytest.mark.slow


@needs_vnni
def test_products_are_those_of_the_level_below(tmp_path: Path) -> None:
    assert "passed" in run_tests(None, tmp_path, "cpu/tiled_products.py", plugin=EMULATED)


@needs_vnni
def test_row_weights(tmp_path: Path) -> None:
    assert "passed" in run_tests(None, tmp_path, "cpu/test_row_products.py", plugin=EMULATED)


@needs_vnni
def test_ops(tmp_path: Path) -> None:
    """Products of experts too, and what a token's numbers are beside others."""
    wanted = "(mul_mat and Q4_K and (31 or 33 or 129)) or (same_numbers and product)"
    tests = "cpu/test_op_cases.py", "cpu/test_same_numbers.py"
    assert "passed" in run_tests(None, tmp_path, *tests, only=wanted, plugin=EMULATED, slow_too=True)


PROGRAM = """
import json
from octavo.backends.cpu.weights.pack import forecast_layout
from octavo.backends.cpu.matmul.amx_kernel import block_product_kernel, float_product_kernel
from octavo.backends.cpu.matmul.w8a8.amx_kernel import amx_gemm_kernel
from octavo.formats import by_name
kernels = {"int8": amx_gemm_kernel(0), "BF16": float_product_kernel("bf16")}
kernels |= {name: block_product_kernel(forecast_layout(by_name(name))[0]) for name in ("Q4_K", "Q6_K")}
print(json.dumps({name: kernel.compiled._library.get_asm_str() for name, kernel in kernels.items()}))
"""


@needs_vnni
def test_machine_code(tmp_path: Path) -> None:
    """Compiled for a CPU with AMX, and not run: no tile is kept in memory but those that kernels store."""
    features = ",".join(f"+{name}" for name in sorted(host_cpu.FEATURES["amx"]))
    env = environment(None, tmp_path, NUMBA_CPU_NAME="sapphirerapids", NUMBA_CPU_FEATURES=features)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, text in json.loads(done.stdout).items():
        used = "tileloadd", "tilestored", "tdpbsud", "tdpbf16ps"
        count = {i: len(re.findall(rf"\t{i}\b", text)) for i in used}
        dots = count["tdpbsud"] + count["tdpbf16ps"]
        assert (count["tdpbf16ps"] == 0) == (name == "int8")
        assert "ldtilecfg" in text
        assert "tilerelease" in text
        assert dots >= 9  # of 2 x 2, 2 x 1, 1 x 2 and 1 x 1 tiles, each of which is loaded once
        assert count["tilestored"] == 9
        assert count["tileloadd"] < 2 * dots
