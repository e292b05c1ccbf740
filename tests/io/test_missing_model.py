"""Models that are not there: each name gets the advice that fits it."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import FileError
from octavo.huggingface import open_model_file
from octavo.io.missing_model import advice
from octavo.quantizers.job.quantize import quantize_file


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Qwen/Qwen3-0.6B", "`octavo pull Qwen/Qwen3-0.6B` downloads the model of that name from the hub"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/", "`octavo pull https://huggingface.co/Qwen/Qwen3-0.6B/`"),
        ("hf.co/a/b-GGUF:Q8_0", "`octavo pull hf.co/a/b-GGUF:Q8_0`"),
        ("a/b-GGUF", "`octavo pull a/b-GGUF`"),
        ("https://huggingface.co/a/b/resolve/main/c.gguf?download=true", "`octavo pull https://huggingface.co/a/b/"),
        ("https://huggingface.co/datasets", "`octavo pull ORG/REPO:QUANT` downloads models of the hub"),
        ("https://example.com/x.gguf", "`curl -LO 'https://example.com/x.gguf'`"),
        ("qwen3:0.6b", "search=qwen3"),
        ("llama3.2", "search=llama3.2"),
        ("demoo", "did you mean demo?"),
    ],
)
def test_names(name: str, said: str) -> None:
    assert said in advice(name)


@pytest.mark.parametrize("name", ["model.gguf", "./llama", "/no/such", "~/models/x", "a/b/c/d", "x" * 300])
def test_paths_get_no_advice_on_names(name: str) -> None:
    assert "octavo pull" not in advice(name).replace("`octavo pull ORG/REPO`", "")
    with pytest.raises(FileError):
        open_model_file(name)


def test_a_file_of_nearly_that_name(tmp_path: Path) -> None:
    (tmp_path / "qwen3-q4.gguf").touch()
    with pytest.raises(FileError, match=r"no such file or folder; did you mean .*qwen3-q4\.gguf\?"):
        quantize_file(tmp_path / "qwen3-q5.gguf", tmp_path / "out.gguf", "Q8_0")


def test_a_link_to_nothing(tmp_path: Path) -> None:
    link = tmp_path / "model-q4.gguf"
    link.symlink_to("gone.gguf")
    with pytest.raises(FileError) as caught:
        open_model_file(link)
    assert str(caught.value) == f"{link}: is a link to '{tmp_path / 'gone.gguf'}', which doesn't exist"
    with pytest.raises(FileError, match=r"no such file or folder$"):
        open_model_file(tmp_path / "model-q5.gguf")


def test_a_folder_of_gguf_files(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(FileError) as caught:
        open_model_file(tmp_path)
    assert f"give the GGUF file in it: {tmp_path / 'a.gguf'}, {tmp_path / 'b.gguf'}" in str(caught.value)
