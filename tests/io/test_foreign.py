"""Files that are not models: recognized by their first bytes, and those that end too early."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.runtime import tiny

from octavo.errors import FileError
from octavo.huggingface import open_model_file
from octavo.io.safetensors import Checkpoint

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 42\n"
HEADER = json.dumps({"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()


def zipped(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", b"x")
    return path.read_bytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (POINTER, "is a Git LFS pointer, not the file itself: run `git lfs pull`"),
        (b"\n<!DOCTYPE html><html>", "is a web page, not a model"),
        (pickle.dumps({"a": np.zeros(2)}), "is a pickle, which could run code, and is refused"),
        (len(HEADER).to_bytes(8, "little") + HEADER + b"data", "is a safetensors file: give the folder"),
        (b'{"architectures": []}', "is JSON, not a model"),
        (b"tjgg\1\0\0\0", "is of the GGML format that GGUF replaced"),
        (b"\x1f\x8b\x08", "is compressed with gzip"),
        (b"hello there", "not a GGUF file: it starts with b'hell'"),
    ],
)
def test_what_stands_where_a_model_should(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        open_model_file(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)


def test_a_zip_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    assert zipped(path)
    with pytest.raises(FileError, match="is a zip file, such as PyTorch's checkpoints"):
        open_model_file(path)


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_gguf_file_that_ends_too_early(tmp_path: Path, share: float) -> None:
    whole = Path(tiny.write(tmp_path / "whole.gguf")).read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(FileError) as caught:
        open_model_file(cut)
    size = int(len(whole) * share)
    assert f"the file is incomplete: {size:,} of {len(whole):,} bytes; download or copy it again" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (POINTER, "is a Git LFS pointer"),
        (len(HEADER).to_bytes(8, "little") + HEADER + b"da", "incomplete: 70 of 72 bytes; download"),
        (len(HEADER).to_bytes(8, "little") + HEADER[:20], "a header of 60 bytes in 28 bytes"),
    ],
)
def test_weights_of_a_checkpoint(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(FileError) as caught:
        Checkpoint.open(tmp_path)
    assert said in str(caught.value)
