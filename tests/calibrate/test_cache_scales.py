"""Static scales of the KV cache, measured and written into a model's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.calibrate.caches.scales import tensors_of, write_scales
from octavo.errors import UsageError
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.models.shared.cache_scales import static_scales
from octavo.quantizers.statistics import ChannelStatistics
from octavo.quantizers.statistics.statistics_file import Statistics
from tests.runtime import tiny

KEYS = np.random.default_rng(0).standard_normal((40, 2, 16)).astype(np.float32) + np.linspace(
    -5, 5, 16, dtype=np.float32
)


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    return read_model(GGUFFile.open(tiny.write(tmp_path / "model.gguf")))


def measured(layers: int = 2) -> Statistics:
    found = Statistics()
    for name in (f"blk.{i}.cache_{kind}" for i in range(layers) for kind in "kv"):
        found.caches[name] = ChannelStatistics(2, 16, name)
        found.caches[name].add(KEYS)
    return found


def test_no_key_that_was_measured_is_cut_off(spec: ModelSpec, tmp_path: Path) -> None:
    out = tmp_path / "scaled.gguf"
    write_scales(spec, measured(), out)
    with GGUFFile.open(out) as file:
        written = read_model(file)
        found = static_scales(file, written.hparams, "int8")
        for key in spec.file.metadata:
            np.testing.assert_array_equal(written.file.metadata[key], spec.file.metadata[key])
        for name in spec.file.tensors:
            np.testing.assert_array_equal(file.tensor(name).data, spec.file.tensor(name).data)
    for scales in (found[1, "k"], found[1, "v"]):
        np.testing.assert_allclose(scales * 127, np.abs(KEYS).max(axis=(0, 2)), rtol=1e-6)


def test_written_again_they_are_replaced(spec: ModelSpec, tmp_path: Path) -> None:
    write_scales(spec, measured(), tmp_path / "once.gguf")
    with GGUFFile.open(tmp_path / "once.gguf") as file:
        write_scales(read_model(file), measured(), tmp_path / "twice.gguf")
        with pytest.raises(UsageError, match="is the model that is read"):
            write_scales(read_model(file), measured(), tmp_path / "once.gguf")
    assert (tmp_path / "once.gguf").read_bytes() == (tmp_path / "twice.gguf").read_bytes()


def test_statistics_of_another_model(spec: ModelSpec) -> None:
    with pytest.raises(UsageError, match=r"no statistics of blk\.1\.cache_k"):
        tensors_of(spec, measured(1))
