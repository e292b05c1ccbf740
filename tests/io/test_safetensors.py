"""Safetensors: what is read is what was written, and a broken header is named to the byte or the field."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from octavo.errors import FileError
from octavo.formats import dequantize
from octavo.io.safetensors import SafetensorsFile

DATA = b"\x00\x00\x80\x3f\x00\x00\x00\x40"  # 1.0, 2.0
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def file(tmp_path: Path, header: Any, data: bytes = DATA, *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def test_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    weights = {
        "a": torch.randn(3, 5), "b": torch.randn(2, 4, 6).half(), "c": torch.randn(7).bfloat16(),
        "d": torch.randn(2).double(), "e": torch.tensor(3.0),
    }
    save_file(weights, path, metadata={"format": "pt"})
    opened = SafetensorsFile.open(path)
    assert set(opened.tensors) == set(weights)
    assert opened.tensors["c"].dtype == "BF16"
    for name in "abcd":
        tensor = opened.tensors[name].load()
        assert tensor.shape == tuple(weights[name].shape)
        np.testing.assert_array_equal(dequantize(tensor), weights[name].float().numpy())
    with pytest.raises(FileError, match=r"tensor 'e'.*shape \[\]"):
        opened.tensors["e"].load()


@pytest.mark.parametrize(("header", "says"), [
    ({"a": ENTRY | {"dtype": "F3"}}, "'a' dtype: is F3"),
    ({"a": ENTRY | {"dtype": None}}, "'a' dtype"),
    ({"a": ENTRY | {"dtype": []}}, "'a' dtype: is []"),
    ({"a": ENTRY | {"dtype": {}}}, "'a' dtype: is {}"),
    ({"a": ENTRY | {"shape": {}}}, "'a' shape"),
    ({"a": ENTRY | {"data_offsets": "08"}}, "'a' data_offsets"),
    (b'{"a": 1' + b"0" * 400 + b"}", "401 digits"),
    ({"a": [1]}, "'a' entry: is list"),
    ({"a": ENTRY | {"shape": [-2]}}, "'a' shape"),
    ({"a": ENTRY | {"shape": [2.0]}}, "'a' shape"),
    ({"a": ENTRY | {"shape": [True]}}, "'a' shape"),
    ({"a": ENTRY | {"shape": [1] * 9}}, "'a' shape"),
    ({"a": ENTRY | {"shape": [1 << 62]}}, "'a' shape"),
    ({"a": ENTRY | {"shape": [3]}}, "'a' data_offsets"),
    ({"a": ENTRY | {"data_offsets": [0]}}, "'a' data_offsets"),
    ({"a": ENTRY | {"data_offsets": [0, 1 << 60]}}, "'a' data_offsets"),
    ({"a": ENTRY | {"data_offsets": [8, 16]}}, "'a' data_offsets"),
    ({"a": ENTRY | {"shape": [1], "data_offsets": [4, 8]}}, "no gap, no overlap"),
    ({"a": ENTRY, "b": ENTRY}, "no gap, no overlap"),
    ({"a": ENTRY | {"shape": [1], "data_offsets": [0, 4]}}, "4 bytes after the last tensor"),
    ([1, 2], "header: is list"),
    (b'{"a": 1, "a": 1}', "'a' occurs twice"),
    (b"{nonsense", "header: is not valid JSON"),
    (b"[" * 50_000, "JSON"),
    (b'{"\xff": 1}', "not UTF-8"),
])
def test_headers_that_are_wrong(tmp_path: Path, header: Any, says: str) -> None:
    path = file(tmp_path, header)
    with pytest.raises(FileError) as error:
        SafetensorsFile.open(path)
    assert says in str(error.value)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("length", [0, 1, 10_000, 1 << 30, (1 << 64) - 1])
def test_lengths_that_are_wrong(tmp_path: Path, length: int) -> None:
    with pytest.raises(FileError, match=r"byte 0, header length: a header of"):
        SafetensorsFile.open(file(tmp_path, {"a": ENTRY}, length=length))


def test_a_header_of_many_experts(tmp_path: Path) -> None:
    """A mixture in one file takes several MB: three tensors for each of thousands of matrices."""
    name = "model.layers.{}.mlp.experts.{}.gate_proj.weight_zero_point_and_scale_of_its_groups_" + 300 * "x"
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [8, 8]}
    path = file(tmp_path, {"a": ENTRY, **{name.format(i // 128, i % 128): empty for i in range(12_000)}})
    assert path.stat().st_size > 5 << 20
    assert len(SafetensorsFile.open(path).tensors) == 12_001


@pytest.mark.parametrize("header", [
    b'{"a":[' + b"{}," * 4_000_000 + b"0]}", b'{"a":[' + b"[" * 4_000_000, b"{" + b'"":0,' * 1_000_001 + b'"":0}',
    b'{"__metadata__":{' + b'"" : "",' * 1_000_001 + b'"":""}}',
])
def test_headers_of_too_many_values_are_not_parsed(
    tmp_path: Path, header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.io.safetensors.safetensors_file.parse_object", pytest.fail)
    with pytest.raises(FileError, match="header: has too many keys or values"):
        SafetensorsFile.open(file(tmp_path, header))


@pytest.mark.parametrize("raw", [b"", b"\x10\x00"])
def test_files_that_end_early(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(FileError, match=f"ends after {len(raw)} bytes"):
        SafetensorsFile.open(path)
    with pytest.raises(FileError, match="not a regular file"):
        SafetensorsFile.open(tmp_path)
    with pytest.raises(FileError, match="can't be opened"):
        SafetensorsFile.open(tmp_path / "none")


def test_a_file_that_is_cut_while_it_is_open(tmp_path: Path) -> None:
    path = file(tmp_path, {"a": ENTRY})
    tensor = SafetensorsFile.open(path).tensors["a"]
    np.testing.assert_array_equal(dequantize(tensor.load()), [1, 2])
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(FileError, match=r"tensor 'a': the file was truncated"):
        tensor.load()
    path.unlink()
    with pytest.raises(FileError, match="can't be opened"):
        tensor.load()


def test_integers_are_listed_and_not_loaded(tmp_path: Path) -> None:
    entry = {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}
    tensor = SafetensorsFile.open(file(tmp_path, {"a": entry})).tensors["a"]
    with pytest.raises(FileError, match=r"tensor 'a': holds I64 \(allowed: F32, F16"):
        tensor.load()
