"""Checkpoints as other tools publish them: weights decoded to what an independent packer meant, bit for bit, and logits
of the model that has those weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.cli.inspect import summarize
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.graph.protocol import Backend
from octavo.huggingface import CheckpointFile, open_model_file
from octavo.huggingface.layouts.stored import stored_tensors
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import Checkpoint
from octavo.models import read_model
from octavo.models.cache_scales import static_scales
from octavo.models.config import Config
from octavo.runtime.engine import Engine, EngineConfig
from tests.convert.folders import byte_level, write
from tests.huggingface.modules import save
from tests.huggingface.published import PUBLISHED, Published, auto_round_config, gptq_config
from tests.huggingface.writers.codes import Tensors
from tests.huggingface.writers.compressed import fp8, int8, mxfp4, nvfp4, packed
from tests.huggingface.writers.gptq import gptq
from tests.huggingface.writers.mlx import mlx
from tests.models.checkpoints import make
from tests.models.tiny_checkpoints import TABLE
from tests.sampling import slow

TOKENS = [5, 3, 60, 7, 21, 99]


def publish(folder: Path, name: str, case: str = "llama") -> Any:
    """A random model in a layout, and the model that computes with what its tensors stand for."""
    layout = PUBLISHED[name]
    model = save(folder, layout.config, layout.tensors, case, layout.key)
    for file, values in layout.files.items():
        write(folder, file, values)
    return model


def read_module(folder: Path, layout: Published, parts: dict[str, np.ndarray]) -> dict[str, LazyTensor]:
    """The tensors that are read of a folder with one module of these."""
    module = "model.layers.0.mlp.down_proj"
    stored = {f"{module}.{end}": np.asarray(part, order="C") for end, part in parts.items()}
    safetensors.numpy.save_file(stored, folder / "model.safetensors")
    write(folder, "config.json", {layout.key: layout.config} if layout.config else {})
    for file, values in layout.files.items():
        write(folder, file, values)
    checkpoint = Checkpoint.open(folder)
    read = stored_tensors(checkpoint, Config(checkpoint.config, checkpoint.path("config.json")), lambda name: False)
    return {name.removeprefix(f"{module}."): tensor for name, tensor in read.items()}


def values_of(tensors: dict[str, LazyTensor]) -> np.ndarray:
    """A weight in the order of its columns, times its scale."""
    got = dequantize(tensors["weight"].load())
    if "scale" in tensors:
        got = got * dequantize(tensors["scale"].load())
    if "order" in tensors:
        natural = np.empty_like(got)
        natural[:, dequantize(tensors["order"].load()).astype(int)] = got
        return natural
    return got


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_are_those_that_were_packed(tmp_path: Path, name: str) -> None:
    w = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32) / 20
    parts, want = PUBLISHED[name].tensors(w)
    tensors = read_module(tmp_path, PUBLISHED[name], parts)
    assert tensors["weight"].format.name == PUBLISHED[name].rows
    assert set(tensors) - {"input_scale"} <= {"weight", "scale", "order"}
    assert ("input_scale" in tensors) == ("input_scale" in parts)
    if "input_scale" in parts:
        assert dequantize(tensors["input_scale"].load()).tolist() == [np.float32(0.01)]
    np.testing.assert_array_equal(values_of(tensors), want)
    assert np.abs(want - w).max() < 0.1  # the packer packs what it was given


def test_gpt_oss(tmp_path: Path) -> None:
    """Experts' blocks beside weights of floats: logits of the model whose experts are what the blocks stand for."""
    model = make(TABLE["gpt-oss"])
    out: dict[str, np.ndarray] = {}
    for name, parameter in model.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            rows = np.ascontiguousarray(parameter.numpy().swapaxes(1, 2))  # [E, N, K]; gate's and up's in turn
            parts, want = mxfp4(f"{name}_blocks", f"{name}_scales")(rows)
            parts[f"{name}_blocks"] = parts[f"{name}_blocks"].reshape(*rows.shape[:2], -1, 16)
            out |= parts
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(want.swapaxes(1, 2))))
        else:
            out[name] = parameter.numpy()
    safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, tmp_path / "model.safetensors")
    said = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    config = {**model.config.to_dict(), "architectures": [type(model).__name__], "quantization_config": said}
    write(tmp_path, "config.json", config)
    byte_level().save(str(tmp_path / "tokenizer.json"))
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    with open_model_file(tmp_path) as file:
        assert file.tensors["blk.0.ffn_up_exps.weight"].type_name == "MXFP4"
        got = Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64, cache_type="f32")).logits(TOKENS)
    assert ((got - logits) ** 2).sum() / (logits**2).sum() < 1e-9


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
])  # fmt: skip
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


SCALES = {"k_scale": [0.25], "v_scale": [0.125, 0.5]}


def with_scales(folder: Path, scales: dict[str, list[float]]) -> dict[str, F32]:
    """Add scales of caches to each of the two layers of a checkpoint."""
    publish(folder, "ct-w8a8")
    path = folder / "model.safetensors"
    added = {
        f"model.layers.{i}.self_attn.{name}": np.array(s, np.float32) for i in range(2) for name, s in scales.items()
    }
    safetensors.numpy.save_file({**safetensors.numpy.load_file(path), **added}, path)
    return added


def test_scales_of_caches_are_those_of_the_model(tmp_path: Path) -> None:
    added = with_scales(tmp_path, SCALES)
    with open_model_file(tmp_path) as file:
        assert isinstance(file, CheckpointFile)
        assert file.kv_scales() == {name: pytest.approx(scale) for name, scale in added.items()}
        assert summarize(file)["cache_scales"] == 4
        assert summarize(file)["quantized_as"] == "compressed-tensors"
        spec = read_model(file)
        found = static_scales(file, spec.hparams, "fp8")
        np.testing.assert_array_equal(found[1, "k"].scale, np.float32([0.25, 0.25]))
        np.testing.assert_array_equal(found[1, "v"].scale, np.float32([0.125, 0.5]))
        np.testing.assert_allclose(
            static_scales(file, spec.hparams, "int8")[0, "v"].scale, np.float32([56, 224]) / 127, rtol=1e-6
        )
    convert_checkpoint(tmp_path, tmp_path / "out.gguf")
    with open_model_file(tmp_path / "out.gguf") as file:
        written = static_scales(file, read_model(file).hparams, "fp8")
        assert {key: constants.scale.tolist() for key, constants in written.items() if constants.scale is not None} == {
            (i, kind): want for i in range(2) for kind, want in (("k", [0.25, 0.25]), ("v", [0.125, 0.5]))
        }


@pytest.mark.parametrize(
    ("scales", "says"),
    [
        ({"k_scale": [0.5]}, r"cache_v\.max.* is missing"),
        ({"k_scale": [0.5], "v_scale": [0.5] * 3}, "scales of 3 heads.*1, or 2"),
        ({"kv_scale": [0.5], "v_scale": [0.5]}, "is a second scale"),
    ],
)
def test_scales_of_caches_that_do_not_fit(tmp_path: Path, scales: dict[str, list[float]], says: str) -> None:
    with_scales(tmp_path, scales)
    with open_model_file(tmp_path) as file, pytest.raises(ModelError, match=says):
        read_model(file).graph(cache_type="int8")


def test_scales_of_1_say_nothing(tmp_path: Path) -> None:
    with_scales(tmp_path, {"k_scale": [1.0], "v_scale": [1.0]})
    with open_model_file(tmp_path) as file:
        spec = read_model(file)
        assert static_scales(file, spec.hparams, "fp8") == {}


def test_scales_of_caches_beside_weights_as_they_lie(tmp_path: Path) -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    config = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}
    parts = {"weight": np.ones((4, 8), np.float32), "k_scale": np.array([0.5], np.float32)}
    read = read_module(tmp_path, Published(int8(None), config, ""), parts)
    assert {name: tensor.format.name for name, tensor in read.items()} == {"weight": "F32"}


SOME = ["gptq-v1-asym", "awq-gemm"]


@pytest.mark.parametrize("name", [*SOME, *(slow(name) for name in PUBLISHED if name not in SOME)])
def test_logits_are_those_of_the_dequantized_model(tmp_path: Path, name: str) -> None:
    model = publish(tmp_path, name)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    with open_model_file(tmp_path) as file:
        got = Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64, cache_type="f32")).logits(TOKENS)
    assert ((got - logits) ** 2).sum() / (logits**2).sum() < 1e-9


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PUBLISHED)
def test_logits_on_the_cpu(tmp_path: Path, name: str) -> None:
    publish(tmp_path, name)
    agrees(tmp_path, CpuBackend(threads=2))


def agrees(folder: Path, backend: Backend) -> None:
    """Logits of kernels against those of the reference with activations rounded as they round them."""
    with open_model_file(folder) as file:
        reference = ReferenceBackend(quantize_activations=True)
        want = Engine(read_model(file), [reference], EngineConfig(n_ctx=64)).logits(TOKENS)
        got = Engine(read_model(file), [backend], EngineConfig(n_ctx=64, strict=True)).logits(TOKENS)
    assert ((got - want) ** 2).sum() / (want**2).sum() < 1e-3
