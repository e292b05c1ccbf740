"""Split sets: found from any shard, refused where one is missing or foreign."""

from __future__ import annotations

from pathlib import Path

import gguf as oracle
import gguf_builder as b
import numpy as np
import pytest

from octavo.errors import GGUFError
from octavo.io.gguf import GGUFFile

COUNT = 3


def shard(no: int, *, said: int | None = None, count: int = COUNT, total: int = COUNT, arch: str = "llama",
          tensor: str | None = None) -> bytes:
    """Shard `no` with one tensor of eight values `no`."""
    pairs = [
        b.pair("split.no", b.U16, no if said is None else said),
        b.pair("split.count", b.U16, count),
        b.pair("split.tensors.count", b.I32, total),
    ]
    if no == 0 or arch != "llama":
        pairs.append(b.pair("general.architecture", b.STRING, arch))
    return b.gguf(pairs, [b.info(tensor or f"t{no}", [8])], np.full(8, no, "<f4").tobytes())


def place(folder: Path, no: int) -> Path:
    return folder / f"model-{no + 1:05d}-of-{COUNT:05d}.gguf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for no in range(COUNT):
        place(tmp_path, no).write_bytes(shard(no))
    return tmp_path


@pytest.mark.parametrize("no", range(COUNT))
def test_any_shard_opens_the_set(folder: Path, no: int) -> None:
    with GGUFFile.open(place(folder, no)) as file:
        assert file.metadata.get_str("general.architecture") == "llama"
        assert file.files == tuple(str(place(folder, i)) for i in range(COUNT))
        assert list(file.tensors) == ["t0", "t1", "t2"]
        assert [file.tensor(t).data.view("<f4")[0] for t in file.tensors] == [0, 1, 2]
        assert [i.file for i in file.tensors.values()] == list(file.files)


@pytest.mark.parametrize("no", range(COUNT))
def test_missing_shard(folder: Path, no: int) -> None:
    place(folder, no).unlink()
    with pytest.raises(GGUFError, match=f"shard {no + 1} of 3 is missing") as caught:
        GGUFFile.open(place(folder, (no + 1) % COUNT))
    assert caught.value.file == str(place(folder, no))


@pytest.mark.parametrize(
    ("foreign", "field"),
    [
        ({"said": 2}, "split.no"),
        ({"count": 4}, "split.count"),
        ({"total": 9}, "split.tensors.count"),
        ({"arch": "qwen2"}, "general.architecture"),
        ({"tensor": "t0"}, "split.tensors.count"),
    ],
    ids=str,
)
def test_foreign_shard(folder: Path, foreign: dict, field: str) -> None:
    place(folder, 1).write_bytes(shard(1, **foreign))
    with pytest.raises(GGUFError, match="foreign shard") as caught:
        GGUFFile.open(place(folder, 0))
    assert caught.value.file == str(place(folder, 1))
    assert caught.value.field == f"key '{field}'"
    assert caught.value.offset is not None


def test_shard_that_is_a_broken_file(folder: Path) -> None:
    place(folder, 2).write_bytes(b"<html>")
    with pytest.raises(GGUFError, match="is a web page") as caught:
        GGUFFile.open(place(folder, 0))
    assert caught.value.file == str(place(folder, 2))


def test_shard_without_split_keys(folder: Path) -> None:
    place(folder, 2).write_bytes(b.tiny())
    with pytest.raises(GGUFError, match=r"key 'split\.count': missing") as caught:
        GGUFFile.open(place(folder, 0))
    assert caught.value.file == str(place(folder, 2))


@pytest.mark.parametrize("name", ["model.gguf", "model-00002-of-00003.gguf", "model-00001-of-00004.gguf"])
def test_name_that_contradicts_the_shard(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(shard(0))
    with pytest.raises(GGUFError, match=r"ends in -00001-of-00003\.gguf"):
        GGUFFile.open(tmp_path / name)


@pytest.mark.parametrize(("said", "count", "field"), [(3, 3, "split.no"), (0, 65535, "split.count")])
def test_impossible_numbers(tmp_path: Path, said: int, count: int, field: str) -> None:
    place(tmp_path, 0).write_bytes(shard(0, said=said, count=count))
    with pytest.raises(GGUFError) as caught:
        GGUFFile.open(place(tmp_path, 0))
    assert caught.value.field == f"key '{field}'"


@pytest.mark.parametrize(("total", "problem"), [(5, "have 3"), (1, "have 2"), (-1, "-1"), (1 << 17, "131072")])
def test_another_number_of_tensors_than_the_set_says(tmp_path: Path, total: int, problem: str) -> None:
    for no in range(COUNT):
        place(tmp_path, no).write_bytes(shard(no, total=total))
    with pytest.raises(GGUFError) as caught:
        GGUFFile.open(place(tmp_path, 1))
    assert caught.value.field == "key 'split.tensors.count'"
    assert problem in caught.value.problem


def test_one_shard_alone_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(shard(0, count=1, total=1))
    with GGUFFile.open(tmp_path / "model.gguf") as file:
        assert list(file.tensors) == ["t0"]


def test_set_from_the_gguf_package(tmp_path: Path) -> None:
    writer = oracle.GGUFWriter(tmp_path / "big.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full((2, 8), i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(tmp_path / "big-00002-of-00003.gguf") as file:
        assert len(file.files) == 3
        for i in range(5):
            assert (file.tensor(f"t{i}").data.view("<f4") == i).all()
