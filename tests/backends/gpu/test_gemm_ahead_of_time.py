"""Products of 8-bit numbers compile for GPUs that are not here, to matrix instructions of 8 bits, all in registers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx1100")
INT8 = {
    "sm_80": ".s8.s8",
    "sm_90": "wgmma.mma_async.",
    "sm_100": r"\.s8\.s8|kind::i8$",  # Triton 3.9 has the units of Blackwell multiply integers
    "gfx942": "v_mfma_i32_",
    "gfx1100": "v_wmma_i32_",
}
FP8 = {
    "sm_80": ".f16.f16",
    "sm_90": "wgmma.mma_async.",
    "sm_100": "kind::f8f6f4",
    "gfx942": "v_mfma_f32_",
    "gfx1100": "v_wmma_f32_",
}
TYPE_OF_90 = {"int8": ".s32.s8.s8", "fp8": ".f32.e4m3.e4m3"}
SCHEMES = ("int8", "w4a8", "w4a8_g128", "fp8", "fp8_fast", "fp8_blocks")
OTHERS = ("row_sums", "quantize_int8", "quantize_zero", "quantize_e4m3", "quantize_e5m2")


def check(wanted: list[str]) -> None:
    """Compile in a process that does not interpret kernels; each row has its instruction, and no spills."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", "-m", "tests.backends.gpu.ahead_of_time_gemm", *wanted]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(rows) == len(wanted)
    for row in rows:
        assert row["spills"] == 0, row
        if row["kernel"] in OTHERS:
            continue
        if row["kernel"].startswith("mixed_"):
            assert any(i.startswith("wgmma.mma_async.") and i.endswith(".f16.f16") for i in row["instructions"]), row
            continue
        target, float8 = row["target"], row["kernel"].startswith("fp8")
        found = [i for i in row["instructions"] if re.search((FP8 if float8 else INT8)[target], i)]
        assert found, row
        assert row["carried"] in (0, 3), "each of three roles counts stages on from tile to tile"
        if target == "sm_90":
            assert all(i.endswith(TYPE_OF_90["fp8" if float8 else "int8"]) for i in found), row
            assert "cp.async.bulk.tensor" in row["instructions"], row
        if target == "gfx942":
            assert all(i.endswith("_fp8_fp8" if float8 else "_i8") for i in found), row


@pytest.mark.slow
def test_for_an_h100() -> None:
    check([f"{name}:sm_90" for name in ("int8:1", "w4a8_g128:1", "w4a8:2048", "fp8:2048", "fp8_blocks:2048")])


@pytest.mark.slow
def test_floats_by_codes_for_an_h100() -> None:
    check([f"mixed_{name}:sm_90" for name in ("Q4_K:64", "Q6_K:512")])


@pytest.mark.slow
def test_for_others() -> None:
    check(["int8:512:gfx1100", "w4a8_g128:512:sm_80", "fp8:512:sm_100", "fp8:512:gfx942"])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel(target: str) -> None:
    wanted = [f"{scheme}:{m}:{target}" for scheme in SCHEMES for m in (1, 32, 64, 128, 1024, 8192)]
    check([*wanted, *(f"{name}:1:{target}" for name in OTHERS)])
