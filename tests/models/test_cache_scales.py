"""Static scales of the KV cache, as a model file has them: read, used, and refused where they are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelError
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.cache.page_pool import page_bytes
from tests.runtime import tiny

TOKENS = [5, 9, 200, 31, 77, 5]
LARGEST = {f"blk.{i}.cache_{kind}.max": np.array([6, 5], np.float32) for i in range(2) for kind in "kv"}


def write(folder: Path, more: dict[str, F32]) -> str:
    return tiny.write(folder / "model.gguf", weights=tiny.tensors() | more)


def logits(path: str, cache_type: str) -> F32:
    with GGUFFile.open(path) as file:
        config = EngineConfig(n_ctx=64, cache_type=cache_type)  # type: ignore[arg-type]
        return Engine(read_model(file), [ReferenceBackend()], config).logits(TOKENS)


def error(found: F32, exact: F32) -> float:
    return float(((found - exact) ** 2).mean() / (exact**2).mean())


@pytest.mark.parametrize("cache_type", ["int8", "fp8"])
def test_used_by_types_with_scales_of_heads(tmp_path: Path, cache_type: str) -> None:
    exact = logits(write(tmp_path, {}), "f32")
    dynamic = logits(write(tmp_path, {}), cache_type)
    right = logits(write(tmp_path, LARGEST), cache_type)
    cut_off = logits(write(tmp_path, {name: values / 20 for name, values in LARGEST.items()}), cache_type)
    assert not np.array_equal(right, dynamic)
    assert error(right, exact) < 5e-3 < error(cut_off, exact)


CLIPS = {name.replace(".max", ".clip"): values / 20 for name, values in LARGEST.items()}


def test_int8_cuts_off_where_the_file_says(tmp_path: Path) -> None:
    cut_off = logits(write(tmp_path, CLIPS | LARGEST), "int8")
    np.testing.assert_array_equal(cut_off, logits(write(tmp_path, {n: x / 20 for n, x in LARGEST.items()}), "int8"))
    found = logits(write(tmp_path, CLIPS | LARGEST), "fp8")
    np.testing.assert_array_equal(found, logits(write(tmp_path, LARGEST), "fp8"))


def test_magnitudes_to_cut_off_at_need_the_largest(tmp_path: Path) -> None:
    some = dict(list(CLIPS.items())[:2])
    for more, missing in ((CLIPS, "max"), (some | LARGEST, "clip")):
        with pytest.raises(ModelError, match=rf"cache_k\.{missing}.*is missing"):
            logits(write(tmp_path, more), "int8")


def test_no_matter_to_other_types(tmp_path: Path) -> None:
    np.testing.assert_array_equal(logits(write(tmp_path, LARGEST), "f16"), logits(write(tmp_path, {}), "f16"))


def test_a_static_cache_has_no_scales_beside_it(tmp_path: Path) -> None:
    with GGUFFile.open(write(tmp_path, LARGEST)) as file:
        assert page_bytes(read_model(file).graph(cache_type="int8")) == 64 * 2 * 2 * 2 * 16
    with GGUFFile.open(write(tmp_path, {})) as file:
        assert page_bytes(read_model(file).graph(cache_type="int8")) == 64 * 2 * 2 * 2 * (16 + 4)


def _without_one(found: dict[str, F32]) -> None:
    del found["blk.1.cache_v.max"]


def _nan(found: dict[str, F32]) -> None:
    found["blk.1.cache_v.max"] = np.array([1, np.nan], np.float32)


def _zero(found: dict[str, F32]) -> None:
    found["blk.0.cache_k.max"] = np.zeros(2, np.float32)


def _too_many(found: dict[str, F32]) -> None:
    found["blk.0.cache_k.max"] = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_without_one, r"blk\.1\.cache_v\.max.* is missing.*all layers, or for none"),
        (_nan, r"blk\.1\.cache_v\.max.* magnitude is nan.*over 0"),
        (_zero, r"blk\.0\.cache_k\.max.* magnitude is 0\.0"),
        (_too_many, r"blk\.0\.cache_k\.max.*\[3\] contradicts"),
    ],
)
def test_wrong_ones_are_refused(tmp_path: Path, change: Callable[[dict[str, F32]], None], says: str) -> None:
    found = dict(LARGEST)
    change(found)
    with GGUFFile.open(write(tmp_path, found)) as file, pytest.raises(ModelError, match=says):
        read_model(file).graph(cache_type="int8")
