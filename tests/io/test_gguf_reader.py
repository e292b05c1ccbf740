"""Reading valid files: metadata, tensors, versions, and what happens when the file changes underneath."""

from __future__ import annotations

import os
from pathlib import Path

import gguf as oracle
import gguf_builder as b
import numpy as np
import pytest
from gguf_target import exercise, input_path, seeds
from tests.limits import processor_time

from octavo.errors import GGUFError
from octavo.formats import dequantize
from octavo.io.gguf import GGUFFile, ValueType

DTYPES = {
    b.U8: "u1", b.I8: "i1", b.U16: "u2", b.I16: "i2", b.U32: "u4", b.I32: "i4",
    b.U64: "u8", b.I64: "i8", b.F32: "f4", b.F64: "f8",
}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("version", [2, 3])
def test_header_tensor_and_values(path: Path, version: int) -> None:
    write(path, b.gguf([b.ARCH], [b.WEIGHT], b.DATA, version=version))
    with GGUFFile.open(path) as file:
        assert (file.path, file.version, file.alignment, file.nbytes) == (str(path), version, 32, 64)
        assert dict(file.metadata) == {"general.architecture": "llama"}
        info, tensor = file.tensors["a"], file.tensor("a")
        assert (info.shape, info.gguf_id, info.type_name, info.size, info.nbytes) == ((2, 8), 0, "F32", 16, 64)
        assert (info.offset, info.file) == (path.stat().st_size - 64, str(path))
        np.testing.assert_array_equal(tensor.data.view("<f4"), np.arange(16, dtype="f4").reshape(2, 8))


@pytest.mark.parametrize("kind", DTYPES)
def test_numbers_of_every_type(path: Path, kind: int) -> None:
    dtype = np.dtype(DTYPES[kind])
    edges = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    values = [edges.min.item() if hasattr(edges.min, "item") else edges.min, 0, edges.max]
    pairs = [b.pair(f"k{i}", kind, v) for i, v in enumerate(values)] + [
        b.raw_pair("all", b.ARRAY, b.array(kind, values))
    ]
    with GGUFFile.open(write(path, b.gguf(pairs))) as file:
        metadata = file.metadata
        integer = dtype.kind in "iu"
        for i, v in enumerate(values):
            assert metadata[f"k{i}"] == v
            assert (metadata.get_int if integer else metadata.get_float)(f"k{i}") == v
        array = (metadata.get_ints if integer else metadata.get_floats)("all")
        assert array.dtype == dtype
        assert array.tolist() == values
        assert metadata.describe("all") == f"array of 3 {ValueType(kind).name}"


def test_bools_strings_and_nested_arrays(path: Path) -> None:
    nested = (
        b.ARRAY.to_bytes(4, "little") + (2).to_bytes(8, "little") + b.array(b.U8, [1]) + b.array(b.STRING, ["x", "é"])
    )
    pairs = [
        b.pair("yes", b.BOOL, True),
        b.raw_pair("bools", b.ARRAY, b.array(b.BOOL, [True, False])),
        b.pair("text", b.STRING, "naïve"),
        b.raw_pair("texts", b.ARRAY, b.array(b.STRING, ["a", "", b"\xc3"])),
        b.raw_pair("nested", b.ARRAY, nested),
        b.raw_pair("none", b.ARRAY, b.array(b.STRING, [])),
    ]
    with GGUFFile.open(write(path, b.gguf(pairs))) as file:
        m = file.metadata
        assert list(m) == ["yes", "bools", "text", "texts", "nested", "none"]
        assert m.get_bool("yes") is True
        assert m.get_bools("bools").tolist() == [True, False]
        assert (m.get_str("text"), m.get_bytes("text")) == ("naïve", "naïve".encode())
        assert m.get_strs("texts") == m["texts"] == ["a", "", "\\xc3"]
        assert m.get_bytes_list("texts") == [b"a", b"", b"\xc3"]
        assert (m["nested"][0].tolist(), m["nested"][1]) == ([1], ["x", "é"])
        assert m.get_strs("none") == []


@pytest.mark.parametrize(
    ("accessor", "key", "found", "wanted"),
    [
        ("int", "f", "F32", "an integer"),
        ("int", "a", "array of 1 U32", "an integer"),
        ("int", "b", "BOOL", "an integer"),
        ("float", "i", "U32", "a float"),
        ("bool", "i", "U32", "a bool"),
        ("str", "i", "U32", "a string"),
        ("bytes", "i", "U32", "a string"),
        ("ints", "i", "U32", "an array of integers"),
        ("floats", "a", "array of 1 U32", "an array of floats"),
        ("bools", "a", "array of 1 U32", "an array of bools"),
        ("strs", "a", "array of 1 U32", "an array of strings"),
        ("bytes_list", "s", "STRING", "an array of strings"),
    ],
)
def test_wrong_type_and_missing_key(path: Path, accessor: str, key: str, found: str, wanted: str) -> None:
    pairs = [
        b.pair("i", b.U32, 1), b.pair("f", b.F32, 1.0), b.pair("b", b.BOOL, True), b.pair("s", b.STRING, "x"),
        b.raw_pair("a", b.ARRAY, b.array(b.U32, [1])),
    ]
    with GGUFFile.open(write(path, b.gguf(pairs))) as file:
        get = getattr(file.metadata, f"get_{accessor}")
        with pytest.raises(GGUFError, match=rf"key '{key}': stored as {found} \(allowed: {wanted}\)") as caught:
            get(key)
        assert (caught.value.file, caught.value.offset) == (str(path), file.metadata._entries[key].offset)
        with pytest.raises(GGUFError, match=r"key 'x\.y': missing"):
            get("x.y")
        assert get("x.y", default=None) is None


def test_unknown_tensor_and_closed_file(path: Path) -> None:
    file = GGUFFile.open(write(path, b.gguf([b.ARCH], [b.WEIGHT], b.DATA)))
    with pytest.raises(GGUFError, match="no tensor 'b'"):
        file.tensor("b")
    before = file.tensor("a")
    file.close()
    for read in (lambda: file.tensor("a"), lambda: file.metadata["general.architecture"]):
        with pytest.raises(GGUFError, match="closed"):
            read()
    assert before.data.view("<f4")[1, 7] == 15  # what was handed out can still be read
    used = before._part.args[0]._file
    del before
    assert used.closed


@pytest.mark.parametrize("number", range(len(seeds())))
def test_agrees_with_the_gguf_package(tmp_path: Path, number: int) -> None:
    path = input_path(tmp_path)
    theirs = oracle.GGUFReader(write(path, seeds()[number]))
    assert exercise(path)
    with GGUFFile.open(path) as file:
        fields = {k: f for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
        assert list(file.metadata) == list(fields)
        for key, field in fields.items():
            if key != "nested" and not (field.types[-1] == oracle.GGUFValueType.STRING and _is_not_utf8(field)):
                assert np.array_equal(file.metadata[key], field.contents()), key
        for t in theirs.tensors:
            info = file.tensors[t.name]
            assert (info.shape, info.gguf_id) == (tuple(reversed(t.shape.tolist())), t.tensor_type)
            assert (info.offset, info.nbytes) == (t.data_offset, t.n_bytes)


def _is_not_utf8(field: oracle.ReaderField) -> bool:
    return any(b"\xff" in bytes(part) for part in (field.parts[i] for i in field.data))


def test_a_large_vocabulary_opens_fast(path: Path) -> None:
    texts = [b.raw_pair(k, b.ARRAY, b.array(b.STRING, [f"{k}{i}" for i in range(150_000)])) for k in "ab"]
    write(path, b.gguf([*texts, b.raw_pair("s", b.ARRAY, b.array(b.F32, [0.0] * 150_000))]))
    with processor_time(0.5):
        file = GGUFFile.open(path)
    with file:
        assert file.metadata.get_strs("b")[149_999] == "b149999"
        assert len(file.metadata.get_floats("s")) == 150_000


def test_tensors_are_read_when_they_are_asked_for_unless_copied(path: Path) -> None:
    with GGUFFile.open(write(path, b.gguf([], [b.WEIGHT], b.DATA))) as file:
        tensor, copy = file.tensor("a"), file.tensor("a", copy=True)
        np.testing.assert_array_equal(tensor.data, copy.data)
        np.testing.assert_array_equal(tensor.stored().rows(slice(1, 2)), copy.data[1:])
        np.testing.assert_array_equal(tensor.take(np.array([1, 0, 1])), copy.data[[1, 0, 1]])
        assert tensor.take(np.array([], int)).shape == (0, 32)
        path.write_bytes(path.read_bytes()[:-4] + b"abcd")
        assert tensor.data[1, -4:].tobytes() == b"abcd"
        assert copy.data[1, -4:].tobytes() != b"abcd"


def test_systems_without_positioned_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv")
    with GGUFFile.open(write(path, b.gguf([b.ARCH], [b.WEIGHT], b.DATA))) as file:
        assert file.tensor("a", copy=True).data.tobytes() == b.DATA
        assert file.metadata["general.architecture"] == "llama"


def test_file_cut_while_open(path: Path) -> None:
    write(path, b.gguf([b.pair("k", b.STRING, "text")], [b.WEIGHT, b.info("b", [8], offset=64)], b.DATA * 2))
    with GGUFFile.open(path) as file:
        before, copy = file.tensor("a"), file.tensor("b", copy=True)
        os.truncate(path, 40)
        for read in (
            lambda: file.tensor("a"),
            lambda: before.data,
            lambda: before.stored().blocks(slice(3, 4)),
            lambda: dequantize(before),
            lambda: file.tensor("b", copy=True),
            lambda: file.metadata["k"],
        ):
            with pytest.raises(GGUFError, match="cut") as caught:
                read()
            assert caught.value.file == str(path)
            assert caught.value.offset is not None
            assert caught.value.field
        assert copy.data.view("<f4")[7] == 7


def test_array_changed_while_open(path: Path) -> None:
    write(path, b.gguf([b.raw_pair("k", b.ARRAY, b.array(b.STRING, ["abc"]))]))
    with GGUFFile.open(path) as file:
        with open(path, "r+b") as f:
            f.seek(24 + 8 + 1 + 4 + 4)
            f.write(b"\xff" * 8)
        with pytest.raises(GGUFError, match="changed while it was open"):
            file.metadata.get_strs("k")
