"""What a run keeps, and what of it another one takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import FileError
from octavo.frontier.kept import Kept


def test_values_are_there_again_for_what_they_were_made_of(tmp_path: Path) -> None:
    path = str(tmp_path / "kept.jsonl")
    Kept(path, "a model")["x"] = [1.5, None]
    assert dict(Kept(path, "a model")) == {"x": [1.5, None]}
    assert dict(Kept(path, "another")) == {}
    assert dict(Kept(path, "a model")) == {}  # the other one began anew


@pytest.mark.parametrize("size", range(1, 60, 7))
def test_a_file_that_was_cut_anywhere(tmp_path: Path, size: int) -> None:
    path = tmp_path / "kept.jsonl"
    kept = Kept(str(path), "a")
    for i in range(3):
        kept[f"weight {i}"] = i
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - size])
    left = dict(Kept(str(path), "a"))
    assert left == {f"weight {i}": i for i in range(len(left))}
    assert len(left) < 3
    again = Kept(str(path), "a")
    again["more"] = 4
    assert dict(Kept(str(path), "a")) == left | {"more": 4}


@pytest.mark.parametrize("at", range(0, 60, 4))
def test_a_byte_that_is_another(tmp_path: Path, at: int) -> None:
    path, values = tmp_path / "kept.jsonl", {"x": 1, "y": [2.5], "z": None}
    kept = Kept(str(path), "a")
    kept.update(values)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x81
    path.write_bytes(raw)
    left = dict(Kept(str(path), "a"))
    assert left == dict(list(values.items())[: len(left)])
    assert len(left) < 3


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        Kept(str(tmp_path), "a")
