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
from octavo.formats import dequantize
from octavo.graph.protocol import Backend
from octavo.huggingface import open_model_file
from octavo.huggingface.layouts.stored import stored_tensors
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import Checkpoint
from octavo.models import read_model
from octavo.models.config import Config
from octavo.runtime.engine import Engine, EngineConfig
from tests.convert.folders import byte_level, write
from tests.huggingface.modules import save
from tests.huggingface.published import COMPUTED, PUBLISHED, Published
from tests.huggingface.writers.compressed import mxfp4
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


def read_module(
    folder: Path, layout: Published, parts: dict[str, np.ndarray], name: str = "mlp.down_proj", **sizes: int
) -> dict[str, LazyTensor]:
    """The tensors that are read of a folder with one module of these; `sizes` are in config.json."""
    module = f"model.layers.0.{name}"
    stored = {f"{module}.{end}": np.asarray(part, order="C") for end, part in parts.items()}
    safetensors.numpy.save_file(stored, folder / "model.safetensors")
    write(folder, "config.json", {**sizes, **({layout.key: layout.config} if layout.config else {})})
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
@pytest.mark.parametrize("name", COMPUTED)
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
