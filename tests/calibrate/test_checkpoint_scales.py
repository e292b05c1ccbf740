"""Static scales of the KV cache, measured and written into checkpoint folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo.calibrate.caches.scales import require_scales, write_scales
from octavo.errors import FileError, UsageError
from octavo.huggingface import CheckpointFile, open_model_file
from octavo.models import ModelSpec, read_model
from octavo.models.shared.cache_scales import static_scales
from octavo.quantizers.statistics import ChannelStatistics
from octavo.quantizers.statistics.statistics_file import Statistics
from tests.huggingface.published_layouts import PUBLISHED
from tests.huggingface.published_models import publish
from tests.huggingface.test_kv_scales import add_scales
from tests.models.embedding_checkpoints import KINDS
from tests.models.embedding_checkpoints import save as save_embedding
from tests.models.table import saved
from tests.models.tiny_checkpoints import TABLE


def opened(folder: Path, name: str = "llama") -> ModelSpec:
    """A checkpoint of two layers, made in the folder."""
    saved(folder, TABLE[name])
    return read(folder)


def read(folder: Path) -> ModelSpec:
    return read_model(open_model_file(folder))


def measured(spec: ModelSpec) -> tuple[Statistics, dict[str, float]]:
    """Statistics of all caches, and the largest magnitude of each."""
    found, largest = Statistics(), {}
    for i, cache in enumerate(spec.graph().leaves("cache")):
        _, heads, dim = cache.shape
        values = np.random.default_rng(i).standard_normal((40, heads, dim)).astype(np.float32) + 2
        found.caches[cache.name] = ChannelStatistics(heads, dim, cache.name)
        found.caches[cache.name].add(values)
        largest[cache.name] = float(np.abs(values).max())
    return found, largest


def check(folder: Path, largest: dict[str, float]) -> None:
    """A folder has scales for these magnitudes, and the configuration says so."""
    spec = read(folder)
    for kind, top in (("fp8", 448), ("int8", 127)):
        for (layer, of), held in static_scales(spec.file, spec.hparams, kind).items():
            np.testing.assert_allclose(held * top, largest[f"blk.{layer}.cache_{of}"], rtol=1e-6)
    assert isinstance(spec.file, CheckpointFile)
    assert len(spec.file.kv_scales()) == len(largest)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["kv_cache_scheme"]["type"]) == ("compressed-tensors", "float")


def same_tensors(folder: Path, out: Path) -> None:
    """All tensors but scales are what they were, in files of the same names."""
    for path in folder.glob("*.safetensors"):
        before, after = load_file(path), load_file(out / path.name)
        assert before.keys() - {n for n in before if n.endswith(("k_scale", "v_scale"))} <= after.keys()
        for name in before.keys() & after.keys():
            if not name.endswith(("k_scale", "v_scale")):
                np.testing.assert_array_equal(after[name], before[name])


def test_a_checkpoint_once_more_with_scales(tmp_path: Path) -> None:
    spec = opened(tmp_path / "plain")
    statistics, largest = measured(spec)
    write_scales(spec, statistics, tmp_path / "scaled")
    check(tmp_path / "scaled", largest)
    same_tensors(tmp_path / "plain", tmp_path / "scaled")
    assert (tmp_path / "scaled/tokenizer.json").read_bytes() == (tmp_path / "plain/tokenizer.json").read_bytes()


def test_several_files_and_scales_that_are_there(tmp_path: Path) -> None:
    """The index names the scales, and those of before are gone."""
    folder = tmp_path / "parts"
    publish(folder, "ct-w8a8")
    add_scales(folder, {"k_scale": [0.5], "v_scale": [0.5]})
    whole, names = load_file(folder / "model.safetensors"), ("a.safetensors", "b.safetensors")
    parts: list[dict[str, Any]] = [{}, {}]
    for i, name in enumerate(sorted(whole)):
        parts[i % 2][name] = whole[name]
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name)
    places = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "model.safetensors").unlink()
    spec = read(folder)
    statistics, largest = measured(spec)
    write_scales(spec, statistics, tmp_path / "out")
    check(tmp_path / "out", largest)
    same_tensors(folder, tmp_path / "out")
    written = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())["weight_map"]
    assert written.keys() == places.keys()
    assert not (tmp_path / "out/model.safetensors").exists()


def test_beside_quantized_weights(tmp_path: Path) -> None:
    publish(tmp_path / "w8a8", "ct-w8a8")
    spec = read(tmp_path / "w8a8")
    statistics, largest = measured(spec)
    write_scales(spec, statistics, tmp_path / "out")
    check(tmp_path / "out", largest)
    groups = [json.loads((tmp_path / f / "config.json").read_text())["quantization_config"]["config_groups"]
              for f in ("w8a8", "out")]
    assert groups[0] == groups[1]


def test_what_has_no_place_for_them(tmp_path: Path) -> None:
    publish(tmp_path / "gptq", next(name for name in PUBLISHED if name.startswith("gptq")))
    with pytest.raises(UsageError, match=r"is quantized as gptq.*compressed-tensors, fp8, none, or a GGUF file"):
        require_scales(read(tmp_path / "gptq"), tmp_path / "out")
    spec = opened(tmp_path / "plain")
    with pytest.raises(FileError, match="has files in it"):
        require_scales(spec, tmp_path)
    with pytest.raises(UsageError, match="is the model that is read"):
        require_scales(spec, tmp_path / "plain")
    with pytest.raises(UsageError, match="keys are values too"):
        require_scales(opened(tmp_path / "latent", "deepseek2-v2"), tmp_path / "out")
    save_embedding(tmp_path / "bert", KINDS["bert"])
    with pytest.raises(UsageError, match="an embedding model has no KV cache"):
        require_scales(read(tmp_path / "bert"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
