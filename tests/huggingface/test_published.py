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
from tests.convert.folders import write
from tests.huggingface.modules import save
from tests.huggingface.published import PUBLISHED
from tests.sampling import slow

TOKENS = [5, 3, 60, 7, 21, 99]


def publish(folder: Path, name: str, case: str = "llama") -> Any:
    """A random model in a layout, and the model that computes with what its tensors stand for."""
    layout = PUBLISHED[name]
    model = save(folder, layout.config, layout.tensors, case, layout.key)
    for file, values in layout.files.items():
        write(folder, file, values)
    return model


def one_module(folder: Path, name: str, w: np.ndarray) -> tuple[dict[str, LazyTensor], np.ndarray]:
    """The tensors that are read of a folder with one module, and the values that they stand for."""
    layout, module = PUBLISHED[name], "model.layers.0.mlp.down_proj"
    parts, want = layout.tensors(w)
    stored = {f"{module}.{end}": np.ascontiguousarray(part) for end, part in parts.items()}
    safetensors.numpy.save_file(stored, folder / "model.safetensors")
    write(folder, "config.json", {layout.key: layout.config} if layout.config else {})
    for file, values in layout.files.items():
        write(folder, file, values)
    checkpoint = Checkpoint.open(folder)
    read = stored_tensors(checkpoint, Config(checkpoint.config, checkpoint.path("config.json")), lambda name: False)
    return {name.removeprefix(f"{module}."): tensor for name, tensor in read.items()}, want


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
    tensors, want = one_module(tmp_path, name, w)
    assert tensors["weight"].format.name == PUBLISHED[name].rows
    assert set(tensors) <= {"weight", "scale", "order"}
    np.testing.assert_array_equal(values_of(tensors), want)
    assert np.abs(want - w).max() < 0.1  # the packer packs what it was given


SOME = ["gptq-v1-asym", "awq-gemm"]


@pytest.mark.parametrize("name", [*SOME, *(slow(name) for name in PUBLISHED if name not in SOME)])
def test_logits_are_those_of_the_dequantized_model(tmp_path: Path, name: str) -> None:
    model = publish(tmp_path, name)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    with open_model_file(tmp_path) as file:
        got = Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64, cache_type="f32")).logits(TOKENS)
    assert ((got - logits) ** 2).sum() / (logits**2).sum() < 1e-9


def gpu() -> Backend:
    from octavo.backends.gpu import GpuBackend

    return GpuBackend()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", [CpuBackend, gpu])
@pytest.mark.parametrize("name", PUBLISHED)
def test_backends(tmp_path: Path, name: str, backend: Any) -> None:
    """Logits of kernels against those of the reference with activations rounded as they round them."""
    publish(tmp_path, name)
    config = EngineConfig(n_ctx=64, strict=True)
    with open_model_file(tmp_path) as file:
        reference = ReferenceBackend(quantize_activations=True)
        want = Engine(read_model(file), [reference], EngineConfig(n_ctx=64)).logits(TOKENS)
        got = Engine(read_model(file), [backend()], config).logits(TOKENS)
    assert ((got - want) ** 2).sum() / (want**2).sum() < 1e-3
