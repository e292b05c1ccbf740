"""Compiles the products of 8-bit numbers for GPUs that are not here; as `ahead_of_time`, a row of JSON a kernel.

python -m tests.backends.gpu.ahead_of_time_gemm SCHEME:TOKENS:TARGET ...
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import triton
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from octavo.backends.gpu import dispatch
from octavo.backends.gpu.gemm import FP8_GROUPS, KEPT, fp8_units
from octavo.backends.gpu.gemm_shapes import Scheme, shape_of
from octavo.backends.gpu.kernels import gemm_mixed_hopper
from octavo.backends.gpu.kernels.gemm_fp8 import fp8_gemm_kernel
from octavo.backends.gpu.kernels.gemm_fp8_hopper import fp8_hopper_kernel
from octavo.backends.gpu.kernels.gemm_int8 import int8_gemm_kernel, row_sums_kernel
from octavo.backends.gpu.kernels.gemm_int8_hopper import int8_hopper_kernel, w4a8_hopper_kernel
from octavo.backends.gpu.kernels.gemm_w4a8 import w4a8_gemm_kernel
from octavo.backends.gpu.kernels.quantize8 import quantize8_kernel
from octavo.backends.gpu.layout import layout_of
from octavo.formats import by_name
from tests.backends.gpu.ahead_of_time import FUSION, TARGETS, _spills, source_of

N, K = 8192, 8192
KERNELS = {"int8": int8_gemm_kernel, "w4a8": w4a8_gemm_kernel, "fp8": fp8_gemm_kernel}
END = {"BIAS": True, "ACTIVATION": "gelu", "RESIDUAL": True, "A_STEP": 1, "B_STEP": 1}
TYPES = {
    "packed": "*i8", "scale_a": "*fp32", "scale_b": "*fp32", "zero_a": "*i32", "sums": "*i32", "group_scale": "*fp16",
    "bias": "*fp16", "residual": "*fp16", "y": "*bf16", "shares": "*i32", "finished": "*i32", "b": "*i8", "x": "*fp16",
    "codes": "*i8", "scales": "*fp32", "zeros": "*i32", "top": "fp32",
}  # fmt: skip
OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "row_sums": (row_sums_kernel, {"B": 1024}),
    **{f"quantize_{kind}": (quantize8_kernel, {"KIND": kind, "GIVEN": False, "B": 1024})
       for kind in ("int8", "zero", "e4m3", "e5m2")},
}  # fmt: skip


def compiled(name: str, tokens: int, target: str) -> dict[str, Any]:
    """Compile a kernel in the shape that is chosen for so many tokens; see `ahead_of_time.compiled`."""
    if name.startswith("mixed_"):
        return _mixed(name, tokens)
    if name in OTHERS:
        kernel, fixed = OTHERS[name]
        return _row(name, target, kernel, fixed, TYPES, 4, 3)
    scheme: Scheme = name  # type: ignore[assignment]
    kernel = KERNELS[name.split("_", maxsplit=1)[0]]
    if target == "sm_90" and (not name.startswith("fp8") or tokens > 64):
        return _for_hopper(scheme, tokens)
    s = shape_of(scheme, tokens, N, K, target, 132)
    tma, types = target in ("sm_90", "sm_100"), dict(TYPES)
    fixed = {
        **END, "BM": s.block_m, "BN": s.block_n, "BK": s.block_k, "GROUP": s.group_m, "SPLITS": s.split_k,
        "STAGES": s.stages, "TMA": tma, "EVEN": True, "WIDE": False, "PERSISTENT": s.persistent, "ZERO": True,
        "ZERO_STEP": 1, "ASM": TARGETS[target][1], "GROUPED": name == "w4a8_g128", "KIND": "e4m3",
        "KEPT": KEPT if name == "fp8" and target == "sm_90" else 0,
        "BLOCKS": name == "fp8_blocks", "UNITS": fp8_units(target, "e4m3"),
    }  # fmt: skip
    if name.startswith("fp8"):
        types["shares"] = "*fp32"
    if name == "fp8_blocks":
        fixed |= {"A_STEP": None, "B_STEP": None}
    element = "fp8e4nv" if name.startswith("fp8") and fixed["UNITS"] == "fp8" else "i8"
    depth = 64 if name.startswith("w4a8") else s.block_k
    for factor, rows in (("a", s.block_m), ("b", s.block_n), ("packed", s.block_n)):
        types[factor] = f"tensordesc<{element}[{rows}, {depth}]>" if tma else f"*{element}"
    return _row(
        name, target, kernel, {k: v for k, v in fixed.items() if k in kernel.arg_names}, types, s.warps, s.stages
    )


def _for_hopper(scheme: Scheme, tokens: int) -> dict[str, Any]:
    """Compile the kernel of Gluon that a product takes on compute capability 9.0."""
    s = shape_of(scheme, tokens, N, K, "sm_90", 132, hopper=True)
    float8 = scheme.startswith("fp8")
    kernel = fp8_hopper_kernel if float8 else w4a8_hopper_kernel if scheme.startswith("w4a8") else int8_hopper_kernel
    fixed = {
        **END, "GROUP": s.group_m, "SPLITS": s.split_k, "STAGES": s.stages, "ZERO": True, "ZERO_STEP": 1,
        "GROUPED": scheme == "w4a8_g128", "num_warps": s.warps, "FAST": scheme == "fp8_fast",
        "BLOCKS": scheme == "fp8_blocks",
    }  # fmt: skip
    if scheme == "fp8_blocks":
        fixed |= {"A_STEP": None, "B_STEP": None}
    blocks = {"a": [s.block_m, 128 if scheme.startswith("w4a8") else s.block_k], "b": [s.block_n, s.block_k]}
    blocks["packed"] = [s.block_n, s.block_k // 2]
    types = TYPES | ({"shares": "*fp32"} if float8 else {})
    for factor, block in blocks.items():
        layout = gl.NVMMASharedLayout.get_default_for(block, gl.int8)
        types[factor] = f"tensordesc<{'fp8e4nv' if float8 else 'i8'}{block},{layout!r}>"
    fixed = {k: v for k, v in fixed.items() if k in kernel.arg_names}
    warps = s.warps // FP8_GROUPS if float8 else s.warps
    return _row(scheme, "sm_90", kernel, fixed, types, warps, s.stages, GluonASTSource)


def _mixed(name: str, tokens: int) -> dict[str, Any]:
    """Compile the product of floats with the codes of a format that has a kernel of Gluon."""
    layout = layout_of(by_name(name.removeprefix("mixed_")), "f16")
    s = dispatch.mixed_gemm(layout, N, K, tokens, "sm_90")
    assert s is not None
    blocks = {"x": ([s.tokens, 64], "fp16", gl.float16), "codes2": ([s.rows, 32], "i8", gl.int8)}
    blocks["codes"] = ([s.rows, 16 * layout.planes[0]], "i8", gl.int8)
    types = {"y": "*fp32", "shares": "*fp32", "finished": "*i32", "scale": "*i32", "minimum": "*i32",
             "term0": "*fp32", "term1": "*fp32"}  # fmt: skip
    for factor, (block, kind, dtype) in blocks.items():
        types[factor] = f"tensordesc<{kind}{block},{gl.NVMMASharedLayout.get_default_for(block, dtype)!r}>"
    fixed = {
        "BITS": layout.bits, "G": layout.group, "SIGNED": layout.signed, "HAS_MIN": layout.has_min, "TERMS": 2,
        "GROUP": 8, "SPLITS": s.splits, "STAGES": s.stages, "num_warps": s.warps,
    }  # fmt: skip
    return _row(name, "sm_90", gemm_mixed_hopper.mixed_hopper_kernel, fixed, types, s.warps, s.stages, GluonASTSource)


def _row(
    name: str, target: str, kernel: Any, fixed: dict[str, Any], types: dict[str, str], warps: int, stages: int,
    source: Any = ASTSource,
) -> dict[str, Any]:  # fmt: skip
    even = {"n", "k", "stride", *(arg for arg in kernel.arg_names if arg.endswith("_stride"))}
    made = triton.compile(
        source_of(kernel, fixed, types, source, even),
        target=TARGETS[target][0],
        options={"num_warps": warps, "num_stages": stages, **FUSION},
    )
    text = made.asm.get("ptx") or made.asm["amdgcn"]
    found = re.findall(r"w?g?mma[.\w:]*(?:s8|i8|e4m3|f16|f8f6f4)\b|v_mfma_\w+|v_wmma_\w+|cp\.async\.bulk\.tensor", text)
    carried = len(re.findall(r"scf\.for %item .*iter_args", made.asm["ttgir"]))
    return {"kernel": name, "target": target, "instructions": sorted(set(found)), "spills": _spills(made, text),
            "carried": carried}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps([compiled(n, int(m), t) for n, m, t in (wanted.split(":") for wanted in sys.argv[1:])]))
