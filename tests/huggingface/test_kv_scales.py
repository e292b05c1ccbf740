"""Scales of 8-bit caches that published checkpoints have beside their weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import torch

from octavo.cli.inspect.command import summarize
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.formats.spec import F32
from octavo.huggingface import CheckpointFile, open_model_file
from octavo.models import read_model
from octavo.models.shared.cache_scales import static_scales
from tests.huggingface.modules import save
from tests.huggingface.published_layouts import PUBLISHED, Published
from tests.huggingface.published_models import publish, read_module
from tests.huggingface.writers.compressed_tensors import int8

SCALES = {"k_scale": [0.25], "v_scale": [0.125, 0.5]}


def with_scales(folder: Path, scales: dict[str, list[float]]) -> dict[str, F32]:
    """A checkpoint with scales of caches."""
    publish(folder, "ct-w8a8")
    return add_scales(folder, scales)


def add_scales(folder: Path, scales: Mapping[str, npt.ArrayLike]) -> dict[str, F32]:
    """Add scales of caches to each of the two layers of a checkpoint."""
    path = folder / "model.safetensors"
    added = {
        f"model.layers.{i}.self_attn.{name}": np.array(s, np.float32) for i in range(2) for name, s in scales.items()
    }
    whole = {name: torch.from_numpy(scale) for name, scale in added.items()}
    safetensors.torch.save_file(safetensors.torch.load_file(path) | whole, path)
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
        np.testing.assert_array_equal(found[1, "k"], np.float32([0.25, 0.25]))
        np.testing.assert_array_equal(found[1, "v"], np.float32([0.125, 0.5]))
        np.testing.assert_allclose(
            static_scales(file, spec.hparams, "int8")[0, "v"], np.float32([56, 224]) / 127, rtol=1e-6
        )
    convert_checkpoint(tmp_path, tmp_path / "out.gguf")
    with open_model_file(tmp_path / "out.gguf") as file:
        written = static_scales(file, read_model(file).hparams, "fp8")
        assert {key: scale.tolist() for key, scale in written.items()} == {
            (i, kind): want for i in range(2) for kind, want in (("k", [0.25, 0.25]), ("v", [0.125, 0.5]))
        }


@pytest.mark.parametrize(("names", "shape"), [
    (("k_proj.output_scale", "v_proj.output_scale"), (1,)), (("k_scale", "v_scale"), (2, 1, 1)),
])
def test_names_and_shapes_of_scales(tmp_path: Path, names: tuple[str, str], shape: tuple[int, ...]) -> None:
    """Older names, and those of each head as compressed-tensors writes them."""
    publish(tmp_path, "ct-w8a8")
    k, v = np.linspace(0.25, 0.5, shape[0]), np.linspace(0.125, 1, shape[0])
    add_scales(tmp_path, {name: values.reshape(shape) for name, values in zip(names, (k, v), strict=True)})
    with open_model_file(tmp_path) as file:
        found = static_scales(file, read_model(file).hparams, "fp8")
    for kind, values in (("k", k), ("v", v)):
        np.testing.assert_array_equal(found[1, kind], np.broadcast_to(np.float32(values), 2))


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


@pytest.mark.parametrize(("key", "value"), [
    ("kv_cache_quant_algo", "NVFP4"), ("kv_cache_scheme", "NVFP4"),
    ("kv_cache_scheme", {"num_bits": 4, "type": "float", "dynamic": False, "group_size": 16}),
])
def test_scales_of_caches_of_4_bits_are_left_out(
    tmp_path: Path, key: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    layout = PUBLISHED["modelopt-nvfp4"]
    save(tmp_path, {**layout.config, key: value}, layout.tensors)
    add_scales(tmp_path, {"k_proj.k_scale": [0.25], "v_proj.v_scale": [0.125]})
    with open_model_file(tmp_path) as file:
        assert static_scales(file, read_model(file).hparams, "fp8") == {}
    assert "caches of NVFP4 are not known here" in caplog.text


@pytest.mark.parametrize(("scheme", "says"), [
    ({"num_bits": 8, "warp": 3}, "kv_cache_scheme.warp: is 3, which is not known here"),
    ({"num_bits": 6}, "kv_cache_scheme.num_bits: is 6 .allowed: 4 or 8"),
    ({"num_bits": 8, "group_size": 16}, "kv_cache_scheme.group_size: is 16 .allowed: null"),
])
def test_schemes_of_caches_that_are_refused(tmp_path: Path, scheme: dict[str, object], says: str) -> None:
    layout = PUBLISHED["modelopt-nvfp4"]
    save(tmp_path, {**layout.config, "kv_cache_scheme": scheme}, layout.tensors)
    with pytest.raises(ModelError, match=says):
        open_model_file(tmp_path)


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
