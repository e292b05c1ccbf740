"""Static scales of the KV cache, as a model file has them: read, used, and refused where they are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelError
from octavo.formats.cache import CacheConstants
from octavo.formats.spec import F32
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
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


CENTERS = {f"blk.{i}.cache_k.center": np.linspace(-3, 3, 32, dtype=np.float32) for i in range(2)}


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


def test_a_center_of_keys_leaves_attention_as_it_is(tmp_path: Path) -> None:
    wide = LARGEST | {f"blk.{i}.cache_k.max": np.array([9, 9], np.float32) for i in range(2)}
    found = logits(write(tmp_path, wide | CENTERS), "int8")
    assert not np.array_equal(found, logits(write(tmp_path, wide), "int8"))
    assert error(found, logits(write(tmp_path, {}), "f32")) < 5e-3


@pytest.mark.parametrize("cache_type", ["int8", "fp8"])
def test_a_center_goes_with_dynamic_scales(tmp_path: Path, cache_type: str) -> None:
    found = logits(write(tmp_path, CENTERS), cache_type)
    assert not np.array_equal(found, logits(write(tmp_path, {}), cache_type))
    assert error(found, logits(write(tmp_path, {}), "f32")) < 5e-3


@pytest.mark.parametrize("unlike", [{"cap": 30.0}, {"sinks": constant(np.zeros(4, np.float32), "sinks")}])
def test_a_center_is_refused_where_softmax_sees_it(unlike: dict[str, Any]) -> None:
    held = CacheConstants(np.ones(2, np.float32), np.zeros((2, 16), np.float32))
    builder = GraphBuilder("int8", static={(0, "k"): held, (0, "v"): CacheConstants(held.scale)})
    q, k = (Node("input", (), ("tokens", heads, 16), "f32", name="x") for heads in (4, 2))
    builder.attention(q, k, k, 0, 1.0)
    with pytest.raises(ModelError, match=r"blk\.0\.cache_k\.center.* no cap and no sinks"):
        builder.attention(q, k, k, 0, 1.0, **unlike)


def test_no_matter_to_other_types(tmp_path: Path) -> None:
    np.testing.assert_array_equal(logits(write(tmp_path, LARGEST), "f16"), logits(write(tmp_path, {}), "f16"))


def test_a_static_cache_has_no_scales_beside_it(tmp_path: Path) -> None:
    with GGUFFile.open(write(tmp_path, LARGEST)) as file:
        assert page_bytes(read_model(file).graph(cache_type="int8")) == 64 * 2 * 2 * 2 * 16
    with GGUFFile.open(write(tmp_path, {})) as file:
        assert page_bytes(read_model(file).graph(cache_type="int8")) == 64 * 2 * 2 * 2 * (16 + 4)


def _without_one(found: dict[str, F32]) -> None:
    del found["blk.1.cache_v.max"]


def _centers_of_a_layer(found: dict[str, F32]) -> None:
    found["blk.1.cache_k.center"] = np.zeros(32, np.float32)


def _infinite_center(found: dict[str, F32]) -> None:
    found |= CENTERS | {"blk.1.cache_k.center": np.full(32, np.inf, np.float32)}


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
        (_centers_of_a_layer, r"blk\.0\.cache_k\.center.* is missing.*centers for all layers"),
        (_infinite_center, r"blk\.1\.cache_k\.center.* NaN or Inf"),
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
