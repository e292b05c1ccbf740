"""Importance matrices: means, merging, the GGUF file as the gguf package sees it, the older file, and broken files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from octavo.errors import FileError, OctavoError
from octavo.io.gguf import write_gguf
from octavo.quantizers.imatrix import Imatrix

DENSE, EXPERTS = "blk.0.attn_q.weight", "blk.0.ffn_gate_exps.weight"


def example() -> Imatrix:
    matrix = Imatrix(datasets=("text.txt",), chunk_count=2, chunk_size=8)
    matrix.add(DENSE, np.array([16, 32, 0, 8], np.float32), 16)
    matrix.add(EXPERTS, np.array([[4, 8], [0, 0], [3, 6]], np.float32), np.array([4, 0, 3]))
    return matrix


def test_importance_is_the_mean_square() -> None:
    matrix = example()
    np.testing.assert_array_equal(matrix.importance(DENSE), np.float32([1, 2, 0, 0.5]))
    np.testing.assert_array_equal(matrix.importance(DENSE, (7, 4)), np.float32([1, 2, 0, 0.5]))
    np.testing.assert_array_equal(matrix.importance(EXPERTS, (3, 5, 2)), np.float32([[1, 2], [1, 1], [1, 2]]))
    assert matrix.importance("blk.9.attn_q.weight") is None


def test_no_activation_is_no_importance() -> None:
    matrix = Imatrix()
    matrix.add(DENSE, np.zeros(4), 0)
    assert matrix.importance(DENSE) is None


@pytest.mark.parametrize("shape", [(7, 5), (4,), (3, 7, 4), (7, 2, 2)])
def test_importance_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(FileError, match=r"attn_q.*importances do not fit a weight"):
        example().importance(DENSE, shape)


def test_sums_of_two_models_do_not_add() -> None:
    other = Imatrix()
    other.add(DENSE, np.ones(5), 1)
    with pytest.raises(FileError, match=r"attn_q"):
        example().merge(other)


def test_merge_adds_sums_and_counts() -> None:
    other = Imatrix(datasets=("more.txt",), chunk_count=3, chunk_size=8)
    other.add(DENSE, np.array([4, 8, 20, 2], np.float32), 4)
    other.add("output.weight", np.ones(4), 4)
    first = example()
    merged = first.merge(other)
    np.testing.assert_array_equal(merged.importance(DENSE), np.float32([1, 2, 1, 0.5]))
    assert merged.importance("output.weight") is not None
    assert (merged.datasets, merged.chunk_count, merged.chunk_size) == (("text.txt", "more.txt"), 5, 8)
    np.testing.assert_array_equal(first.importance(DENSE), np.float32([1, 2, 0, 0.5]))


def test_saved_file_is_what_other_programs_expect(tmp_path: Path) -> None:
    example().save(tmp_path / "imatrix.gguf")
    reader = GGUFReader(tmp_path / "imatrix.gguf")
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["text.txt"]
    for key, value in (("chunk_count", 2), ("chunk_size", 8)):
        field = reader.fields[f"imatrix.{key}"]
        assert (field.contents(), field.types[0].name) == (value, "UINT32")
    found = {t.name: (t.tensor_type.name, t.shape.tolist(), t.data.ravel().tolist()) for t in reader.tensors}
    assert found == {
        f"{DENSE}.in_sum2": ("F32", [4], [16, 32, 0, 8]), f"{DENSE}.counts": ("F32", [1], [16]),
        f"{EXPERTS}.in_sum2": ("F32", [2, 3], [4, 8, 0, 0, 3, 6]), f"{EXPERTS}.counts": ("F32", [1, 3], [4, 0, 3]),
    }


def test_load_gives_what_was_saved(tmp_path: Path) -> None:
    example().save(tmp_path / "imatrix.gguf")
    read, made = Imatrix.load(tmp_path / "imatrix.gguf"), example()
    assert (read.datasets, read.chunk_count, read.chunk_size) == (made.datasets, made.chunk_count, made.chunk_size)
    assert read.entries.keys() == made.entries.keys()
    for name, entry in made.entries.items():
        np.testing.assert_array_equal(read.entries[name].sums, entry.sums)
        np.testing.assert_array_equal(read.entries[name].counts, entry.counts)


def test_a_matrix_of_no_text_has_a_dataset_all_the_same(tmp_path: Path) -> None:
    """llama-quantize reads the first without looking whether there is one."""
    matrix = example()
    matrix.datasets = ()
    matrix.save(tmp_path / "imatrix.gguf")
    assert GGUFReader(tmp_path / "imatrix.gguf").fields["imatrix.datasets"].contents() == [""]


def test_one_count_goes_for_all_rows(tmp_path: Path) -> None:
    tensors = {"w.weight.in_sum2": np.float32([[2, 4], [6, 8]]), "w.weight.counts": np.float32([2])}
    write_gguf(tmp_path / "m.gguf", "imatrix", {"general.type": "imatrix"}, tensors)
    np.testing.assert_array_equal(Imatrix.load(tmp_path / "m.gguf").importance("w.weight"), [[1, 2], [3, 4]])


SUMS, COUNTS = f"{DENSE}.in_sum2", f"{DENSE}.counts"
GOOD = {SUMS: np.float32([1, 2]), COUNTS: np.float32([2])}
HOSTILE = {
    "another file": ({"general.type": "model"}, GOOD, "general.type.*holds a model"),
    "no tensors of it": ({}, {"token_embd.weight": np.float32([1])}, "has no importances"),
    "no counts": ({}, {SUMS: GOOD[SUMS]}, "counts.*is missing"),
    "no sums": ({}, {COUNTS: GOOD[COUNTS]}, "in_sum2.*is missing"),
    "half precision": ({}, {**GOOD, SUMS: np.float16([1, 2])}, "in_sum2.*stored as F16"),
    "NaN": ({}, {**GOOD, SUMS: np.float32([1, np.nan])}, "in_sum2.*holds nan"),
    "Inf": ({}, {**GOOD, SUMS: np.float32([np.inf, 2])}, "in_sum2.*holds inf"),
    "negative sum": ({}, {**GOOD, SUMS: np.float32([1, -2])}, "in_sum2.*holds -2"),
    "negative count": ({}, {**GOOD, COUNTS: np.float32([-2])}, "counts.*holds -2"),
    "NaN count": ({}, {**GOOD, COUNTS: np.float32([np.nan])}, "counts.*holds nan"),
    "count of 0": ({}, {**GOOD, COUNTS: np.float32([0])}, "counts.*a count of 0"),
    "too many counts": ({}, {**GOOD, COUNTS: np.float32([1, 1, 1])}, "3 counts.*allowed: 1 or 1"),
    "negative chunks": ({"imatrix.chunk_count": -3}, GOOD, "imatrix.chunk_count.*-3"),
    "chunks in words": ({"imatrix.chunk_count": "many"}, GOOD, "imatrix.chunk_count.*STRING"),
    "datasets of numbers": ({"imatrix.datasets": [1, 2]}, GOOD, "imatrix.datasets.*I32"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file(tmp_path: Path, case: str) -> None:
    keys, tensors, message = HOSTILE[case]
    write_gguf(tmp_path / "m.gguf", "imatrix", {"general.type": "imatrix"} | keys, tensors)
    with pytest.raises(OctavoError, match=message) as caught:
        Imatrix.load(tmp_path / "m.gguf")
    assert str(tmp_path / "m.gguf") in str(caught.value)


def legacy(*entries: tuple[bytes, int, list[float]], count: int | None = None, end: bytes = b"") -> bytes:
    """An imatrix.dat of (name, calls, values)."""
    out = struct.pack("<i", len(entries) if count is None else count)
    for name, calls, values in entries:
        out += struct.pack("<i", len(name)) + name + struct.pack(f"<ii{len(values)}f", calls, len(values), *values)
    return out + end


def load_bytes(folder: Path, data: bytes) -> Imatrix:
    (folder / "imatrix.dat").write_bytes(data)
    return Imatrix.load(folder / "imatrix.dat")


def test_legacy_file(tmp_path: Path) -> None:
    end = struct.pack("<ii", 10, 8) + b"text.txt"
    entries = (DENSE.encode(), 10, [10.0, 20.0]), (EXPERTS.encode(), 2, [2.0, 4.0, 6.0, 8.0])
    read = load_bytes(tmp_path, legacy(*entries, end=end))
    np.testing.assert_array_equal(read.importance(DENSE, (3, 2)), [1, 2])
    np.testing.assert_array_equal(read.importance(EXPERTS, (2, 3, 2)), [[1, 2], [3, 4]])
    assert (read.datasets, read.chunk_count) == (("text.txt",), 10)


def test_legacy_file_without_an_end(tmp_path: Path) -> None:
    read = load_bytes(tmp_path, legacy((DENSE.encode(), 10, [10.0, 20.0])))
    assert (read.datasets, read.chunk_count) == ((), 0)


WHOLE = legacy((b"w.weight", 1, [1.0, 2.0]))
HOSTILE_LEGACY = {
    "empty": (b"", "magic"),
    "no entries": (struct.pack("<i", 0), "magic"),
    "negative entries": (struct.pack("<i", -1) + WHOLE[4:], "magic"),
    "more entries than fit": (struct.pack("<i", 1 << 30) + WHOLE[4:], "magic"),
    "name past the end": (WHOLE[:4] + struct.pack("<i", 1000) + WHOLE[8:], "entry 1 of 1 name"),
    "name of a negative length": (WHOLE[:4] + struct.pack("<i", -1) + WHOLE[8:], "name length.*4294967295"),
    "name not UTF-8": (legacy((b"\xff\xfe", 1, [1.0, 2.0])), "not UTF-8"),
    "values past the end": (WHOLE[:-4], "values: needs 8 bytes"),
    "no values": (legacy((b"w", 1, []), end=b"\0" * 12), "value count.*allowed"),
    "no calls": (legacy((b"w", 0, [1.0])), "calls.*0"),
    "NaN": (legacy((b"w", 1, [float("nan")])), "holds nan"),
    "twice": (legacy((b"w", 1, [1.0]), (b"w", 1, [1.0])), "duplicate entry"),
    "cut in the end": (WHOLE + b"\1\0\0", "end chunk count.*needs 4"),
    "text name past the end": (WHOLE + struct.pack("<ii", 3, 99), "text name: needs 99 bytes"),
}


@pytest.mark.parametrize("case", HOSTILE_LEGACY)
def test_hostile_legacy_file(tmp_path: Path, case: str) -> None:
    data, message = HOSTILE_LEGACY[case]
    with pytest.raises(FileError, match=message) as caught:
        load_bytes(tmp_path, data)
    assert caught.value.file == str(tmp_path / "imatrix.dat")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.gguf"):
        Imatrix.load(tmp_path / "none.gguf")
