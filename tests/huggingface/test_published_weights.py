"""Checkpoints as other tools publish them: weights decoded to what an independent packer meant, bit for bit, and logits
of the model that has those weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from octavo.backends.cpu import CpuBackend
from octavo.formats import dequantize
from octavo.huggingface import open_model_file
from tests.convert.folders import byte_level, write
from tests.huggingface.published_layouts import COMPUTED, PUBLISHED
from tests.huggingface.published_models import (
    agrees,
    publish,
    read_module,
    same_logits,
    says_what_the_reference_says,
    values_of,
)
from tests.huggingface.writers.compressed_tensors import mxfp4
from tests.models.checkpoints import make
from tests.models.tiny_checkpoints import TABLE
from tests.sampling import slow


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
    with open_model_file(tmp_path) as file:
        assert file.tensors["blk.0.ffn_up_exps.weight"].type_name == "MXFP4"
    same_logits(tmp_path, model)


SOME = ["gptq-v1-asym", "awq-gemm"]


@pytest.mark.parametrize("name", [*SOME, *(slow(name) for name in PUBLISHED if name not in SOME)])
def test_logits_are_those_of_the_dequantized_model(tmp_path: Path, name: str) -> None:
    model = publish(tmp_path, name)
    same_logits(tmp_path, model)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPUTED)
def test_logits_on_the_cpu(tmp_path: Path, name: str) -> None:
    publish(tmp_path, name)
    agrees(tmp_path, CpuBackend(threads=2))
    says_what_the_reference_says(tmp_path, CpuBackend(threads=2), 1e-3)
