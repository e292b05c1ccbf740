"""Products of 8-bit numbers compile for GPUs that are not here, to matrix instructions of 8 bits, all in registers."""

from __future__ import annotations

import re

import pytest

from octavo.backends.gpu.matmul.w8a8.shapes import STREAMK
from tests.backends.gpu.compile.test_ahead_of_time import NEWER, OF_LAYOUT, OF_NVIDIA, TARGETS, rows_of
from tests.backends.gpu.compile.test_ahead_of_time import OTHERS as OTHER_KERNELS

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
LITTLE = {("prefill_128-int8-dynamic", "sm_90"): 16}
LITTLE |= {("decode_fp8-dynamic", "sm_90"): 12, ("decode_fp8-dynamic", "sm_100"): 8}
LITTLE |= {(f"attention8_128-{products}", "sm_90"): 84 for products in ("int8", "fp8")}
"""Bytes that are spilled: what is read once a tile, two numbers, or (by Triton 3.6) what masked blocks read."""
if NEWER:
    LITTLE |= {("decode_int8-static", "sm_100"): 12, ("prefill_128-int8-dynamic", "sm_90"): 108}
    LITTLE |= {("decode_fp8-dynamic", "sm_90"): 20, ("decode_fp8-dynamic", "sm_100"): 12}
"""Bytes that Triton 3.9 spills, and those before it do not, or fewer."""
RESERVED, SHARED, ROOM = 1 << 10, 196 << 10, 228 << 10
"""Bytes of shared memory that each program takes beside its own, of a multiprocessor that steps ask for as such, and
that it has at most."""
OF_ATTENTION = ("prefill_128", "attention8_128-int8", "encode_f16-fp8", "decode_int8-dynamic")


def check(wanted: list[str]) -> None:
    """Compile; each row has its instruction, and no spills."""
    for row in rows_of("ahead_of_time_gemm", wanted):
        assert row["spills"] <= LITTLE.get((row["kernel"], row["target"]), 0), row
        if row["kernel"] in OTHERS or row["kernel"].startswith("encode_"):
            continue
        if row["kernel"].startswith("decode_"):
            types = {i.rsplit(".", 1)[-1] for i in row["instructions"] if i.startswith("mma.sync.")}
            assert types == ({"s8", "f16"} if "int8" in row["kernel"] else {"f16"}), row
            assert "q8_0" in row["kernel"] or 2 * (row["shared"] + RESERVED) <= SHARED, "two fit a multiprocessor"
            continue
        assert not row["serialized"], row
        if row["kernel"].startswith(("w4a16_", "head_", "pair_", "experts_", "grouped_", "prefill_")):
            small = re.search(r"^grouped_.*-[23](-by-|$)", row["kernel"])
            kind = "mma.sync." if small else "wgmma.mma_async."
            assert any(i.startswith(kind) and ".f16.f16" in i for i in row["instructions"]), row
            continue
        if row["kernel"].startswith("attention8_"):
            wanted_types = {TYPE_OF_90["fp8"], TYPE_OF_90[row["kernel"].split("-")[1]]}
            found = [i for i in row["instructions"] if i.startswith("wgmma.mma_async.")]
            assert {t for t in wanted_types for i in found if i.endswith(t)} == wanted_types, row
            assert all(i.endswith(tuple(wanted_types)) for i in found), row
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
    check([f"few_{scheme}:{m}:sm_90" for scheme in ("w4a8", "w4a8_g128") for m in (8, 16, 32)])


@pytest.mark.slow
def test_two_types_of_fp8() -> None:
    """Units of fp8 take e4m3 by e5m2; elsewhere both become float16."""
    wanted = {"sm_90": ".f32.e4m3.e5m2", "sm_100": "kind::f8f6f4", "sm_80": ".f16.f16", "gfx942": "_f16"}
    for row in rows_of("ahead_of_time_gemm", [f"fp8-e5m2:2048:{target}" for target in wanted]):
        found = [i for i in row["instructions"] if not i.startswith("cp.async")]
        assert all(i.endswith(wanted[row["target"]]) for i in found), row
        assert found, row
        assert not row["spills"], row


@pytest.mark.slow
def test_scales_of_groups() -> None:
    wanted = ("_64_zero:1:sm_90", "_128:512:sm_90", "_64:512:sm_80", "_64:512:sm_100", "_32:512:gfx942",
              "_64:512:gfx1100")
    for row in rows_of("ahead_of_time_gemm", [f"int8_groups{case}" for case in wanted]):
        assert any(re.search(r"\.s8\.s8$|kind::i8$|v_w?mf?ma_i32_", i) for i in row["instructions"]), row
        assert not row["spills"], row


@pytest.mark.slow
def test_floats_by_codes_for_an_h100() -> None:
    few = ("Q4_K:8", "Q4_K:12", "Q6_K:12", "Q6_K:24", "Q8_0:12", "Q8_0:24")
    many = ("Q4_K:64", "Q6_K:512", "GROUP4_128_Z_F16:512", "MXFP4:8", "MXFP4:256", "FP8_128:8", "FP8_128:24",
            "FP8_128:48", "FP8_32:256", "FP8_128:1000")
    check([f"w4a16_{name}:sm_90" for name in (*few, *many)])
    check([f"pair_{names}:sm_90" for names in ("Q4_K-Q6_K:8", "Q6_K-Q4_K:16", "Q4_K-Q6_K:32")])
    check([f"head_{name}:sm_90" for name in ("Q6_K:8", "Q4_K:64", "Q6_K:128", "FP8_128:8", "FP8_128:48")])
    experts = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4", "FP8_128")
    check([f"experts_{name}:{m}:sm_90" for name in experts for m in (512, 2048)])
    check([f"experts_{name}:{m}:sm_90" for name in ("Q4_K-by-swiglu", "MXFP4-by-clamped_swiglu") for m in (512, 2048)])


@pytest.mark.slow
def test_few_pairs_of_experts_for_an_h100() -> None:
    """Of 64 rows four programs to a multiprocessor, of 128 two that have a producer, or three that multiply by
    `mma.sync`; and of gate and up."""
    names = ("Q4_K", "MXFP4", "Q6_K", "NVFP4")
    check([f"grouped_{name}:{pairs}:sm_90" for name, pairs in (
        ("Q5_K-128-4-2-2-2", 8), ("Q5_K-128-4-2-2-0", 16), ("Q5_0-64-3-4-2-0", 8), ("Q8_0-128-4-2-1-2", 8))])
    check([f"grouped_{name}-{shape}:{pairs}:sm_90" for name, shape, pairs in zip(
        names * 3, ("64-3-4-2-0",) * 4 + ("128-4-2-2-1",) * 4 + ("128-4-3-1-2",) * 4,
        (8, 8, 16, 16, 32, 32, 8, 8, 8, 16, 8, 16), strict=True)])
    check([f"grouped_{name}:{pairs}:sm_90" for name, pairs in (
        ("Q4_K-128-4-2-2-2-by-swiglu", 8), ("Q6_K-128-3-2-2-0-by-swiglu", 16),
        ("MXFP4-128-6-2-1-1-by-clamped_swiglu", 16))])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "element", "wanted"), [
    ("int8", "i8", TYPE_OF_90["int8"]), ("fp8", "fp8e4nv", TYPE_OF_90["fp8"]),
    ("fp8_blocks", "fp8e4nv", TYPE_OF_90["fp8"]), ("f16", "bf16", ".f32.bf16.bf16"),
    ("f16", "fp16", ".f32.f16.f16"),
])
def test_few_tokens_by_weights_of_their_type(kind: str, element: str, wanted: str) -> None:
    """All shapes of the table, and as many programs fit a multiprocessor as they say."""
    wanted_rows = [f"streamk_{kind}-{element}-{n}:{tokens}:sm_90" for tokens, n, _ in STREAMK[kind]]
    for row, (*_, shape) in zip(rows_of("ahead_of_time_gemm", wanted_rows), STREAMK[kind], strict=True):
        assert not row["spills"], row
        assert not row["serialized"], row
        assert any(i.endswith(wanted) for i in row["instructions"]), row
        assert shape.ctas_per_sm * (row["shared"] + RESERVED) <= ROOM, row


@pytest.mark.slow
def test_attention_for_an_h100() -> None:
    caches = ("", "-int8-dynamic", "-fp8-static", "-q8_0")
    check([f"prefill_{dim}{cache}:1:sm_90" for dim in (64, 128) for cache in caches])


@pytest.mark.slow
def test_attention_by_8_bit_products() -> None:
    """Both products are of 8 bits, and of a block under way at once."""
    check([f"encode_{cache}-{products}:1:sm_90" for cache, products in (("f16", "int8"), ("q8_0", "fp8"))])
    check([f"attention8_{dim}-{products}:1:sm_90" for dim in (64, 128) for products in TYPE_OF_90])


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_attention_of_single_tokens(target: str) -> None:
    caches = ("f16", "q8_0", "int8-dynamic", "int8-static", "fp8-dynamic", "fp8-static")
    wanted = [f"decode_{cache}:{n}:{target}" for cache, n in zip(caches, (1, 8, 1, 32, 8, 32), strict=True)]
    check(wanted)


@pytest.mark.slow
def test_for_others() -> None:
    check(["int8:512:gfx1100", "w4a8_g128:512:sm_80", "fp8:512:sm_100", "fp8:512:gfx942"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel(target: str) -> None:
    wanted = [f"{scheme}:{m}:{target}" for scheme in SCHEMES for m in (1, 32, 64, 128, 1024, 8192)]
    check([*wanted, *(f"{name}:1:{target}" for name in OTHERS)])


def check_ones(wanted: list[str]) -> None:
    """Kernels hold what they are given where one of their integers, or each, is 1."""
    for row in rows_of("ahead_of_time_ones", wanted):
        assert row["tried"] > 1
        assert row["wrong"] == {}, row


def test_a_stride_of_1() -> None:
    check_ones(["int8:64:sm_80", "int8_groups_64_zero:64:sm_80"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_integers_of_1(target: str) -> None:
    names = (*OF_LAYOUT, *(OF_NVIDIA if target.startswith("sm_") else ()))
    wanted = [f"{name}:{layout}:{target}" for name in names for layout in ("Q4_K", "MXFP4")]
    wanted += [f"{name}::{target}" for name in OTHER_KERNELS if name not in ("read", "draw")]  # which take no integers
    wanted += [f"{scheme}:{m}:{target}" for scheme in SCHEMES for m in (1, 1024)]
    wanted += [f"{name}:1:{target}" for name in OTHERS]
    check_ones([*wanted, *(f"w4a16_{name}:64:sm_90" for name in ("Q4_K", "Q6_K") if target == "sm_90"),
                *(["experts_Q4_K:512:sm_90"] if target == "sm_90" else []),
                *(f"{name}:1:sm_90" for name in OF_ATTENTION if target == "sm_90")])
