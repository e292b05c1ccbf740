"""Every kernel compiles for GPUs that are not here, to their dot or matrix instructions, with all in registers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from octavo.backends import gpu
from tests.backends.gpu.compile.ahead_of_time import KERNELS
from tests.sampling import slow

ROOT = Path(__file__).resolve().parents[4]
INSTRUCTIONS = {
    "dot": {"sm_": "dp4a", "gfx942": "v_dot4_i32_i8", "gfx1100": "v_dot4_i32_iu8"},
    "int8": {"sm_": "mma.sync", "gfx942": "v_mfma_i32", "gfx1100": "v_wmma_i32"},
    "float": {"sm_": "mma.sync", "gfx942": "v_mfma_f32", "gfx1100": "v_wmma_f32"},
    "wide": {
        "sm_80": "mma.sync",
        "sm_90": "wgmma",
        "sm_100": "tcgen05",
        "gfx942": "v_mfma_f32",
        "gfx1100": "v_wmma_f32",
    },
}
NEEDS = {"matvec": "dot", "matvec_pair": "dot",
         "matvec_persistent": "dot", "matvec_persistent_wide": "dot", "matvec_persistent_deep": "dot",
         "matvec_persistent_deepest": "dot", "matvec_persistent_norm": "dot", "matvec_persistent_swiglu": "dot",
         "matvec_persistent_planes": "dot",
         "matvec_id": "dot", "matvec_id_wide": "dot",
         **{f"row_matvec_{kind}{end}": "dot" for kind in ("int8", "int4", "int4_groups") for end in ("", "_few")},
         **{f"w4a8_mma{groups}{tokens}": "int8" for groups in ("_", "_groups_") for tokens in (8, 16)},
         "mmq_dot": "int8", "mmq_mma": "int8", "mmq_mma_32": "int8",
         "experts_mma": "int8", "experts_mma_16": "int8",
         "decode": "float", "decode_q8": "float", "prefill": "wide",
         **{f"{step}_{kind}{static}": needs for step, needs in (("decode", "float"), ("prefill", "wide"))
            for kind in ("int8", "fp8") for static in ("", "_static")}, "decode_int4": "float", "prefill_int4": "wide",
         "decode_window": "float", "prefill_window": "wide", "prefill_alibi": "wide", "prefill_int8_own": "wide",
         "decode_alibi": "float", "latent_int8_own": "wide",
         **{f"latent{kind}{many}": "wide" for kind in ("", "_int8", "_fp8", "_int4") for many in ("", "_many")},
         "solve_delta": "wide", "gated_delta_chunks": "wide", "score_scan": "wide",
         "selective_scan_chunks": "wide", "selective_scan_chunks_256": "wide",
         "experts_few": "wide", "experts": "wide", "experts_wide": "wide",
         "float_experts": "wide"}
SPILL = {("prefill", "gfx1100"), ("prefill_int8", "gfx1100"), ("prefill_fp8", "gfx1100"),
         ("prefill_window", "gfx1100"), ("decode_q8", "gfx1100"), ("decode_int4", "gfx1100"),
         ("decode_512", "gfx1100"), ("prefill_512", "gfx1100"),
         ("selective_scan_chunks_256", "sm_90"), ("selective_scan_chunks_256", "sm_100"),
         *(("prefill_int4", target) for target in ("sm_80", "sm_100", "gfx1100")),
         *(("decode_f32_256", target) for target in ("sm_80", "sm_90", "sm_100", "gfx1100")),
         *(("prefill_f32_256", target) for target in ("sm_90", "sm_100", "gfx1100")),
         *((f"latent_{kind}", "sm_90") for kind in ("int8_many", "fp8_many", "int4_many", "int8_own"))}
"""What does not fit the registers of targets yet; see docs/gpu.md."""
NEWER = tuple(map(int, version("triton").split(".")[:2])) >= (3, 9)
LITTLE = {
    ("token_fp8_static", "sm_80"): 12, ("latent_int4", "sm_80"): 16, ("experts_wide", "sm_80"): 44,
    ("mmq_dot", "sm_90"): 16,
    ("experts_mma", "sm_80"): 28, ("experts_mma", "sm_90"): 48, ("experts_mma", "sm_100"): 28,
    ("experts_mma_16", "sm_80"): 8, ("experts_mma_16", "sm_90"): 48, ("experts_mma_16", "sm_100"): 24,
    ("mmq_mma_32", "sm_100"): 32, ("unpack_int8_dynamic", "sm_100"): 8,
    ("mmq_dot", "gfx1100"): 24, ("experts", "gfx1100"): 25, ("experts_wide", "gfx1100"): 25,
    ("matvec_id_wide", "gfx1100"): 17, ("decode_window", "gfx1100"): 13,
}
LITTLE |= {("decode", "gfx1100"): 3, ("decode_f32", "gfx1100"): 3} if NEWER else {}
"""Bytes (of AMD's, registers) that are spilled; the latter by Triton 3.9, and not by those before it."""
SPILL |= {("prefill_f32", "sm_90"), ("prefill_int4", "sm_90")} if NEWER else set()
SPILL |= {(f"latent_{kind}", "sm_100") for kind in (
    "int8", "fp8", "int4", "int8_many", "fp8_many", "int8_own")} if NEWER else set()

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx1100")
OF_NVIDIA = ("mmq_mma", "mmq_mma_32", "experts_mma", "experts_mma_16")
LAYOUTS = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "MXFP4", "NVFP4", "TQ1_0",
           "TQ2_0", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
OF_LAYOUT = ("matvec", "matvec_id", "mmq_dot", "experts_few", "experts", "experts_wide", "weight_only", "dequantize",
             "get_rows")
OF_FLOAT8 = ("weight_only", "float8_matvec", "float8_matvec_4", "float8_matvec_id", "experts_few", "experts",
             "experts_wide", "dequantize", "get_rows")
"""What takes weights that are e4m3 numbers."""
STREAMED = [
    f"matvec_persistent{size}:{name}"
    for size in ("", "_wide", "_deep", "_deepest") for name in ("Q4_K", "Q6_K", "Q8_0")
]
STREAMED += ["matvec_persistent_wide:Q4_0", "matvec_persistent_norm:Q8_0", "matvec_persistent_swiglu:Q8_0"]
STREAMED += [
    f"matvec_persistent{size}:{name}" for size in ("_wide", "_deep")
    for name in ("IQ4_XS", "IQ4_NL", "IQ3_S", "Q5_K", "NVFP4")
]
STREAMED += [f"matvec_persistent{size}:{name}" for size in ("_wide", "_planes") for name in ("Q3_K", "Q5_0")]
STREAMED += ["matvec_persistent_planes:Q5_K"]
PAIRS = ["matvec_pair:Q4_K", "matvec_pair:Q8_0", "matvec_id_wide:Q4_K", "matvec_id_wide:Q5_K"]
CHUNKS = ("solve_delta", "gated_delta_chunks", "score_scan", "selective_scan_chunks", "selective_scan_chunks_256",
          "row_matvec_fp8_few")
"""What gfx1100 has too few registers for."""
OF_SOME = {name.split(":")[0] for name in (*STREAMED, *PAIRS)}
OF_SOME |= {"f16_scales", "folded_scales", "float8_matvec", "float8_matvec_4", "float8_matvec_id"}
BY_LANES = tuple(name for name in KERNELS if name.startswith("w4a8_mma_"))
"""What NVIDIA's GPUs have, whatever weights are."""
OTHERS = tuple(name for name in KERNELS if name not in {*OF_LAYOUT, *OF_NVIDIA, *OF_SOME, *CHUNKS, *BY_LANES})
"""What takes no layout."""


def others(target: str) -> tuple[str, ...]:
    """Kernels that take no layout and that a target has."""
    if target == "gfx1100":
        return OTHERS
    return (*OTHERS, *CHUNKS, *BY_LANES) if target.startswith("sm_") else (*OTHERS, *CHUNKS)


def rows_of(program: str, wanted: list[str]) -> list[dict[str, Any]]:
    """What a program beside this file says, in a process that does not interpret kernels."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", "-m", f"tests.backends.gpu.compile.{program}", *wanted]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(rows) == len(wanted)
    return rows


def check(row: dict[str, Any]) -> None:
    name, target = row["kernel"], row["target"]
    if name in NEEDS:
        choices = INSTRUCTIONS[NEEDS[name]]
        wanted = choices.get(target) or choices[target[:3]]
        assert any(i.startswith(wanted) for i in row["instructions"]), row
    if (name, target) not in SPILL:
        assert row["spills"] <= LITTLE.get((name, target), 0), row


QUICK = {
    "dot": ["matvec:Q4_K:sm_80"],
    "dots": ["matvec_pair:Q4_K:sm_90", "matvec:Q4_K:gfx942", "matvec:Q4_K:gfx1100", "mmq_dot:Q8_0:sm_100"],
    "streams": ["matvec_persistent:Q6_K:gfx942", "matvec_persistent_wide:Q4_K:sm_90"],
    "mmq_mma": ["mmq_mma:Q4_0:sm_80"],
    "attention": ["prefill::gfx942", "decode::sm_90", "decode::gfx1100"],
    "others": [f"{name}::sm_90" for name in others("sm_90") if name not in ("prefill", "decode")],
    "layouts": [
        f"{kernel}:sm_90"
        for kernel in (
            "mmq_dot:MXFP4",
            "matvec:Q5_K",
            "matvec:IQ2_XS",
            "mmq_dot:TQ2_0-exponent",
            "mmq_mma:TQ2_0-exponent",
        )
    ],
    "weight only": [f"weight_only:{layout}:sm_90" for layout in ("MXFP4",)],
}


@pytest.mark.parametrize("group", [group if group == "dot" else slow(group) for group in QUICK])
def test_some_kernels(group: str) -> None:
    for row in rows_of("ahead_of_time", QUICK[group]):
        check(row)


def test_each_kernel_has_a_row() -> None:
    """Here or among products of 8-bit numbers; all rows of KERNELS are compiled."""
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("ahead_of_time*.py"))
    kernels = [name for path in Path(gpu.__path__[0]).rglob("*.py")
               for name in re.findall(r"^@\w+\.jit.*\ndef (\w+_kernel)\(", path.read_text(), re.MULTILINE)]
    assert len(kernels) > 70
    assert [name for name in kernels if not re.search(rf"\b{name}\b", text)] == []
    assert set(KERNELS) == {*OTHERS, *CHUNKS, *BY_LANES, *OF_LAYOUT, *OF_NVIDIA, *OF_SOME}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel(target: str) -> None:
    nvidia = OF_NVIDIA if target.startswith("sm_") else ()
    wanted = [
        f"{name}:{layout}:{target}"
        for layout in LAYOUTS
        for name in (*OF_LAYOUT, *nvidia)
    ]
    wanted += [f"{name}:{target}" for name in (*STREAMED, *PAIRS)]
    wanted += [f"{name}:TQ2_0-exponent:{target}" for name in (*OF_LAYOUT, *nvidia)]
    wanted += [f"f16_scales:{name}:{target}" for name in ("Q4_K", "Q6_K", "Q8_0", "GROUP4_128_Z_F16")]
    wanted += [f"folded_scales:{name}:{target}" for name in ("MXFP4", "NVFP4", "FP8_128-f32")]
    wanted += [f"{name}:{layout}:{target}" for name in OF_FLOAT8 for layout in ("FP8_128-f32", "FP8_32-exponent")]
    wanted += [f"{name}:GROUP4_128_Z_F16:{target}" for name in (*OF_LAYOUT, *nvidia[1:])]  # whose mmq_mma has one tile
    for row in rows_of("ahead_of_time", [*wanted, *(f"{name}::{target}" for name in others(target))]):
        check(row)
