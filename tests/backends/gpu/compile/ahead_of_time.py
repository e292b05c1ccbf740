"""Compiles kernels for GPUs that are not here; run as a program, it prints what it found as JSON, a row a kernel.

    python -m tests.backends.gpu.compile.ahead_of_time KERNEL:LAYOUT:TARGET ...

It is a program because Triton's kernels are either compiled or interpreted by a process, never both.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import Any

import triton

from octavo.backends.gpu.attention import attention_tiles
from octavo.backends.gpu.attention.attention_arguments import AttentionShape
from octavo.backends.gpu.launch.arguments import PackedWeight, SplitK
from octavo.backends.gpu.matmul import dispatch, lora
from octavo.backends.gpu.recurrent import scan_tiles
from octavo.backends.gpu.recurrent.scan_arguments import ScanShape
from octavo.backends.gpu.weights.layout import row_layout
from tests.backends.gpu.compile.ahead_of_time_attention import ATTENTION
from tests.backends.gpu.compile.ahead_of_time_case import TARGETS, Case, spills
from tests.backends.gpu.compile.ahead_of_time_others import OTHERS
from tests.backends.gpu.compile.ahead_of_time_products import BYTES_X, PRODUCTS
from tests.backends.gpu.compile.ahead_of_time_types import NAMES, ROWS, Kernels, layout_named

KP = 1024
KERNELS: Kernels = {**PRODUCTS, **ATTENTION, **OTHERS}
"""Those that take a layout are in LAYOUTS."""
PAIRS = {"experts_few": 512, "experts": 4096, "experts_wide": 16384}
"""Pairs of a token and one of 128 experts, which the shape is chosen for."""
LENGTHS = {
    "matvec_id_wide": 2048,
    "matvec_persistent_wide": 4096,
    "matvec_persistent_deep": 6144,
    "matvec_persistent_deepest": 14336,
    "matvec_persistent_planes": 14336,
    "matvec_persistent_norm": 14336,
    "matvec_persistent_swiglu": 4096,
}
"""Values of a row, where not KP."""


def case_of(name: str, layout: str, target: str) -> Case:
    """A kernel of KERNELS for weights of `layout`, "" for those that take none."""
    kernel, fixed, warps, types = KERNELS[name]
    gpu, asm = TARGETS[target]
    of_layout = _of_layout(layout, name == "mmq_dot", LENGTHS.get(name, KP)) if layout else {}
    fixed, types = dict(fixed), {**NAMES, **of_layout, **types}
    if name == "matvec_pair":
        types["other"] = _of_layout("Q6_K", False, KP)["w"]
    if name in PAIRS:
        fixed["shape"] = dispatch.portable_experts(None, 768, 2048, PAIRS[name] / 128, target)
        warps = fixed["shape"].warps
    if name == "mmq_dot" and gpu.backend == "hip":  # its tensor cores take 16 columns at least
        fixed |= {"STRIDE": 16, "shape": replace(fixed["shape"], block_m=16)}
        kind = layout_named(layout)
        if target == "gfx1100" and (kind.group == 16 or kind.bits == 5):
            fixed["shape"] = replace(fixed["shape"], block_n=16, stages=1)
    stages = 2
    if name.startswith(("decode", "prefill", "latent")):
        fixed["shape"], warps, stages = _attention(fixed["shape"], name, target)
    if name in ("solve_delta", "gated_delta_chunks"):
        fixed["shape"], warps, stages = _delta(fixed["shape"], name, target)
    if name.startswith(("score_scan", "selective_scan_chunks")):
        fixed["shape"], warps, stages = _scan(fixed["shape"], name, target)
    if name.startswith("lora"):
        fixed["PRECISION"] = attention_tiles.exact_products(target)
    if name.startswith("lora_down"):
        fixed["BLOCK_K"] = lora.block_k(target)
    if name == "selective_scan":
        fixed["shape"] = replace(fixed["shape"], block_v=scan_tiles.columns(fixed["shape"].keys, target))
    fixed |= {
        key: value for key, value in (("ASM", asm), ("PDL", target in ("sm_90", "sm_100"))) if key in kernel.arg_names
    }
    if "AHEAD" in kernel.arg_names:
        fixed.setdefault("AHEAD", int(fixed["PDL"]))
    return Case(kernel, target, fixed, types, warps, stages)


def _attention(shape: AttentionShape, name: str, target: str) -> tuple[AttentionShape, int, int]:
    """The shape, the warps and the stages that attention is launched with."""
    exact, decodes = "f32" in name, name.startswith("decode")
    if name.startswith("latent"):
        rows = 4096 if name.endswith(("_many", "_own")) else shape.group
        tile = attention_tiles.latent(rows, target, exact, shape.kind)
    elif decodes:
        tile = attention_tiles.decode(shape.block_d, shape.group, target, exact, shape.kind)
    else:
        tile = attention_tiles.prefill(shape.block_d, target, exact, shape.kind)
    ahead = tile.ahead or (decodes and target in ("sm_90", "sm_100"))
    shape = replace(
        shape, block_m=tile.block_m, block_n=tile.block_n, ahead=ahead, precision=tile.precision, part=tile.part
    )
    return shape, tile.warps, tile.stages


def _delta(shape: ScanShape, name: str, target: str) -> tuple[ScanShape, int, int]:
    """The shape, the warps and the stages that prompts go through the gated delta rule with."""
    tile = scan_tiles.delta_tile(512, shape.keys, target)
    assert tile is not None
    warps, stages = (tile.scoring_warps, 1) if name == "solve_delta" else (tile.warps, tile.stages)
    return replace(shape, block_v=tile.block_v, chunk=tile.chunk, part=tile.part), warps, stages


def _scan(shape: ScanShape, name: str, target: str) -> tuple[ScanShape, int, int]:
    """The shape, the warps and the stages that prompts go through the selective scan with."""
    tile = scan_tiles.scan_tile(512, shape.keys, target)
    assert tile is not None
    warps, stages = (tile.scoring_warps, 1) if name == "score_scan" else (tile.warps, tile.stages)
    return replace(shape, block_v=tile.block_v, chunk=tile.chunk, part=tile.part), warps, stages


def compiled(name: str, layout: str, target: str) -> dict[str, Any]:
    """Compile a kernel; a row of its name, its instructions of interest and its spills."""
    case = case_of(name, layout, target)
    made = triton.compile(case.source(), target=TARGETS[target][0], options=case.options)
    text = made.asm.get("ptx") or made.asm["amdgcn"]
    found = re.findall(r"dp4a|mma\.sync|wgmma\.mma_async|tcgen05\.mma|v_dot4_i32_i\w+|v_mfma_\w+|v_wmma_\w+", text)
    return {"kernel": name, "layout": layout, "target": target, "instructions": sorted(set(found)),
            "spills": spills(made, text)}


def _of_layout(name: str, as_bytes: bool, kp: int) -> dict[str, Any]:
    """Types of a kernel's weights of this format, and of what it multiplies them with."""
    kind = layout_named(name)
    bits, codes = kind.planes, "*i8" if as_bytes else "*i32"
    alone = kind.two_level and not kind.has_min
    scale = "*fp16" if alone else {"exponent": "*i16", "f16": "*i32", "f32": "*fp32"}[kind.scale]
    planes = {f"codes{b}": codes if b in bits else None for b in (8, 4, 2, 1)}
    weight = PackedWeight(
        **planes, scale=scale, minimum=scale if kind.has_min and not kind.two_level and not kind.has_zero else None,
        small="*i16" if kind.two_level else None, rest="*i8" if kind.min_bits == 6 else None,
        table=("i32",) * 4 if kind.table else None, layout=row_layout(kind, kp),
        factors="*fp32" if name == "NVFP4" else None,
    )
    return {"w": weight, "x": BYTES_X, "y": ROWS, "splits": SplitK("*fp32", "*i32")}


if __name__ == "__main__":
    print(json.dumps([compiled(*wanted.split(":")) for wanted in sys.argv[1:]]))
