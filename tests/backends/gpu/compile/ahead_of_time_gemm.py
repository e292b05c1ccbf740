"""Compiles the products of 8-bit numbers for GPUs that are not here; as `ahead_of_time`, a row of JSON a kernel.

python -m tests.backends.gpu.compile.ahead_of_time_gemm SCHEME:TOKENS:TARGET ...
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import Any

import triton
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from octavo.backends.gpu.attention import (
    cache_codec_kernel,
    decode_mma_launch,
    prefill_8bit_kernel,
    prefill_hopper_kernel,
)
from octavo.backends.gpu.attention.attention_arguments import CountedAttention, PagedCache
from octavo.backends.gpu.attention.decode_mma_kernel import decode_mma_kernel
from octavo.backends.gpu.attention.decode_mma_launch import DecodeShape
from octavo.backends.gpu.attention.prefill_hopper_launch import (
    BLOCK,
    PART,
    Codes,
    Factors,
    Items,
    Prefill8BitShape,
    PrefillShape,
)
from octavo.backends.gpu.compile.gluon import tile_layout
from octavo.backends.gpu.launch.arguments import Biases, Matrix, Q8Activation, Results, SplitK
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.experts.expert_shapes import ExpertsGroupedShape, ExpertsHopperShape
from octavo.backends.gpu.matmul.experts.grouped_kernel import experts_grouped_kernel
from octavo.backends.gpu.matmul.experts.hopper_kernel import experts_hopper_kernel
from octavo.backends.gpu.matmul.product import Product
from octavo.backends.gpu.matmul.w4a16 import hopper_kernel as w4a16_hopper
from octavo.backends.gpu.matmul.w4a16 import streamk_kernel, streamk_multicta_kernel
from octavo.backends.gpu.matmul.w4a16.launch import tile_shapes
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import MultiCtaShape, StreamKShape, W4A16Shape
from octavo.backends.gpu.matmul.w8a8 import w4a8_multicta
from octavo.backends.gpu.matmul.w8a8.fp8_hopper_kernel import fp8_hopper_kernel
from octavo.backends.gpu.matmul.w8a8.fp8_kernel import fp8_gemm_kernel
from octavo.backends.gpu.matmul.w8a8.gemm import FP8_GROUPS, KEPT, fp8_factor, fp8_operands
from octavo.backends.gpu.matmul.w8a8.gemm_arguments import (
    BlockScales,
    Epilogue,
    Fp8Config,
    GemmConfig,
    GroupFactors,
    GroupScales,
    MultiCtaPart,
    ProblemSize,
    Strides,
)
from octavo.backends.gpu.matmul.w8a8.int8_hopper_kernel import int8_hopper_kernel, w4a8_hopper_kernel
from octavo.backends.gpu.matmul.w8a8.int8_kernel import int8_gemm_kernel, int8_groups_kernel, row_sums_kernel
from octavo.backends.gpu.matmul.w8a8.quantize_kernel import quantize8_kernel
from octavo.backends.gpu.matmul.w8a8.row_scales import MOST_OVERLAPPED
from octavo.backends.gpu.matmul.w8a8.shapes import Scheme, shape_of, streamk_shape
from octavo.backends.gpu.matmul.w8a8.streamk_kernel import streamk_hopper_kernel
from octavo.backends.gpu.matmul.w8a8.w4a8_kernel import w4a8_gemm_kernel
from octavo.backends.gpu.matmul.w8a8.w4a8_multicta_kernel import w4a8_multicta_kernel
from octavo.backends.gpu.pointwise.expressions import expression_of
from octavo.backends.gpu.weights.layout import PlaneLayout, layout_of
from octavo.formats.group import row_named
from octavo.graph.pointwise import POINTWISE
from tests.backends.gpu.compile.ahead_of_time_case import TARGETS, Case, said_of, spills
from tests.backends.gpu.compile.ahead_of_time_types import layout_named

N, K = 8192, 8192
HEAD = 128256  # rows of a vocabulary
KERNELS = {"int8": int8_gemm_kernel, "w4a8": w4a8_gemm_kernel, "fp8": fp8_gemm_kernel}
TYPES = {
    "b": "*i8", "sums": "*i32", "x": "*fp16", "codes": "*i8", "scales": "*fp32", "zeros": "*i32", "top": "fp32",
}
EVEN = ("n", "k", "stride", "a", "b")  # of records: sizes, and strides of matrices
OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "row_sums": (row_sums_kernel, {"B": 1024}),
    **{f"quantize_{kind}": (quantize8_kernel, {"KIND": kind, "GIVEN": False, "B": 1024})
       for kind in ("int8", "zero", "e4m3", "e5m2")},
}


def compiled(name: str, tokens: int, target: str) -> dict[str, Any]:
    """Compile a kernel in the shape that is chosen for that many tokens; see `ahead_of_time.compiled`."""
    case = case_of(name, tokens, target)
    made = triton.compile(case.source(), target=TARGETS[target][0], options=case.options)
    text = made.asm.get("ptx") or made.asm["amdgcn"]
    found = re.findall(
        r"w?g?mma[.\w:]*(?:s8|i8|e4m3|e5m2|f16|f8f6f4)\b|v_mfma_\w+|v_wmma_\w+|cp\.async\.bulk\.tensor", text
    )
    carried = len(re.findall(r"scf\.for %item .*iter_args", made.asm["ttgir"]))
    mixed = name.startswith((
        "w4a16_", "head_", "pair_", "experts_", "grouped_", "few_", "attention8_", "streamk_",
    ))
    waits = mixed and "wgmma.mma_async instructions are serialized" in said_of(text)
    return {"kernel": name, "target": target, "instructions": sorted(set(found)), "spills": spills(made, text),
            "carried": carried, "serialized": waits, "shared": made.metadata.shared}


def case_of(name: str, tokens: int, target: str) -> Case:
    """A kernel in the shape that is chosen for that many tokens."""
    if name.startswith(("w4a16_", "head_")):
        return _mixed(name, tokens)
    if name.startswith("streamk_"):
        return _streamk(*name.removeprefix("streamk_").split("-"), tokens)
    if name.startswith("pair_"):
        return _pair(name.removeprefix("pair_"), tokens)
    if name.startswith("experts_"):
        return _experts(name.removeprefix("experts_"), tokens)
    if name.startswith("few_"):
        return _few_tokens(name.removeprefix("few_"), tokens)
    if name.startswith("grouped_"):
        numbers, _, gating = name.removeprefix("grouped_").partition("-by-")
        return _grouped(tokens, *numbers.split("-"), gating=gating)
    if name.startswith("prefill_"):
        return _prefill(*name.removeprefix("prefill_").split("-"))
    if name.startswith(("attention8_", "encode_")):
        step, kind = name.split("_", maxsplit=1)
        return (_attention8 if step == "attention8" else _encode)(*kind.split("-"))
    if name.startswith("decode_"):
        return _decode(name.removeprefix("decode_"), tokens, target)
    if name in OTHERS:
        kernel, fixed = OTHERS[name]
        return _case(target, kernel, fixed, TYPES, 4, 3)
    if name.startswith("int8_groups_"):
        return _groups(int(name.split("_")[2]), name.endswith("_zero"), tokens, target)
    name, _, mixed = name.partition("-")
    scheme: Scheme = name  # type: ignore[assignment]
    kernel = KERNELS[name.split("_", maxsplit=1)[0]]
    if target == "sm_90" and (not name.startswith("fp8") or tokens > 64):
        return _for_hopper(scheme, tokens, mixed)
    s = shape_of(scheme, tokens, N, K, target, 132)
    tma, types, operands = target in ("sm_90", "sm_100"), _types(scheme), fp8_operands(target, "e4m3", mixed or "e4m3")
    config = GemmConfig("gelu", 1, 1, 1, fp8_factor(operands, "e4m3", mixed or "e4m3"), tma=tma)
    fixed = {
        "shape": s, "config": config, "ASM": TARGETS[target][1], "PDL": tma and tokens <= MOST_OVERLAPPED,
        "fp8": Fp8Config("e4m3", mixed or "e4m3", operands, KEPT if name == "fp8" and target == "sm_90" else 0),
    }
    element = "fp8e4nv" if name.startswith("fp8") and operands == "fp8" else "i8"
    depth = 64 if name.startswith("w4a8") else s.block_k
    for factor, rows in (("a", s.block_m), ("b", s.block_n), ("packed", s.block_n)):
        one = "fp8e5" if mixed and factor == "b" and element != "i8" else element
        types[factor] = f"tensordesc<{one}[{rows}, {depth}]>" if tma else f"*{one}"
    return _case(target, kernel, _of(kernel, fixed), types, s.warps, s.stages)


def _groups(group: int, zero: bool, tokens: int, target: str) -> Case:
    """The product of int8 codes with scales, and zero points or none, of groups of K."""
    chosen = shape_of("int8_groups", tokens, N, K, target, 132)
    s = replace(chosen, block_k=min(chosen.block_k, group))
    tma, types = target in ("sm_90", "sm_100"), _types("fp8_blocks")
    types["groups"] = GroupFactors("*fp32", "*fp32", "*i32" if zero else None, "i32", "i32")
    fixed = {"shape": s, "config": GemmConfig("gelu", tma=tma)}
    for factor, rows in (("a", s.block_m), ("b", s.block_n)):
        types[factor] = f"tensordesc<i8[{rows}, {s.block_k}]>" if tma else "*i8"
    return _case(target, int8_groups_kernel, fixed, types, s.warps, s.stages)


def _types(scheme: Scheme) -> dict[str, Any]:
    """Types of what all kernels of a scheme take."""
    float8, scale = scheme.startswith("fp8"), None if scheme == "fp8_blocks" else "*fp32"
    zero = "*i32" if scheme == "int8" else None
    return {
        "strides": Strides("i32", "i32"), "size": ProblemSize("i32", "i32", "i32"),
        "groups": GroupScales("*fp16", "i32", "i32") if scheme == "w4a8_g128" else None,
        "blocks": BlockScales("*fp32", "*fp32", "i32") if scheme == "fp8_blocks" else None,
        "end": Epilogue(Matrix("*bf16", "i32"), scale, scale, zero, zero, "*fp16", Matrix("*fp16", "i32")),
        "split_k": SplitK("*fp32" if float8 else "*i32", "*i32"),
    }


def _of(kernel: Any, fixed: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fixed.items() if name in kernel.arg_names}


def _for_hopper(scheme: Scheme, tokens: int, mixed: str) -> Case:
    """The kernel of Gluon that a product takes on compute capability 9.0."""
    s = shape_of(scheme, tokens, N, K, "sm_90", 132, hopper=True)
    float8 = scheme.startswith("fp8")
    kernel = fp8_hopper_kernel if float8 else w4a8_hopper_kernel if scheme.startswith("w4a8") else int8_hopper_kernel
    fixed = {"shape": s, "config": GemmConfig("gelu", 1, 1, 1), "num_warps": s.warps, "FAST": scheme == "fp8_fast"}
    fixed |= {"PDL": tokens <= MOST_OVERLAPPED}
    blocks = {"a": [s.block_m, 128 if scheme.startswith("w4a8") else s.block_k], "b": [s.block_n, s.block_k]}
    blocks["packed"] = [s.block_n, s.block_k // 2]
    types = _types(scheme)
    for factor, block in blocks.items():
        layout = gl.NVMMASharedLayout.get_default_for(block, gl.int8)
        element = "fp8e5" if mixed and factor == "b" else "fp8e4nv"
        types[factor] = f"tensordesc<{element if float8 else 'i8'}{block},{layout!r}>"
    warps = s.warps // FP8_GROUPS if float8 else s.warps
    return _case("sm_90", kernel, _of(kernel, fixed), types, warps, s.stages, GluonASTSource)


def _few_tokens(scheme: Scheme, tokens: int) -> Case:
    """The product of few tokens with 4-bit weights."""
    types, s = _types(scheme), next(s for s in w4a8_multicta.SHAPES if tokens <= s.block_m)
    blocks = {"a": ("i8", gl.int8, [s.block_m, w4a8_multicta.STEP]),
              "packed": ("i8", gl.int8, [s.block_n, w4a8_multicta.STEP // 2])}
    if types["groups"] is not None:
        blocks["groups"] = ("fp16", gl.float16, [2, s.block_n])
    for name, (kind, dtype, block) in blocks.items():
        types[name] = f"tensordesc<{kind}{block},{tile_layout(block, dtype, name == 'groups')!r}>"
    types["splits"] = SplitK("*i32" if types["groups"] is None else "*fp32", "*i32")
    fixed = {"shape": s, "config": GemmConfig(None, 1, 1, factor=1 / 16), "PDL": True}
    return _case("sm_90", w4a8_multicta_kernel, fixed, types, s.warps, s.stages, GluonASTSource)


def _streamk(kind: str, element: str, rows: str, tokens: int) -> Case:
    """The product of that many tokens with as many rows of weights of the same type."""
    s = streamk_shape(kind, tokens, int(rows))
    assert s is not None
    dtype = {"i8": gl.int8, "fp8e4nv": gl.float8e4nv, "bf16": gl.bfloat16, "fp16": gl.float16}[element]
    scale = "*fp32" if kind in ("int8", "fp8") else None
    types: dict[str, Any] = {
        "size": ProblemSize("i32", "i32", "i32"), "split_k": SplitK("*i32" if kind == "int8" else "*fp32", "*i32"),
        "end": Epilogue(Matrix("*fp32", "i32"), scale, scale, None, None, "*fp32", Matrix("*fp32", "i32")),
        "blocks": BlockScales("*fp32", "*fp32", "i32") if kind == "fp8_blocks" else None,
    }
    for factor, block in (("a", [s.block_m, s.block_k]), ("b", [s.block_n, s.block_k])):
        types[factor] = f"tensordesc<{element}{block},{tile_layout(block, dtype)!r}>"
    fixed = {"shape": s, "config": GemmConfig(None, 1, 1), "num_warps": s.warps, "PDL": True}
    return _case("sm_90", streamk_hopper_kernel, fixed, types, s.warps, s.stages, GluonASTSource)


def _mixed(name: str, tokens: int) -> Case:
    """The product of floats with the codes of a format that has a kernel of Gluon."""
    kind, name = name.split("_", maxsplit=1)
    layout = layout_named(f"{name}-f16")
    s = dispatch.w4a16(layout, HEAD if kind == "head" else N, K, tokens, "sm_90")
    assert s is not None
    row = Matrix("*fp32", "i32")
    types = _tiles(layout, s) | {
        "terms": (row, row), "y": _results(layout), "splits": SplitK("*fp32", "*i32"),
        "size": ProblemSize("i32", "i32", "i32"),
    }
    fixed = {"layout": layout, "shape": s, "PDL": True}
    kernel: Any = w4a16_hopper.w4a16_hopper_kernel
    if isinstance(s, StreamKShape):
        kernel = streamk_kernel.w4a16_streamk_kernel
    elif isinstance(s, MultiCtaShape):
        kernel = streamk_multicta_kernel.w4a16_multicta_kernel
    return _case("sm_90", kernel, fixed, types, s.warps, s.stages, GluonASTSource)


def _pair(names: str, tokens: int) -> Case:
    """Products of x by matrices of two formats in one launch."""
    layouts = [layout_of(row_named(name), "f16") for name in names.split("-")]
    pair = dispatch.w4a16_pair((layouts[0], N, K), (layouts[1], 1024, K), tokens, "sm_90")
    assert pair is not None
    one, other = _tiles(layouts[0], pair.shape), _tiles(layouts[1], pair.other_shape)
    assert one["x"] == other.pop("x")
    part = MultiCtaPart(Results("*fp32", "i32", None), SplitK("*fp32", "*i32"), ProblemSize("i32", "i32", "i32"), "i32")
    types = one | {f"other_{name}": kind for name, kind in other.items()} | {"one": part, "other": part}
    fixed = {"pair": pair, "PDL": True}
    kernel = streamk_multicta_kernel.w4a16_multicta_pair_kernel
    return _case("sm_90", kernel, fixed, types, pair.shape.warps, pair.shape.stages, GluonASTSource)


def _results(layout: PlaneLayout) -> Results:
    return Results("*fp32", "i32", "*fp32" if layout.folds_rows else None)  # type: ignore[arg-type]


FACTORS = (
    ("x", "fp16", gl.float16), ("codes", "i8", gl.int8), ("codes2", "i8", gl.int8), ("scales", "i32", gl.int32)
)


def _tiles(layout: PlaneLayout, shape: W4A16Shape) -> dict[str, Any]:
    """Types of tiles of x and of what is read of weights."""
    types: dict[str, Any] = {}
    for (factor, kind, dtype), size in zip(FACTORS, tile_shapes(layout, shape), strict=True):
        block = list(size)
        types[factor] = f"tensordesc<{kind}{block},{tile_layout(block, dtype)!r}>"
    return types if len(layout.planes) > 1 else types | {"codes2": None}


def _experts(name: str, tokens: int) -> Case:
    """The product of that many tokens with 8 of 128 experts of a format, FORMAT-by-GATING of gate and up."""
    name, _, gating = name.partition("-by-")
    layout = layout_of(row_named(name), "exponent" if name == "MXFP4" else "f16")
    p = Product(layout, 768, 2048, tokens * 8 // 128, "sm_90")
    s: ExpertsHopperShape = dispatch.choose("experts", p, ExpertsHopperShape)
    s = replace(s, gated=bool(gating))
    types = _of_gate(layout, s, gating) | {"order": "*i32", "tiles": "*i32", "y": _results(layout)}
    fixed = {"layout": layout, "shape": s, "KIND": expression_of(gating) if gating else None, "PDL": True}
    return _case("sm_90", experts_hopper_kernel, fixed, types, s.warps, s.stages, GluonASTSource)


def _grouped(pairs: int, name: str, *numbers: str, gating: str = "") -> Case:
    """The product of few pairs of a token and an expert by a kernel whose programs take part after part; of gate and
    up with `gating`."""
    layout = layout_of(row_named(name), "exponent" if name == "MXFP4" else "f16")
    p = Product(layout, 768, 2048, 1, "sm_90")
    s = ExpertsGroupedShape.of(p, pairs, *map(int, numbers))
    assert s is not None
    s = replace(s, gated=bool(gating))
    types = _of_gate(layout, s, gating) | {"order": "*i32", "tiles": "*i32", "y": _results(layout),
                                           "splits": SplitK("*fp32", "*i32")}
    fixed = {"layout": layout, "shape": s, "KIND": expression_of(gating) if gating else None, "PDL": True}
    case = _case("sm_90", experts_grouped_kernel, fixed, types, s.warps, s.stages, GluonASTSource)
    return case._replace(registers=s.registers)


def _of_gate(layout: PlaneLayout, s: ExpertsGroupedShape | ExpertsHopperShape, gating: str) -> dict[str, Any]:
    """Types of tiles and of `gate`; tiles of a `gated` shape have as many rows of gate as of up."""
    types: dict[str, Any] = _tiles(layout, s) | {"gate": None, "biases": None, "numbers": ()}
    if not gating:
        return types
    for (factor, kind, dtype), (rows, columns) in zip(FACTORS[1:], tile_shapes(layout, s)[1:], strict=True):
        block = [rows, 2, s.rows] if factor == "scales" else [2, s.rows, columns]
        if types[factor] is not None:
            types[factor] = f"tensordesc<{kind}{block},{tile_layout(block, dtype)!r}>"
    numbers = POINTWISE[gating].numbers
    biases: Any = Biases("*fp32", "*fp32", "*i32") if numbers else None
    return types | {"gate": Matrix("*fp16", "i32"), "biases": biases, "numbers": ("fp32",) * len(numbers)}


def _prefill(dim: str, kind: str = "", scales: str = "") -> Case:
    """Attention of a prompt with heads of `dim` values, of a float16 cache or what is made of one of codes."""
    part = [PART, PART]
    tile = f"tensordesc<fp16{part},{gl.NVMMASharedLayout.get_default_for(part, gl.float16)!r}>"
    row = Matrix("*fp32", "i32")
    types = {
        "q": row, "out": row, "keys": tile, "values": tile, "pages": "*i32", "positions": "*i32", "starts": "*i32",
        "items": Items("i32", "i32", "i32", "i32"), "scale": "fp32",
    }
    types["factors"] = Factors("*fp32", "*fp32" if scales == "static" else None, "i32") if scales else None
    types |= {"pages": None} if kind else {}
    fixed = {"shape": PrefillShape(int(dim), 4, kind=kind, scales=scales), "PDL": True}
    return _case("sm_90", prefill_hopper_kernel.prefill_hopper_kernel, fixed, types, 4, 3, GluonASTSource)


def _attention8(dim: str, products: str) -> Case:
    """Attention of a prompt by 8-bit products, with heads of `dim` values."""
    s = Prefill8BitShape(int(dim), 4, products=products)
    kinds = {"keys": ([BLOCK, s.dim], products), "values": ([s.dim, BLOCK], "fp8")}
    names = {"int8": ("i8", gl.int8), "fp8": ("fp8e4nv", gl.float8e4nv)}
    types: dict[str, Any] = {
        name: f"tensordesc<{names[kind][0]}{block},{tile_layout(block, names[kind][1])!r}>"
        for name, (block, kind) in kinds.items()
    }
    row = Matrix("*fp32", "i32")
    types |= {"q": row, "out": row, "factors": "*fp32", "positions": "*i32", "starts": "*i32", "scale": "fp32",
              "items": Items("i32", "i32", "i32", "i32")}
    fixed = {"shape": s, "PDL": True}
    return _case("sm_90", prefill_8bit_kernel.prefill_8bit_hopper_kernel, fixed, types, 4, 3, GluonASTSource)


def _encode(cache: str, products: str) -> Case:
    """Codes of a cache for that, of float16 or of q8_0."""
    kind = "" if cache == "f16" else cache
    data, scales = ("*i8", "*fp16") if kind else ("*fp16", None)
    types = {"cache": PagedCache(data, data, scales, scales, "i32", "*i32", "i32"), "positions": "*i32",
             "starts": "*i32", "codes": Codes("*i8", "*i8", "*fp32", "i32")}
    fixed = {"shape": Prefill8BitShape(128, 4, kind=kind, products=products), "PDL": True}
    return _case("sm_90", cache_codec_kernel.encode_kernel, fixed, types, 8, 3)


def _decode(cache: str, sequences: int, target: str) -> Case:
    """Attention of single tokens to a cache: of one sequence to q8_1, of some to floats, of 32 without splits to halves
    in order."""
    kind, _, scales = cache.partition("-")
    data, kind = ("*fp16", "") if kind == "f16" else ("*i8", kind)
    of_codes = None if not kind else "*fp16" if kind == "q8_0" else "*fp32"
    splits = 32 // sequences
    s = DecodeShape(
        128,
        4,
        decode_mma_launch.tokens(kind, target != "sm_80"),
        splits=splits,
        kind=kind,
        scales=scales,
        converts=target != "sm_80",
    )
    shares = CountedAttention("*fp32", "*fp32", "*fp32", "*i32") if splits > 1 else None
    quantized = Q8Activation("*i8", "*fp32", "*fp32", "*fp32", "i32") if sequences == 1 else None
    row = Matrix("*fp32", "i32")
    types = {
        "q": row, "cache": PagedCache(data, data, of_codes, of_codes, "i32", "*i32", "i32"), "positions": "*i32",
        "sinks": "*fp32", "out": row if sequences == 8 else None, "quantized": quantized,
        "ordered": None if sequences == 8 else "*fp16", "partial": shares, "scale": "fp32",
    }
    fixed = {"shape": s, "num_warps": s.warps, "PDL": target != "sm_80"}
    return _case(target, decode_mma_kernel, fixed, types, s.warps, 3, GluonASTSource)


def _case(
    target: str, kernel: Any, fixed: dict[str, Any], types: dict[str, Any], warps: int, stages: int,
    language: Any = ASTSource,
) -> Case:
    even = {*EVEN, *(arg for arg in kernel.arg_names if arg.endswith("_stride"))}
    return Case(kernel, target, fixed, types, warps, stages, language, even)


if __name__ == "__main__":
    print(json.dumps([compiled(n, int(m), t) for n, m, t in (wanted.split(":") for wanted in sys.argv[1:])]))
