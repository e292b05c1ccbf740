"""Checkpoints of compressed-tensors: what other tools write is read as what it means, and what is wrong is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import octavo
from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelError, NonFiniteError, OctavoError
from octavo.formats import dequantize
from octavo.huggingface import open_model_file
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.huggingface.modules import edit_config, edit_tensors, quantization, rounded, save, words
from tests.sampling import slow, some

TOKENS = [5, 3, 60, 7, 21, 99]


def int8(w: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    codes, scale = rounded(w, 127)
    return {"weight": codes, "weight_scale": scale}, codes * scale


def int4(w: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Codes of 4 bits in words, scales of float16, one a row without a second dimension."""
    codes, scale = rounded(w, 7)
    half = scale.astype(np.float16)
    parts = {"weight_packed": words(codes), "weight_scale": half[:, 0], "weight_shape": np.array(w.shape)}
    return parts, codes * half.astype(np.float32)


def int4_bytes(w: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Codes of 4 bits in a byte each, as vLLM wants them where activations have 8."""
    codes, scale = rounded(w, 7)
    return {"weight": codes, "weight_scale": scale}, codes * scale


def int4_groups(w: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    codes, scale = rounded(w, 7, 128)
    parts = {"weight_packed": words(codes), "weight_scale": scale, "weight_shape": np.array(w.shape)}
    return parts, codes * np.repeat(scale, 128, axis=1)


CASES = {
    "int8": (quantization(), int8, 1e-6),
    "int4": (quantization("pack-quantized", num_bits=4), int4, 1e-6),
    "int4-bytes": (quantization(num_bits=4), int4_bytes, 1e-6),
    # two levels round weights to 127 steps of the row's largest, which one level does not
    "int4-groups": (quantization("pack-quantized", num_bits=4, strategy="group", group_size=128), int4_groups, 1e-3),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, quantization(), int8)
    return tmp_path


@pytest.mark.parametrize("case", some(["llama", "qwen3"], 1))
@pytest.mark.parametrize("name", some(CASES, 2))
def test_logits_are_those_of_transformers(tmp_path: Path, name: str, case: str) -> None:
    config, tensors, allowed = CASES[name]
    model = save(tmp_path, config, tensors, case)
    with torch.no_grad():
        want = model(torch.tensor([TOKENS])).logits[0].numpy()
    with open_model_file(tmp_path) as file:
        got = Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64)).logits(TOKENS)
    assert ((got - want) ** 2).sum() / (want**2).sum() < allowed


def test_codes_of_minus_8_fit_two_levels(tmp_path: Path) -> None:
    """Beside a group's scale that makes 7 the largest weight, -8 would be beyond 8 bits."""

    def tensors(w: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        codes = np.full(w.shape, -8, np.int8)
        scale = np.full((len(w), w.shape[1] // 128), 0.01, np.float32)
        parts = {"weight_packed": words(codes), "weight_scale": scale, "weight_shape": np.array(w.shape)}
        return parts, codes * np.float32(0.01)

    save(tmp_path, CASES["int4-groups"][0], tensors)
    with open_model_file(tmp_path) as file:
        assert np.allclose(dequantize(file.tensor("blk.0.ffn_up.weight")), -0.08, rtol=1e-3)


@pytest.mark.parametrize("value", some([np.nan, np.inf], 1))
@pytest.mark.parametrize("device", ["reference", slow("cpu")])
@pytest.mark.parametrize("name", some(["int8", "int4-groups"], 1))
def test_a_scale_that_is_no_number_ends_in_an_error(
    tmp_path: Path, name: str, device: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    config, tensors, _ = CASES[name]
    save(tmp_path, config, tensors)
    scale = np.full((256, 1 if name == "int8" else 4), 0.01, np.float32)
    scale[3] = value
    edit_tensors(tmp_path, weight_scale=scale)
    with octavo.load(tmp_path, device=device, threads=1) as model:
        assert "blk.0.ffn_down.weight holds NaN or Inf" in caplog.text
        with pytest.raises(NonFiniteError):
            model.logits(TOKENS)


def test_a_folder_is_what_its_file_would_be(folder: Path) -> None:
    with open_model_file(folder) as file:
        kinds = {info.type_name for info in file.tensors.values()}
        assert kinds == {"INT8", "F32"}
        assert file.tensors["blk.1.attn_k.weight"].nbytes == 128 * (256 + 4)
        assert file.files == (str(folder / "model.safetensors"),)
        assert file.metadata.get_int("llama.block_count") == 2
        assert file.metadata.describe("tokenizer.ggml.tokens") == "array of 320 STRING"
        with pytest.raises(OctavoError, match=r"missing from the metadata"):
            file.metadata.get_int("llama.no_such")
        with pytest.raises(OctavoError, match=r"no tensor 'blk\.9"):
            file.tensor("blk.9.attn_q.weight")
    with octavo.load(folder, device="reference") as model:
        assert model.tokenizer.n_vocab == 320


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["quant_method"], "bitsandbytes", ["quant_method", "'bitsandbytes'", "'compressed-tensors'"]),
        (["quant_method"], ..., ["quant_method", "is missing"]),
        (["format"], "marlin-24", ["format", "'marlin-24'", "'int-quantized'"]),
        (["format"], "pack-quantized", ["format", "'pack-quantized'", "'int-quantized'"]),
        (["config_groups"], {}, ["config_groups", "has 0 groups", "1"]),
        (["config_groups"], 3, ["config_groups", "an object"]),
        (["kv_cache_scheme"], {"num_bits": 8}, ["kv_cache_scheme.strategy", "is missing", "'tensor'"]),
        (["kv_cache_scheme"], {"num_bits": 8, "strategy": "tensor", "warp": 1}, ["kv_cache_scheme.warp", "not known"]),
        (["kv_cache_scheme"], {"num_bits": 8, "strategy": "tensor", "symmetric": False}, ["symmetric", "true"]),
        (["config_groups", "group_0", "input_activations", "warp"], 3, ["input_activations.warp", "not known here"]),
        (["sparsity_config"], {"format": "sparse-24-bitmask"}, ["sparsity_config", "null"]),
        (["transform_config"], {"config_groups": {"a": 1}}, ["transform_config", "null"]),
        (["config_groups", "group_0", "targets"], ["LlamaMLP"], ["targets", "LlamaMLP", "Linear"]),
        (["config_groups", "group_0", "weights"], None, ["weights", "is missing", "an object"]),
        (["config_groups", "group_0", "weights", "num_bits"], 16, ["num_bits", "is 16 ", "8 or 4"]),
        (["config_groups", "group_0", "weights", "num_bits"], True, ["num_bits", "true"]),
        (["config_groups", "group_0", "weights", "type"], "nf4", ["type", "'nf4'", "'int' or 'float'"]),
        (["config_groups", "group_0", "weights", "symmetric"], "no", ["symmetric", "'no'", "true"]),
        (["config_groups", "group_0", "weights", "strategy"], "block", ["strategy", "'block'", "'channel'"]),
        (["config_groups", "group_0", "weights", "group_size"], 64, ["group_size", "is 64 ", "null"]),
        (["config_groups", "group_0", "weights", "actorder"], "random", ["actorder", "'random'", "null"]),
        (["config_groups", "group_0", "weights", "dynamic"], True, ["dynamic", "true", "false"]),
        (["config_groups", "group_0", "input_activations"], 8, ["input_activations", "is 8", "an object"]),
        (["config_groups", "group_0", "input_activations", "dynamic"], "local", ["dynamic", "'local'", "true"]),
        (["config_groups", "group_0", "input_activations", "strategy"], "channel", ["strategy", "'token'"]),
        (["config_groups", "group_0", "input_activations", "symmetric"], False, ["symmetric", "true"]),
        (["config_groups", "group_0", "input_activations", "num_bits"], 4, ["num_bits", "(allowed: 8)"]),
        (["config_groups", "group_0", "input_activations", "type"], "nf4", ["type", "'nf4'", "'int'"]),
        (["config_groups", "group_0", "output_activations"], {"num_bits": 8}, ["output_activations", "null"]),
    ],
)
def test_quantizations_that_are_not_known(folder: Path, path: list[str], value: Any, said: list[str]) -> None:
    edit_config(folder, *path, value=value)
    with pytest.raises(ModelError) as error:
        open_model_file(folder)
    text = str(error.value)
    assert f"config.json, quantization_config.{'.'.join(path)}" in text
    assert "\n" not in text
    assert all(word in text for word in said), text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"weight": None}, ["down_proj.weight'", "is missing", "weight_scale"]),
        ({"weight_scale": None}, ["down_proj.weight'", "holds I8", "F32, F16, BF16"]),
        ({"weight": np.zeros((256, 512), np.uint8)}, ["is U8 [256, 512]", "I8 of two dimensions"]),
        ({"weight": np.zeros((256, 0), np.int8)}, ["is I8 [256, 0]"]),
        ({"weight": np.zeros((256, 500), np.int8)}, ["shape [256, 500] contradicts the configuration", "[256, 512]"]),
        ({"weight": np.zeros((128, 512), np.int8)}, ["weight_scale'", "is F32 [256, 1]", "[128, 1] or [128]"]),
        ({"weight_scale": np.zeros((256, 4), np.float32)}, ["is F32 [256, 4]", "floats [256, 1] or [256]"]),
        ({"weight_scale": np.zeros((256, 1), np.int32)}, ["is I32 [256, 1]", "floats"]),
        ({"weight_zero_point": np.zeros((256, 1), np.float32)}, ["weight_zero_point'", "not part of this arch"]),
        ({"input_scale": np.zeros(1, np.float32)}, ["input_scale'", "not part of this architecture"]),
    ],
)
def test_modules_that_are_wrong(folder: Path, changed: dict[str, Any], said: list[str]) -> None:
    edit_tensors(folder, **changed)
    with pytest.raises(ModelError) as error:
        open_model_file(folder)
    assert all(word in str(error.value) for word in said), str(error.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"input_scale": None}, ["input_scale'", "is missing"]),
        ({"input_scale": np.zeros(2, np.float32)}, ["input_scale'", "is F32 [2]", "floats [1] or []"]),
        ({"input_scale": np.zeros(1, np.float32)}, ["blk.0.ffn_down.input_scale", "is 0.0", "above 0"]),
    ],
)
def test_static_scales_that_are_wrong(tmp_path: Path, changed: dict[str, Any], said: list[str]) -> None:
    config = quantization()
    config["config_groups"]["group_0"]["input_activations"] |= {"strategy": "tensor", "dynamic": False}

    def tensors(w: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        parts, values = int8(w)
        return parts | {"input_scale": np.array([0.02], np.float32)}, values

    save(tmp_path, config, tensors)
    with open_model_file(tmp_path) as file:
        found = {n.name: n.static_scale for n in read_model(file).graph().leaves("weight") if n.static_scale}
    assert len(found) == 14
    assert set(found.values()) == {np.float32(0.02)}
    edit_tensors(tmp_path, **changed)
    with pytest.raises(ModelError) as error:
        octavo.load(tmp_path, device="reference")
    assert all(word in str(error.value) for word in said), str(error.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"weight_shape": None}, ["weight_shape'", "is missing"]),
        ({"weight_shape": np.zeros(3, np.int64)}, ["weight_shape'", "is I64 [3]"]),
        ({"weight_packed": np.zeros((256, 60), np.int32)}, ["INT4", "a row of 480 values", "multiples of 128"]),
        ({"weight_packed": np.zeros((256, 64), np.int64)}, ["is I64 [256, 64]", "I32"]),
    ],
)
def test_packed_modules_that_are_wrong(tmp_path: Path, changed: dict[str, Any], said: list[str]) -> None:
    save(tmp_path, CASES["int4"][0], int4)
    edit_tensors(tmp_path, **changed)
    with pytest.raises(ModelError) as error:
        open_model_file(tmp_path)
    assert all(word in str(error.value) for word in said), str(error.value)


def test_values_that_contradict_the_file(tmp_path: Path) -> None:
    """What only the data say is found when a tensor is loaded."""
    save(tmp_path, CASES["int4"][0], int4)
    edit_tensors(tmp_path, weight_shape=np.array([256, 500]))
    with pytest.raises(ModelError, match=r"weight_shape'.*says \[256, 500\].*\[256, 512\]"):
        octavo.load(tmp_path, device="reference")
    save(tmp_path, CASES["int4-bytes"][0], int4_bytes)
    edit_tensors(tmp_path, weight=np.full((256, 512), 9, np.int8))
    with pytest.raises(ModelError, match=r"down_proj\.weight'.*codes from 9 to 9.*-8 to 7"):
        octavo.load(tmp_path, device="reference")
