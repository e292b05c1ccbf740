"""Modules that the libraries themselves wrote (tests/data/published): weights are what these decode.

Each file holds one module of a random matrix [32, 128], packed by the library that its metadata names, with the version
and the configuration, and the SHA-256 of the float32 values that the library decodes. Recorded with

    auto-gptq 0.7.1             QuantLinear.pack of qlinear_cuda; the values are those that it was given, on its grid
    autoawq 0.2.7.post3         WQLinear_GEMM.from_linear, dequantize_gemm
    compressed-tensors 0.12.2   compress_weight of each compressor, dequantize with scales in float32
    mlx 0.32.4                  quantize, dequantize with scales in float32
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from octavo.huggingface.layouts.module_tensors import stored_tensors
from octavo.io.safetensors import Checkpoint
from octavo.models.shared.config import Config
from tests.convert.folders import write
from tests.huggingface.published_models import values_of
from tests.huggingface.writers.codes import E2M1

FILES = sorted((Path(__file__).parents[1] / "data" / "published").glob("*.safetensors"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_values_are_those_of_the_library(tmp_path: Path, path: Path) -> None:
    with safe_open(path, framework="numpy") as file:
        said = file.metadata()
    key = "quantization" if said["library"] == "mlx" else "quantization_config"
    write(tmp_path, "config.json", {key: json.loads(said["config"])})
    (tmp_path / "model.safetensors").write_bytes(path.read_bytes())
    checkpoint = Checkpoint.open(tmp_path)
    tensors = stored_tensors(checkpoint, Config(checkpoint.config, "config.json"), lambda name: False)
    got = values_of({name.lstrip("."): tensor for name, tensor in tensors.items()})
    assert got.shape == (32, 128)
    if path.stem == "ct-nvfp4":  # which multiplies the two scales first, and rounds that
        want = nvfp4(path)
        np.testing.assert_allclose(got, want, rtol=2e-7)
        got = want
    assert hashlib.sha256(np.ascontiguousarray(got)).hexdigest() == said["sha256"]


def nvfp4(path: Path) -> np.ndarray:
    """e2m1 * (scale / global scale), from the file's tensors."""
    with safe_open(path, framework="pt") as file:
        codes, scale, whole = (file.get_tensor(f"weight_{end}") for end in ("packed", "scale", "global_scale"))
    pairs = codes.numpy()
    numbers = E2M1[np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(32, 128)]
    return numbers * np.repeat(scale.float().numpy() / whole.numpy(), 16, axis=1)
