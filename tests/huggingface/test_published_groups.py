"""Which settings of a published checkpoint a module has: its own, those of a group, or those of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import ModelError
from octavo.formats import dequantize
from tests.huggingface.published_layouts import PUBLISHED, Published, auto_round_config, compressed, gptq_config
from tests.huggingface.published_models import read_module, values_of
from tests.huggingface.writers.codes import Tensors
from tests.huggingface.writers.compressed_tensors import fp8, int8, mxfp4, mxfp8, nvfp4, packed
from tests.huggingface.writers.gptq import gptq
from tests.huggingface.writers.mlx import mlx

NVFP4 = nvfp4("weight_packed", "weight_scale", "weight_global_scale", divides=True)


def test_groups_by_name_expression_and_class(tmp_path: Path) -> None:
    """A name goes before an expression, that before a class; a group may be a preset, and have a format of its own."""
    int8_weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    groups: dict[str, Any] = {
        "W4A16": ["Linear"],
        "second": {"targets": ["re:.*down_proj"], "weights": int8_weights, "format": "int-quantized"},
    }
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, "ignore": []}
    w = np.random.default_rng(3).standard_normal((16, 256)).astype(np.float32)
    parts, want = int8(None)(w)
    read = read_module(tmp_path, Published(int8(None), config, ""), parts)
    np.testing.assert_array_equal(dequantize(read["weight"].load()), want)
    groups["third"] = {**groups["second"], "targets": ["model.layers.0.mlp.down_proj"], "format": "pack-quantized"}
    parts, want = packed(8, None)(w)
    read = read_module(tmp_path, Published(int8(None), config, ""), parts)
    np.testing.assert_array_equal(dequantize(read["weight"].load()), want)


PRESETS = {
    "W2A16": (packed(2, 128), "pack-quantized", "GROUP2_128_F32"),
    "W4A16": (packed(4, 128), "pack-quantized", "GROUP4_128_F32"),
    "W4A16_ASYM": (packed(4, 128, sym=False), "pack-quantized", "GROUP4_128_Z_F32"),
    "W8A16": (packed(8, None), "pack-quantized", "GROUP8_128_F32"),
    "W8A8": (int8(None), "int-quantized", "INT8"),
    "INT8": (int8(None), "naive-quantized", "INT8"),
    "W5A8": (packed(5, 128), "pack-quantized", "GROUP5_128_F32"),
    "W4AFP8": (packed(4, 128), "pack-quantized", "GROUP4_128_F32"),
    "FP8": (fp8("tensor", static=True), "float-quantized", "FP8"),
    "FP8_DYNAMIC": (fp8("channel"), "naive-quantized", "FP8"),
    "FP8_BLOCK": (fp8("block"), "float-quantized", "FP8_128"),
    "NVFP4": (NVFP4, "nvfp4-pack-quantized", "NVFP4"),
    "NVFP4A16": (NVFP4, "nvfp4-pack-quantized", "NVFP4"),
    "MXFP4": (mxfp4(), "mxfp4-pack-quantized", "MXFP4"),
    "MXFP4A16": (mxfp4(), "mxfp4-pack-quantized", "MXFP4"),
    "MXFP8": (mxfp8, "mxfp8-quantized", "FP8_32"),
    "MXFP8A16": (mxfp8, "mxfp8-quantized", "FP8_32"),
}


@pytest.mark.parametrize("name", PRESETS)
def test_groups_that_are_named(tmp_path: Path, name: str) -> None:
    """compressed-tensors' presets, each with a format that their writer chooses for it."""
    tensors, format_, rows = PRESETS[name]
    config = {"quant_method": "compressed-tensors", "format": format_, "config_groups": {name: ["Linear"]}}
    parts, want = tensors(np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32) / 20)
    read = read_module(tmp_path, Published(tensors, config, rows), parts)
    assert read["weight"].format.name == rows
    np.testing.assert_array_equal(values_of(read), want)


@pytest.mark.parametrize("name", ["ct-act-order", "ct-act-order-static", "ct-w4a8-act-order"])
@pytest.mark.parametrize("groups", [np.full(256, -1), np.arange(256) // 128])
def test_groups_in_order(tmp_path: Path, name: str, groups: np.ndarray) -> None:
    """A group index of -1 is what the library leaves where columns were not sorted."""
    layout = PUBLISHED[name]
    parts, want = packed(4, 128)(np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32) / 20)
    read = read_module(tmp_path, layout, {**parts, "weight_g_idx": groups.astype(np.int32)})
    assert set(read) == {"weight"}
    # two levels of scales round weights
    np.testing.assert_allclose(values_of(read), want, atol=1e-3 if name == "ct-w4a8-act-order" else 0)


def test_static_scales_of_floats_beside_integers(tmp_path: Path) -> None:
    """Such activations are not rounded here, so the scale says nothing."""
    tokens = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    for tensors, format_ in (
        (packed(4, 128, static=True), "pack-quantized"),
        (int8(128, static=True), "int-quantized"),
    ):
        config = compressed(format_, tokens, num_bits=4 if format_ == "pack-quantized" else 8)
        parts, want = tensors(np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32) / 20)
        read = read_module(tmp_path, Published(tensors, config, ""), parts)
        assert set(read) == {"weight"}
        np.testing.assert_array_equal(values_of(read), want)


def test_own_settings_of_modules(tmp_path: Path) -> None:
    """GPTQ's `dynamic`, AutoRound's `extra_config` and MLX's settings under a module's name go before those for all."""
    w = np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32)
    parts, want = gptq(8, 32, sym=True, v2=False)(w)
    own = {"+:.*down_proj": {"bits": 8, "group_size": 32}}
    read = read_module(tmp_path, Published(int8(None), gptq_config(dynamic=own), ""), parts)
    np.testing.assert_array_equal(dequantize(read["weight"].load()), want)
    for extra in (
        {"model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 32}, ".*mlp.*": {"bits": 2}},
        {"^model\\.layers\\.1.*": {"bits": 2}, ".*down_proj.*": {"bits": 8, "group_size": 32}},
    ):
        config = auto_round_config("auto_round:auto_gptq", extra_config=extra)
        read = read_module(tmp_path, Published(int8(None), config, ""), parts)
        np.testing.assert_array_equal(dequantize(read["weight"].load()), want)
    config = auto_round_config("auto_round", extra_config={".*down_proj.*": {"bits": 16, "data_type": "fp"}})
    read = read_module(tmp_path, Published(int8(None), config, ""), {"weight": w})
    np.testing.assert_array_equal(dequantize(read["weight"].load()), w)
    parts, want = mlx(6, 32)(w)
    config = {"group_size": 64, "bits": 4, "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 6}}
    read = read_module(tmp_path, Published(int8(None), config, "", "quantization"), parts)
    np.testing.assert_array_equal(dequantize(read["weight"].load()), want)


MIXED = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head", "mtp*"]}


@pytest.mark.parametrize(("layers", "tensors", "rows"), [
    ({"model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4", "group_size": 16}, "model.layers.0.mlp": {
        "quant_algo": "FP8"}}, nvfp4("weight", "weight_scale", "weight_scale_2", divides=False), "NVFP4"),
    ({"model.layers.0": {"quant_algo": "NVFP4"}, "model.layers.0.mlp": {"quant_algo": "FP8"}}, fp8("tensor"), "FP8"),
])
@pytest.mark.parametrize("beside", [True, False])
def test_layers_of_several_algorithms(
    tmp_path: Path, layers: dict[str, Any], tensors: Tensors, rows: str, beside: bool
) -> None:
    """ModelOpt's mixed precision: the nearest module of `quantized_layers` says how a weight lies."""
    said = MIXED | {"quantized_layers": layers}
    config = {} if beside else {"quant_method": "modelopt", "producer": {"name": "modelopt"}, **said}
    files = {"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": said}} if beside else {}
    parts, want = tensors(np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32) / 20)
    read = read_module(tmp_path, Published(tensors, config, rows, files=files), parts)
    assert read["weight"].format.name == rows
    np.testing.assert_array_equal(values_of(read), want)
    said["quantized_layers"] = {"model.layers.1.mlp": {"quant_algo": "FP8"}}
    with pytest.raises(ModelError, match="quantized_layers lacks the module"):
        read_module(tmp_path, Published(tensors, config and {**config, **said}, rows, files=files), parts)


HEADS = {"num_attention_heads": 4, "num_key_value_heads": 1, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
         "linear_num_value_heads": 4, "linear_value_head_dim": 16}


@pytest.mark.parametrize("layout", ["fp8-tensor", "modelopt-fp8"])
@pytest.mark.parametrize(
    ("name", "rows"),
    [("self_attn.qkv_proj", [64, 16, 16]), ("linear_attn.in_proj_qkv", [16, 16, 64]), ("mlp.gate_up_proj", [48, 48])],
)
def test_a_scale_for_each_matrix_of_a_module(tmp_path: Path, layout: str, name: str, rows: list[int]) -> None:
    w = np.random.default_rng(3).standard_normal((96, 128)).astype(np.float32)
    each = [PUBLISHED[layout].tensors(part * (i + 1)) for i, part in enumerate(np.split(w, np.cumsum(rows)[:-1]))]
    parts = {end: np.concatenate([found[end].reshape(-1) for found, _ in each]) for end in each[0][0]}
    parts["weight"] = parts["weight"].reshape(96, 128)
    read = read_module(tmp_path, PUBLISHED[layout], parts, name, **HEADS)
    np.testing.assert_array_equal(values_of(read), np.concatenate([want for _, want in each]))
    assert dequantize(read["input_scale"].load()).tolist() == [np.float32(0.01)]
    parts["input_scale"][0] = 1
    with pytest.raises(ModelError, match=r"input_scale': has scales from 0\.01"):
        read_module(tmp_path, PUBLISHED[layout], parts, name, **HEADS)["input_scale"].load()
    if name != "mlp.gate_up_proj":  # whose rows no number of config.json tells
        with pytest.raises(ModelError, match=r"weight_scale': is F32 \[3\]"):
            read_module(tmp_path, PUBLISHED[layout], parts, name)


def test_modules_that_are_not_converted(tmp_path: Path) -> None:
    """A module that fp8's configuration leaves out is as it lies; one of e4m3 without a scale is refused."""
    w = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float16)
    layout = PUBLISHED["fp8-block"]
    config = {**layout.config, "modules_to_not_convert": ["model.layers.0.mlp.down_proj", "lm_head"]}
    read = read_module(tmp_path, Published(layout.tensors, config, ""), {"weight": w})
    np.testing.assert_array_equal(dequantize(read["weight"].load()), w.astype(np.float32))


def test_zero_points_that_a_writer_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    w = np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32)
    parts, _ = gptq(4, 128, sym=False, v2=False)(w)
    parts["qzeros"][0, 0] = -1 << 12
    read_module(tmp_path, Published(int8(None), gptq_config(sym=False), ""), parts)["weight"].load()
    assert "qzeros: the zero points of 1 words may have been lost" in caplog.text
