"""Statistics of channels against NumPy, their file, and files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import FileError, NonFiniteError, UsageError
from octavo.io.safetensors import SafetensorsFile, TensorHead, write_safetensors
from octavo.quantizers.statistics import ChannelStatistics
from octavo.quantizers.statistics.channels import FIELDS
from octavo.quantizers.statistics.statistics_file import Statistics

X = (np.random.default_rng(0).standard_normal((1300, 2, 40)) * np.arange(1, 41)).astype(np.float32)
NAME = "blk.0.attn_q.weight"


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    """The fields of vectors [T, K], in float64."""
    wide = x.astype(np.float64)
    return {
        "absmax": np.abs(wide).max(axis=0), "mean": wide.mean(axis=0), "mean_abs": np.abs(wide).mean(axis=0),
        "mean_square": np.square(wide).mean(axis=0), "min": wide.min(axis=0), "max": wide.max(axis=0),
    }


def statistics(*parts: np.ndarray) -> ChannelStatistics:
    found = ChannelStatistics(2, 40, NAME)
    for part in parts:
        found.add(part)
    return found


def test_fields() -> None:
    found = statistics(X[:700], X[700:701], X[701:])
    assert found.tokens.tolist() == [1300, 1300]
    for row in range(2):
        for key, want in expected(X[:, row]).items():
            np.testing.assert_allclose(found.fields()[key][row], want, rtol=1e-5, atol=1e-4, err_msg=key)


def test_rows_have_tokens_of_their_own() -> None:
    found = ChannelStatistics(3, 40, NAME)
    found.add(X[:9, 0], 0)
    found.add(X[:5, 1], 2)
    found.add(X[:0, 1], 1)
    assert found.tokens.tolist() == [9, 0, 5]
    assert not any(field[1].any() for field in found.fields().values())
    np.testing.assert_allclose(found.mean_square[2], expected(X[:5, 1])["mean_square"], rtol=1e-5)


def test_merged() -> None:
    found, other = statistics(X[:300]), statistics(X[300:])
    found.merge(other)
    for key, field in statistics(X).fields().items():
        np.testing.assert_allclose(found.fields()[key], field, rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match=r"\[1, 40\] and \[2, 40\]"):
        found.merge(ChannelStatistics(1, 40))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none(value: float) -> None:
    x = X[:4].copy()
    x[2, 1, 7] = value
    with pytest.raises(NonFiniteError, match=r"blk\.0\.attn_q\.weight"):
        statistics(x)


def test_vectors_of_another_shape() -> None:
    with pytest.raises(UsageError, match=r"\[4, 41\] \(allowed: \[4, 2, 40\]\)"):
        statistics(np.zeros((4, 41), np.float32))


def saved(path: Path) -> Statistics:
    """A file with an input that two weights read, experts and a cache."""
    plain, experts, cache = ChannelStatistics(1, 40, NAME), ChannelStatistics(3, 40), statistics(X)
    plain.add(X[:, :1])
    experts.add(X[:, 0], 2)
    inputs = {NAME: plain, "blk.0.ffn_up_exps.weight": experts}
    made = Statistics(inputs, {"blk.0.attn_k.weight": NAME}, {"blk.0.cache_k": cache}, {"text": "wiki.txt"})
    made.save(path)
    return made


def test_the_file(tmp_path: Path) -> None:
    made, read = saved(tmp_path / "s.safetensors"), Statistics.load(tmp_path / "s.safetensors")
    assert (read.about, read.shared, list(read.inputs)) == (made.about, made.shared, list(made.inputs))
    for name, found in (made.inputs | made.caches).items():
        again = (read.inputs | read.caches)[name]
        assert again.tokens.tolist() == found.tokens.tolist()
        for key in FIELDS:
            np.testing.assert_array_equal(again.fields()[key], found.fields()[key], err_msg=f"{name} {key}")
    stored = SafetensorsFile.open(tmp_path / "s.safetensors").tensors
    assert stored[f"{NAME}.absmax"].shape == (40,)
    assert stored["blk.0.ffn_up_exps.weight.absmax"].shape == (3, 40)
    assert read.starved() == [("blk.0.ffn_up_exps.weight", 0, 0), ("blk.0.ffn_up_exps.weight", 1, 0)]
    assert read.of("blk.0.attn_k.weight") is read.inputs[NAME]
    with pytest.raises(FileError, match="has no statistics"):
        read.of("blk.9.attn_q.weight")


def test_parts_of_a_model_merge(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "a.safetensors"), Statistics({}, {"blk.0.attn_k.weight": "other.weight"})
    whole = Statistics()
    whole.merge(first)
    assert whole.inputs.keys() == first.inputs.keys()
    with pytest.raises(UsageError, match="shares its input with"):
        whole.merge(second)


def changed(path: Path, tensors: dict[str, np.ndarray | None], metadata: dict[str, str] | None = None) -> Path:
    """The file of `saved` with other tensors (None: without) and metadata."""
    saved(path)
    file = SafetensorsFile.open(path)
    values = {n: t.array() if t.dtype == "I64" else t.floats() for n, t in file.tensors.items()} | tensors
    kept = {n: v for n, v in values.items() if v is not None}
    kinds = {"int64": "I64", "float32": "F32"}
    heads = [TensorHead(n, kinds[str(v.dtype)], v.shape) for n, v in kept.items()]
    write_safetensors(path, heads, kept.values(), {**file.metadata, **(metadata or {})})
    return path


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({}, {"kind": "weights"}, "holds no statistics"),
        ({}, {"shared": "[]"}, "not a JSON object"),
        ({}, {"shared": "{"}, "not a JSON object"),
        ({}, {"shared": json.dumps({"a.weight": "b.weight"})}, "has no statistics"),
        ({f"{NAME}.min": None}, {}, "is missing"),
        ({f"{NAME}.min": np.full(40, np.nan, np.float32)}, {}, "values that are not finite"),
        ({f"{NAME}.min": np.zeros((2, 40), np.float32)}, {}, r"holds \[2, 40\]"),
        ({f"{NAME}.min": np.zeros(39, np.float32)}, {}, "another shape"),
        ({f"{NAME}.mean_abs": np.full(40, -1, np.float32)}, {}, "below 0"),
        ({f"{NAME}.tokens": np.array([-1])}, {}, "holds no counts"),
        ({f"{NAME}.tokens": np.zeros(1, np.float32)}, {}, "holds no counts"),
    ],
)
def test_wrong_files(
    tensors: dict[str, np.ndarray | None], metadata: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = changed(tmp_path / "s.safetensors", tensors, metadata)
    with pytest.raises(FileError, match=message) as raised:
        Statistics.load(path)
    assert str(path) in str(raised.value)
