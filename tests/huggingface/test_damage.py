"""Quantized folders that are damaged or say what is not known: each is refused in one line that names key or tensor."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.errors import OctavoError
from tests.huggingface.published_layouts import PUBLISHED, Published, gptq_config
from tests.huggingface.published_models import read_module
from tests.huggingface.writers.gptq import gptq

GROUP = ("config_groups", "group_0")
I32, F16, F32 = np.int32, np.float16, np.float32
W = np.random.default_rng(3).standard_normal((64, 256)).astype(F32) / 20


def filled(shape: tuple[int, ...], dtype: Any, value: Any = 0) -> np.ndarray:
    return np.full(shape, value, dtype)


CONFIGS: list[tuple[str, tuple[str, ...], Any, str]] = [
    ("gptq-v1", ("quant_method",), "exl3", "quant_method: is 'exl3'"),
    ("gptq-v1", ("quant_method",), ..., "quant_method: is missing"),
    ("gptq-v1", ("bits",), 5, "bits: is 5"),
    ("gptq-v1", ("bits",), "4", "bits: is '4'"),
    ("gptq-v1", ("bits",), ..., "bits: is missing"),
    ("gptq-v1", ("group_size",), 0, "group_size: is 0"),
    ("gptq-v1", ("group_size",), True, "group_size: is true"),
    ("gptq-v1", ("group_size",), 48, "qweight': is I32"),
    ("gptq-v1", ("sym",), 1, "sym: is 1"),
    ("gptq-v1", ("checkpoint_format",), "marlin", "checkpoint_format: is 'marlin'"),
    ("gptq-v1", ("pack_dtype",), "int16", "qweight': is I32"),
    ("gptq-v1", ("pack_dtype",), "int64", "pack_dtype: is 'int64'"),
    ("gptq-v1", ("method",), "exl3", "method: is 'exl3'"),
    ("gptq-v1", ("rotation",), "hadamard", "rotation: is 'hadamard'"),
    ("gptq-v1", ("rotation",), "random", "what goes into down_proj is turned in each step"),
    ("gptq-p5", ("pack_dtype",), "int16", "pack_dtype: is 'int16'"),
    ("gptq-v1", ("quant_method",), "quark", "quant_method: is 'quark'"),
    ("gptq-v1", ("dynamic",), {"+:.*down": {"scale": 2}}, "down.scale: is 2"),
    ("gptq-p5", ("checkpoint_format",), "gptq_v2", "bits: is 5"),
    ("awq-gptqmodel", ("desc_act",), True, "desc_act: is true"),
    ("gptq-v1", ("smooth",), {"a": 1}, "smooth: is {"),
    ("gptq-v1", ("dynamic",), {"-:.*down": {}}, "leaves this module out"),
    ("gptq-v1", ("dynamic",), {"+:.*down": {"bits": 6}}, "bits: is 6"),
    ("gptq-v1", ("dynamic",), {"(a+)+b": {}}, "may take long to match"),
    ("gptq-v1", ("dynamic",), {"+:(": {}}, "a regular expression"),
    ("gptq-v1", ("dynamic",), {"+:a{99999999999}": {}}, "a regular expression"),
    ("gptq-v1", ("dynamic",), [1], "dynamic: is [1]"),
    ("awq-gemm", ("bits",), 8, "bits: is 8"),
    ("awq-gemm", ("version",), "gemv_fast", "version: is 'gemv_fast'"),
    ("awq-gemm", ("version",), "gemv", "qweight': has rows of"),
    ("awq-gemm", ("group_size",), None, "group_size: is null"),
    ("awq-gemm", ("group_size",), 100, "qweight': has 256 rows"),
    ("awq-gemm", ("zero_point",), "yes", "zero_point: is 'yes'"),
    ("awq-gemm", ("modules_to_not_convert",), ["down_proj"], "modules_to_not_convert has 'down_proj'"),
    ("awq-gemm", ("modules_to_not_convert",), "down_proj", "modules_to_not_convert: is 'down_proj'"),
    ("auto-round", ("packing_format",), "auto_round:llm_compressor", "data_type: is int in a packing auto_round:llm"),
    ("auto-round", ("packing_format",), "auto_round:llm_compressor_nvfp4_e5m3", "packing_format: is 'auto_round:llm"),
    ("auto-round", ("bits",), 5, "bits: is 5"),
    ("auto-round", ("data_type",), "mx_fp", "group_size: is 128 (allowed: 32)"),
    ("auto-round", ("data_type",), "nvfp4_v2", "data_type: is 'nvfp4_v2' with 4 bits (allowed: int, or mx_fp"),
    ("auto-round-mxfp8", ("bits",), 6, "bits: is 6 (allowed: 4 or 8)"),
    ("auto-round-fp8", ("fmt",), "e5m2", "fmt: is 'e5m2' (allowed: 'e4m3' or null)"),
    ("auto-round-fp8", ("group_size",), 128, "group_size: is 128 (allowed: -1 or 0 or [128, 128])"),
    ("auto-round-fp8", ("act_group_size",), -1, "act_group_size: is -1 (allowed: 0 or null)"),
    ("auto-round", ("act_bits",), 8, "act_bits: is 8"),
    ("auto-round", ("sym",), "yes", "sym: is 'yes'"),
    ("auto-round", ("rotation_config",), {"hadamard_type": "x"}, "rotation_config: is {"),
    ("auto-round", ("extra_config",), {".*down.*": {"bits": 16}}, "`extra_config` leaves the module as it is"),
    ("auto-round", ("extra_config",), {".*down.*": {"bits": 5}}, "extra_config..*down.*.bits: is 5"),
    ("auto-round", ("extra_config",), {".*down.*": {"scale": 1}}, "extra_config..*down.*.scale: is 1"),
    ("auto-round", ("extra_config",), {"(a+)+b": {}}, "may take long to match"),
    ("auto-round", ("extra_config",), [1], "extra_config: is [1]"),
    ("auto-round-awq", ("bits",), 8, "bits: is 8"),
    ("ct-w4a16", ("ignore",), ["re:.*down_proj$"], "`ignore` has the module"),
    ("ct-w4a16", ("ignore",), [3], "ignore: is [3]"),
    ("ct-w4a16", (*GROUP, "targets"), ["re:.*up_proj"], "no group of the configuration"),
    ("ct-w4a16", (*GROUP, "targets"), ["re:(.*)*"], "may take long to match"),
    ("ct-w4a16", (*GROUP, "weights", "strategy"), "attn_head", "strategy: is 'attn_head'"),
    ("ct-w4a16", (*GROUP, "weights", "group_size"), 100, "weight_scale': is BF16"),
    ("ct-w4a16", (*GROUP, "weights", "future"), 2, "future: is 2"),
    ("ct-w4a16", ("config_groups",), {"W1A1": ["Linear"]}, "W1A1: is a list of targets"),
    ("ct-w4a16", ("format",), "marlin-24", "format: is 'marlin-24'"),
    ("ct-w4a16", ("format",), "mixed-precision", "format: is 'mixed-precision'"),
    ("ct-w4a16", ("kv_cache_scheme",), {"num_bits": 4, "strategy": "tensor"}, "kv_cache_scheme.num_bits: is 4"),
    ("ct-w4a16", (*GROUP, "weights", "num_bits"), 1, "num_bits: is 1"),
    ("ct-w4a16", (*GROUP, "targets"), ["LlamaAttention"], "targets: is ["),
    ("ct-mxfp8", (*GROUP, "weights", "num_bits"), 6, "num_bits: is 6"),
    ("ct-mxfp8", ("format",), "mxfp6-pack-quantized", "format: is 'mxfp6-pack-quantized'"),
    ("ct-fp8-block", ("format",), "mxfp8-quantized", "format: is 'mxfp8-quantized'"),
    ("ct-fp8-block", (*GROUP, "weights", "block_structure"), [64, 64], "block_structure: is [64, 64]"),
    ("ct-fp8", (*GROUP, "weights", "num_bits"), 6, "num_bits: is 6"),
    ("fp8-block", ("fmt",), "e5m2", "fmt: is 'e5m2'"),
    ("fp8-block", ("weight_block_size",), [64, 64], "weight_block_size: is [64, 64]"),
    ("fp8-block", ("weight_block_size",), None, "weight_scale_inv': is F32"),
    ("fp8-block", ("modules_to_not_convert",), ["model.layers.0.mlp.down_proj"], "leaves the module as it is"),
    ("modelopt-nvfp4", ("quant_algo",), "W4A8_AWQ", "quant_algo: is 'W4A8_AWQ'"),
    ("modelopt-nvfp4", ("quant_algo",), "MIXED_PRECISION", "quantized_layers: is missing"),
    ("modelopt-nvfp4", ("quant_algo",), "NVFP4_AWQ", "quant_algo: is 'NVFP4_AWQ'"),
    ("modelopt-nvfp4", ("quantized_layers",), {"model": {"quant_algo": "FP8"}}, "quantized_layers: is {"),
    ("modelopt-nvfp4", ("group_size",), 32, "group_size: is 32"),
    ("modelopt-nvfp4", ("kv_cache_quant_algo",), "INT8", "kv_cache_quant_algo: is 'INT8'"),
    ("modelopt-nvfp4", ("ignore",), ["*.down_proj"], "leaves the module as it is"),
    ("modelopt-mxfp8", ("group_size",), 16, "group_size: is 16"),
    ("modelopt-mxfp8", ("quant_algo",), "FP8_PER_CHANNEL_PER_TOKEN", "weight_scale': is U8"),
    ("modelopt-fp8-blocks", ("quant_algo",), "FP8_PB_WO", "weight_scale': is missing"),
    ("qqq", ("wbits",), 8, "wbits: is 8"),
    ("qqq", ("group_size",), 64, "group_size: is 64"),
    ("qqq-gptqmodel", ("method",), "exl3", "method: is 'exl3'"),
    ("qqq-g128", ("group_size",), -1, "without groups"),
    ("bitnet", ("linear_class",), "autolinear", "linear_class: is 'autolinear'"),
    ("bitnet", ("quantization_mode",), "online", "quantization_mode: is 'online' of bitlinear"),
    ("bitnet", ("use_rms_norm",), True, "use_rms_norm: is true"),
    ("bitnet", ("modules_to_not_convert",), ["down_proj"], "modules_to_not_convert has 'down_proj'"),
    ("bitnet", ("modules_to_not_convert",), ["mlp.*"], "modules_to_not_convert: is ["),
    ("mlx-4", ("bits",), 7, "bits: is 7"),
    ("mlx-4", ("group_size",), 16, "group_size: is 16"),
    ("mlx-4", ("mode",), "nf4", "mode: is 'nf4'"),
    ("mlx-4", ("model.layers.0.mlp.down_proj",), False, "leaves the module as it is"),
    ("mlx-4", ("model.layers.0.mlp.down_proj",), {"bits": 8}, "scales': is F16"),
]

TENSORS: list[tuple[str, dict[str, Any], str]] = [
    ("gptq-v1", {"qzeros": None}, "qzeros': is missing"),
    ("gptq-v1", {"scales": filled((2, 32), F16)}, "scales': is F16 [2, 32]"),
    ("gptq-v1", {"qzeros": filled((2, 8), I32, 0x12345678)}, "in a symmetric checkpoint (allowed: all 7 (gptq)"),
    ("gptq-v1", {"qweight": filled((32, 64), np.int64)}, "qweight': is I64"),
    ("gptq-v1", {"qweight": filled((31, 64), I32)}, "qweight': is I32 [31, 64]"),
    ("gptq-v1", {"g_idx": filled((256,), I32, 9)}, "g_idx': has groups 9 to 9"),
    ("gptq-v1", {"g_idx": filled((256,), I32, 1)}, "g_idx': has groups of 0 to 256 values"),
    ("gptq-v1", {"g_idx": filled((255,), I32)}, "g_idx': is I32 [255]"),
    ("gptq-v1", {"outliers": filled((3,), I32)}, "outliers': holds I32"),
    ("awq-gemm", {"qzeros": None}, "qzeros': is missing"),
    ("awq-auto-round", {"qzeros": filled((2, 8), I32, 0x77777777)}, "zero points 7 in a checkpoint without"),
    ("awq-gemm", {"qzeros": filled((3, 8), I32)}, "qzeros': is I32 [3, 8]"),
    ("awq-gemm", {"scales": filled((2, 64), I32)}, "scales': is I32"),
    ("awq-gemv", {"scales": filled((64, 4), F16)}, "scales': is F16 [64, 4]"),
    ("ct-w4a16-asym", {"weight_zero_point": None}, "weight_zero_point': is missing"),
    ("ct-w4a16-asym", {"weight_zero_point": filled((64, 8), np.int8, 99)}, "zero points from 99 to 99"),
    ("ct-w4a16", {"weight_shape": filled((2,), np.int64, 64)}, "weight_shape': says [64, 64]"),
    ("ct-act-order", {"weight_g_idx": filled((256,), I32, -2)}, "weight_g_idx': has groups -2 to -2"),
    ("ct-act-order-static", {"weight_g_idx": filled((255,), I32)}, "weight_g_idx': is I32 [255]"),
    ("ct-mxfp8", {"weight_scale": filled((64, 8), np.uint8, 255)}, "scales of 255"),
    ("ct-mxfp8", {"weight_scale": filled((64, 8), F32)}, "weight_scale': is F32"),
    ("ct-nvfp4", {"weight_global_scale": filled((1,), F32)}, "weight_global_scale': is 0.0"),
    ("ct-nvfp4", {"weight_global_scale": None}, "weight_global_scale': is missing"),
    ("ct-nvfp4", {"weight_scale": filled((64, 16), np.uint8)}, "weight_scale': is U8"),
    ("fp8-block-e8m0", {"weight_scale_inv": filled((1, 2), np.float32).astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)},
     "weight_scale_inv': is U8"),
    ("fp8-block-e8m0", {"weight_scale_inv": filled((1, 2), np.uint8, 255).view(ml_dtypes.float8_e8m0fnu)},
     "scales of 255"),
    ("ct-mxfp4", {"weight_scale": filled((64, 8), np.uint8, 255)}, "exponents of 255"),
    ("fp8-block", {"weight_scale_inv": filled((2, 2), F32)}, "weight_scale_inv': is F32 [2, 2]"),
    ("fp8-block", {"weight": filled((64, 256), np.int8)}, "weight': is I8"),
    ("fp8-block", {"weight_scale_inv": None}, "weight': holds F8_E4M3"),
    ("modelopt-nvfp4", {"weight_scale_2": filled((4,), F32)}, "weight_scale_2': is F32 [4]"),
    ("qqq", {"s_channel": filled((1, 32), F32)}, "s_channel': is F32 [1, 32]"),
    ("qqq", {"B": filled((16, 100), I32)}, "B': is I32 [16, 100]"),
    ("qqq-g128", {"s_group": None}, "s_group': is missing"),
    ("bitnet", {"weight": filled((64, 256), np.float32)}, "weight': is F32"),
    ("bitnet", {"weight": filled((16, 256), np.uint8, 3)}, "weight': has codes of 3"),
    ("bitnet", {"weight_scale": filled((64,), F32)}, "weight_scale': is F32 [64]"),
    ("bitnet", {"weight_scale": filled((1,), F32, 0)}, "weight_scale': is 0"),
    ("bitnet", {"weight_scale": None}, "weight': holds U8"),
    ("mlx-4", {"biases": None}, "biases': is missing"),
    ("mlx-4", {"biases": filled((64, 4), F32)}, "biases': is F32"),
    ("mlx-4", {"weight": filled((64, 31), np.uint32)}, "weight': is U32 [64, 31]"),
    ("ct-fp8", {"self_attn.k_scale": filled((1,), F32, -1)}, "self_attn.k_scale': has scales down to -1"),
    ("ct-fp8", {"v_scale": filled((1,), I32)}, "v_scale': is I32 [1]"),
]


def refuse(folder: Path, layout: Published, parts: dict[str, np.ndarray], said: str) -> None:
    def load() -> None:
        for tensor in read_module(folder, layout, parts).values():
            tensor.load()

    with pytest.raises(OctavoError) as error:
        load()
    text = str(error.value)
    assert said in text
    assert "\n" not in text
    assert len(text) < 1000


@pytest.mark.parametrize(("name", "path", "value", "said"), CONFIGS)
def test_configurations(tmp_path: Path, name: str, path: tuple[str, ...], value: Any, said: str) -> None:
    layout = copy.deepcopy(PUBLISHED[name])
    part = layout.config
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    if value is ...:
        del part[path[-1]]
    refuse(tmp_path, layout, layout.tensors(W)[0], said)


def test_groups_that_there_are_no_rows_for(tmp_path: Path) -> None:
    layout = Published(gptq(4, 8, sym=True, v2=False), gptq_config(group_size=8), "")
    refuse(tmp_path, layout, layout.tensors(W)[0], "has groups of 8 in rows of 256 values (allowed: multiples of 16")


@pytest.mark.parametrize(("name", "changed", "said"), TENSORS)
def test_tensors(tmp_path: Path, name: str, changed: dict[str, Any], said: str) -> None:
    layout = PUBLISHED[name]
    parts = {**layout.tensors(W)[0], **changed}
    refuse(tmp_path, layout, {end: part for end, part in parts.items() if part is not None}, said)
