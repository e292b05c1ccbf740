"""The table of layouts that other tools publish: what config.json says, how modules are packed, and their rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tests.huggingface.writers.awq import awq_gemm, awq_gemv
from tests.huggingface.writers.bitnet import bitnet
from tests.huggingface.writers.codes import Tensors
from tests.huggingface.writers.compressed_tensors import fp8, int8, mxfp4, mxfp8, mxint4, nvfp4, packed
from tests.huggingface.writers.gptq import gptq, gptq_p, qqq
from tests.huggingface.writers.mlx import mlx, mlx_mxfp4, mlx_mxfp8, mlx_nvfp4


@dataclass(frozen=True)
class Published:
    """A layout: what config.json says of it, how modules are packed, and the rows that they become."""

    tensors: Tensors
    config: dict[str, Any]
    rows: str
    key: str = "quantization_config"
    files: dict[str, Any] = field(default_factory=dict)


def compressed(format_: str, tokens: dict[str, Any] | None = None, **weights: Any) -> dict[str, Any]:
    """A `quantization_config` of compressed-tensors with one group."""
    arguments = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True,
                 "dynamic": False, "actorder": None, "observer": "minmax", "observer_kwargs": {},
                 "block_structure": None, **weights}
    group = {"targets": ["Linear"], "weights": arguments, "input_activations": tokens, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": format_, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed", "version": "0.12.2",
    }


def gptq_config(**more: Any) -> dict[str, Any]:
    return {
        "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "damp_percent": 0.01,
        "static_groups": False, "true_sequential": True, "lm_head": False, "checkpoint_format": "gptq",
        "pack_dtype": "int32", "meta": {"quantizer": ["gptqmodel:2.2.0"]}, **more,
    }


def gptqmodel_config(**more: Any) -> dict[str, Any]:
    """What GPTQModel 5 and later write into config.json and quantize_config.json."""
    return {
        "bits": 4, "group_size": 128, "desc_act": False, "lm_head": False, "method": "gptq", "quant_method": "gptq",
        "format": "gptq_p", "checkpoint_format": "gptq_p", "pack_dtype": "int32",
        "meta": {"quantizer": ["gptqmodel:7.7.0"], "offload_to_disk": True, "mse": 0.0}, **more,
    }


def awq_config(**more: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": None, **more}


def auto_round_config(packing: str, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "auto-round", "packing_format": packing, "bits": 4, "group_size": 128, "sym": True,
        "data_type": "int", "autoround_version": "0.9.2", "block_name_to_quantize": "model.layers", "iters": 0,
        "static_kv_granularity": "tensor", "static_attention_granularity": "tensor", **more,
    }


def micro(bits: int, name: str) -> dict[str, Any]:
    """AutoRound's words for weights and activations of a type."""
    return {"data_type": name, "act_bits": bits, "act_data_type": name, "act_group_size": 32, "act_sym": True,
            "act_dynamic": True}


MICRO = "auto_round:llm_compressor"
BF16 = ml_dtypes.bfloat16
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
E4M3_TOKENS = {**TOKENS, "type": "float"}
CHANNEL = {"strategy": "channel", "group_size": None}
PUBLISHED: dict[str, Published] = {
    "gptq-v1": Published(gptq(4, 128, sym=True, v2=False), gptq_config(), "GROUP4_128_F16"),
    "gptq-v1-asym": Published(gptq(4, 64, sym=False, v2=False), gptq_config(sym=False, group_size=64),
                              "GROUP4_64_Z_F16"),
    "gptq-v2": Published(gptq(4, 32, sym=False, v2=True),
                         gptq_config(sym=False, group_size=32, checkpoint_format="gptq_v2"), "GROUP4_32_Z_F16"),
    "gptq-mislabelled": Published(gptq(4, 128, sym=True, v2=True), gptq_config(), "GROUP4_128_F16"),
    "gptq-2": Published(gptq(2, 64, sym=True, v2=False), gptq_config(bits=2, group_size=64), "GROUP2_64_F16"),
    "gptq-3": Published(gptq(3, 128, sym=False, v2=False), gptq_config(bits=3, sym=False), "GROUP3_128_Z_F16"),
    "gptq-2-asym": Published(gptq(2, 32, sym=False, v2=False), gptq_config(bits=2, sym=False, group_size=32),
                             "GROUP2_32_Z_F16"),
    "gptq-v2-3": Published(gptq(3, 128, sym=False, v2=True),
                           gptq_config(bits=3, sym=False, checkpoint_format="gptq_v2"), "GROUP3_128_Z_F16"),
    "gptq-v2-8": Published(gptq(8, 32, sym=False, v2=True),
                           gptq_config(bits=8, sym=False, group_size=32, checkpoint_format="gptq_v2"),
                           "GROUP8_32_Z_F16"),
    "gptq-16": Published(gptq(4, 16, sym=True, v2=False), gptq_config(group_size=16), "GROUP4_16_F16"),
    "gptq-16-asym": Published(gptq(3, 16, sym=False, v2=True), gptq_config(
        bits=3, sym=False, group_size=16, checkpoint_format="gptq_v2"), "GROUP3_16_Z_F16"),
    "gptq-bf16": Published(gptq(4, 128, sym=False, v2=False, dtype=BF16), gptq_config(sym=False), "GROUP4_128_Z_BF16"),
    "gptq-8": Published(gptq(8, -1, sym=False, v2=False), gptq_config(bits=8, group_size=-1, sym=False),
                        "GROUP8_128_Z_F16"),
    "gptq-act-order": Published(gptq(4, 128, sym=True, v2=False, ordered=True), gptq_config(desc_act=True),
                                "GROUP4_128_F16"),
    "gptq-file": Published(gptq(4, 128, sym=True, v2=False), {}, "GROUP4_128_F16",
                           files={"quantize_config.json": {"bits": 4, "group_size": 128, "desc_act": False}}),
    "gptq-words": Published(gptq(4, 64, sym=False, v2=False, word=16),
                            gptq_config(sym=False, group_size=64, pack_dtype="int16"), "GROUP4_64_Z_F16"),
    **{f"gptq-p{bits}": Published(gptq_p(bits, 64, sym=sym), gptqmodel_config(bits=bits, group_size=64, sym=sym), rows)
       for bits, sym, rows in ((3, True, "GROUP3_64_F16"), (5, False, "GROUP5_64_Z_F16"), (6, True, "GROUP6_64_F16"),
                               (7, False, "GROUP8_64_Z_F16"), (2, False, "GROUP2_64_Z_F16"),
                               (4, False, "GROUP4_64_Z_F16"), (8, True, "GROUP8_64_F16"))},
    **{f"gptq-words-8-{bits}": Published(gptq(bits, 64, sym=sym, v2=False, word=8),
                                         gptq_config(bits=bits, sym=sym, group_size=64, pack_dtype="int8"), rows)
       for bits, sym, rows in ((2, False, "GROUP2_64_Z_F16"), (4, True, "GROUP4_64_F16"),
                               (8, False, "GROUP8_64_Z_F16"))},
    "gptq-words-8-v2": Published(gptq(4, 64, sym=False, v2=True, word=8), gptq_config(
        sym=False, group_size=64, pack_dtype="int8", checkpoint_format="gptq_v2"), "GROUP4_64_Z_F16"),
    "awq-gptqmodel": Published(
        awq_gemm(),
        gptqmodel_config(quant_method="awq", method="awq", format="gemm", checkpoint_format="gemm", version="gemm",
                         zero_point=True), "GROUP4_128_Z_F16"),
    "awq-gemm": Published(awq_gemm(), awq_config(), "GROUP4_128_Z_F16"),
    "awq-symmetric": Published(awq_gemm(64, sym=True, zeros=False), awq_config(zero_point=False, group_size=64),
                               "GROUP4_64_F16"),
    "awq-file": Published(awq_gemm(), {}, "GROUP4_128_Z_F16", files={
        "quant_config.json": {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}}),
    **{f"awq-gemv{end}": Published(awq_gemv(group), awq_config(version="gemv", group_size=group),
                                   f"GROUP4_{group}_Z_F16")
       for end, group in (("", 64), ("-32", 32), ("-128", 128))},
    "awq-auto-round": Published(
        awq_gemm(sym=True), awq_config(zero_point=False, sym=True, provider="auto-round", iters=200, data_type="int"),
        "GROUP4_128_F16"),
    "auto-round": Published(gptq(4, 128, sym=True, v2=False), auto_round_config("auto_round:auto_gptq"),
                            "GROUP4_128_F16"),
    "auto-round-asym": Published(gptq(4, 64, sym=False, v2=False),
                                 auto_round_config("auto_round:auto_gptq", sym=False, group_size=64),
                                 "GROUP4_64_Z_F16"),
    "auto-round-true-zeros": Published(gptq(2, 32, sym=False, v2=True),
                                       auto_round_config("auto_round", bits=2, sym=False, group_size=32),
                                       "GROUP2_32_Z_F16"),
    "auto-round-awq": Published(awq_gemm(), auto_round_config("auto_round:auto_awq", sym=False), "GROUP4_128_Z_F16"),
    "auto-round-0.4": Published(
        gptq(4, 128, sym=True, v2=False),
        {"quant_method": "intel/auto-round", "backend": "auto_round:gptq:exllamav2", "bits": 4, "group_size": 128,
         "sym": True, "data_type": "int", "amp": True, "autoround_version": "0.4.2"}, "GROUP4_128_F16"),
    "auto-round-mxfp4": Published(mxfp4(), auto_round_config(MICRO, group_size=32, **micro(4, "mx_fp")), "MXFP4"),
    "auto-round-mxfp8": Published(mxfp8, auto_round_config(
        MICRO, bits=8, group_size=32, **micro(8, "mx_fp_rceil")), "FP8_32"),
    "auto-round-mxint4": Published(mxint4, auto_round_config(
        "auto_round", group_size=32, **micro(4, "mx_int")), "GROUP4_32_F32"),
    "auto-round-nvfp4": Published(
        nvfp4("weight_packed", "weight_scale", "weight_global_scale", divides=True), auto_round_config(
            MICRO, group_size=16, act_bits=4, act_data_type="nv_fp4_with_static_gs", act_group_size=16, act_sym=True,
            act_dynamic=True) | {"data_type": "nv_fp"}, "NVFP4"),
    "auto-round-fp8": Published(fp8("channel", static=True, flat=True), auto_round_config(
        "auto_round:fp8_static", bits=8, group_size=-1, act_bits=8, act_data_type="fp", act_group_size=0,
        act_dynamic=False, act_sym=True, fmt="e4m3", activation_scheme="static") | {"data_type": "fp"}, "FP8"),
    "auto-round-fp8-a16": Published(fp8("tensor"), {
        "quant_method": "auto-round", "bits": 8, "group_size": 0, "data_type": "fp", "fmt": "e4m3", "iters": 0,
        "activation_scheme": "dynamic", "autoround_version": "0.9.2"}, "FP8_128"),
    **{f"auto-round-fp8-block{end}": Published(fp8("block", "weight_scale_inv"), {
        "quant_method": method, "packing_format": "auto_round:fp8", "bits": 8, "group_size": [128, 128],
        "data_type": "fp", "act_bits": 8, "act_data_type": "fp", "act_group_size": 128, "act_dynamic": True,
        "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "ignored_layers": ["lm_head"],
        "autoround_version": "0.14.0"}, "FP8_128") for end, method in (("", "auto-round"), ("-older", "fp8"))},
    "ct-w4a16": Published(packed(4, 128, dtype=BF16), compressed("pack-quantized", actorder="static"),
                          "GROUP4_128_BF16"),
    "ct-w4a16-asym": Published(packed(4, 32, sym=False, dtype=np.float16),
                               compressed("pack-quantized", group_size=32, symmetric=False), "GROUP4_32_Z_F16"),
    "ct-w4a16-loose": Published(packed(4, 128, sym=False, loose=True), compressed("pack-quantized", symmetric=False),
                                "GROUP4_128_Z_F32"),
    "ct-act-order": Published(packed(4, 128, ordered=True), compressed("pack-quantized", actorder="group"),
                              "GROUP4_128_F32"),
    "ct-w8a16-act-order": Published(
        packed(8, 128, ordered=True), compressed("pack-quantized", num_bits=8, actorder="group"), "GROUP8_128_F32"),
    "ct-w4a16-weight": Published(packed(4, 64, dtype=BF16),
                                 compressed("pack-quantized", group_size=64, actorder="weight"), "GROUP4_64_BF16"),
    "ct-act-order-dynamic": Published(packed(4, 64, ordered=True),
                                      compressed("pack-quantized", group_size=64, actorder="dynamic"),
                                      "GROUP4_64_F32"),
    "ct-naive": Published(int8(64), compressed("naive-quantized", num_bits=8, group_size=64), "GROUP8_64_F32"),
    "ct-act-order-static": Published(packed(4, 128, ordered=True), compressed("pack-quantized", actorder="static"),
                                     "GROUP4_128_F32"),
    "ct-w4a8-act-order": Published(packed(4, 128, ordered=True), compressed("pack-quantized", TOKENS, actorder="group"),
                                   "GROUP4_128_F32"),
    "ct-w4afp8": Published(packed(4, 128), compressed("pack-quantized", E4M3_TOKENS), "GROUP4_128_F32"),
    "ct-w3a16": Published(packed(3, None, dtype=np.float16), compressed("pack-quantized", num_bits=3, **CHANNEL),
                          "GROUP3_128_F16"),
    "ct-w7a16": Published(packed(7, 64), compressed("pack-quantized", num_bits=7, group_size=64), "GROUP8_64_F32"),
    "ct-w8a16": Published(int8(None, BF16), compressed("int-quantized", num_bits=8, **CHANNEL), "GROUP8_128_BF16"),
    "ct-w8a8": Published(int8(None), compressed("int-quantized", TOKENS, num_bits=8, **CHANNEL), "INT8"),
    "ct-w8a8-static": Published(
        int8(None, static=True),
        compressed("int-quantized", {**TOKENS, "dynamic": False, "strategy": "tensor"}, num_bits=8, **CHANNEL), "INT8"),
    "ct-fp8-dynamic": Published(
        fp8("channel"), compressed("float-quantized", E4M3_TOKENS, num_bits=8, type="float", **CHANNEL), "FP8"),
    "ct-fp8": Published(
        fp8("tensor", static=True),
        compressed("float-quantized", {**E4M3_TOKENS, "dynamic": False, "strategy": "tensor"}, num_bits=8, type="float",
                   strategy="tensor", group_size=None), "FP8"),
    "ct-fp8-block": Published(
        fp8("block"),
        compressed("float-quantized", {**E4M3_TOKENS, "strategy": "group", "group_size": 128}, num_bits=8, type="float",
                   strategy="block", group_size=None, block_structure=[128, 128]), "FP8_128"),
    "ct-nvfp4": Published(
        nvfp4("weight_packed", "weight_scale", "weight_global_scale", divides=True),
        compressed("nvfp4-pack-quantized", type="float", strategy="tensor_group", group_size=16), "NVFP4"),
    "fp8-block": Published(
        fp8("block", "weight_scale_inv"),
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "FP8_128"),
    "fp8-block-powers": Published(
        fp8("block", "weight_scale_inv", dtype=np.float32),
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
         "scale_fmt": "ue8m0"}, "FP8_128"),
    "fp8-block-e8m0": Published(
        fp8("block", "weight_scale_inv", dtype=ml_dtypes.float8_e8m0fnu),
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
        "FP8_128"),
    "fp8-tensor": Published(
        fp8("tensor", static=True, shape=()),
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, "FP8"),
    "modelopt-fp8": Published(
        fp8("tensor", static=True, shape=()), {}, "FP8", files={"hf_quant_config.json": {
            "producer": {"name": "modelopt", "version": "0.33.0"},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}}),
    "modelopt-fp8-rows": Published(
        fp8("channel"), {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "FP8"),
    "modelopt-fp8-blocks": Published(
        fp8("block", "weight_scale_inv"),
        {"quant_method": "modelopt", "quant_algo": "FP8_BLOCK_SCALES", "group_size": 128}, "FP8_128"),
    "modelopt-mxfp8": Published(
        mxfp8, {"quant_method": "modelopt", "quant_algo": "MXFP8", "group_size": 32, "ignore": ["lm_head"]}, "FP8_32"),
    "modelopt-w4a16-nvfp4": Published(
        nvfp4("weight", "weight_scale", "weight_scale_2", divides=False),
        {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]},
        "NVFP4"),
    "modelopt-nvfp4": Published(
        nvfp4("weight", "weight_scale", "weight_scale_2", divides=False),
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head", "*norm*"]},
        "NVFP4"),
    "qqq": Published(qqq(-1), {"quant_method": "qqq", "wbits": 4, "group_size": -1}, "INT4"),
    "qqq-gptqmodel": Published(
        qqq(-1, empty=False), gptqmodel_config(quant_method="qqq", method="qqq", group_size=-1, format="qqq",
                                               checkpoint_format="qqq", sym=True), "INT4"),
    "qqq-g128": Published(qqq(128), {"quant_method": "qqq", "bits": 4, "group_size": 128}, "INT4_G128"),
    "bitnet": Published(bitnet(divides=True), {"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]},
                        "TQ2_0"),
    "bitnet-auto": Published(bitnet(divides=False, dtype=BF16), {
        "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}, "TQ2_0"),
    "mlx-4": Published(mlx(4, 64), {"group_size": 64, "bits": 4}, "GROUP4_64_M_F16", "quantization"),
    "mlx-3": Published(mlx(3, 32, np.float32), {"group_size": 32, "bits": 3, "mode": "affine"}, "GROUP3_32_M_F32",
                       "quantization"),
    **{f"mlx-{bits}": Published(mlx(bits, group), {"group_size": group, "bits": bits, "mode": "affine"},
                                f"GROUP{bits}_{group}_M_F16", "quantization")
       for bits, group in ((2, 128), (5, 32), (6, 64), (8, 64))},
    "mlx-mxfp4": Published(mlx_mxfp4, {"group_size": 32, "bits": 4, "mode": "mxfp4"}, "MXFP4", "quantization"),
    "mlx-mxfp8": Published(mlx_mxfp8, {"group_size": 32, "bits": 8, "mode": "mxfp8"}, "FP8_32", "quantization"),
    "mlx-nvfp4": Published(mlx_nvfp4, {"group_size": 16, "bits": 4, "mode": "nvfp4"}, "NVFP4", "quantization"),
    "ct-mxfp8": Published(
        mxfp8, compressed("mxfp8-quantized", {**E4M3_TOKENS, "strategy": "group", "group_size": 32}, num_bits=8,
                          type="float", group_size=32), "FP8_32"),
    "ct-mxfp4": Published(mxfp4(), compressed("mxfp4-pack-quantized", type="float", group_size=32), "MXFP4"),
}
"""Layouts by name, each as a tool writes it."""

_FIRST = {layout.rows: name for name, layout in reversed(PUBLISHED.items())}
COMPUTED = [*_FIRST.values(), "gptq-act-order", "ct-w8a8-static", "fp8-tensor"]
"""Layouts that differ in what kernels do: one for each kind of rows, and those with an order or a static scale."""
