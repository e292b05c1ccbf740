"""Apertus beyond the table: what is refused of the numbers of its activation, in folders and in files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.errors import ModelError, OctavoError
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from tests.models.table import Model, made_in, saved
from tests.models.tiny_checkpoints import TABLE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with made_in(tmp_path_factory.mktemp("apertus")) as made:
        yield made["apertus"]


@pytest.mark.parametrize(("key", "value"), [("beta", [0.5]), ("eps", [1e9, 0.0]), ("alpha_p", None)])
def test_numbers_of_files_that_are_refused(key: str, value: Any, model: Model, tmp_path: Path) -> None:
    metadata = {name: model.file.metadata.typed(name) for name in model.file.metadata if name != "general.architecture"}
    metadata = {name: x for name, x in {**metadata, f"xielu.{key}": value}.items() if x is not None}
    write_gguf(
        tmp_path / "m.gguf", "apertus", metadata, {n: model.file.tensor(n, copy=True) for n in model.file.tensors}
    )
    with GGUFFile.open(tmp_path / "m.gguf") as file, pytest.raises(OctavoError, match=f"xielu.{key}"):
        read_model(file)


@pytest.mark.parametrize("wrong", [None, torch.zeros(2)])
def test_numbers_of_folders_that_are_refused(wrong: torch.Tensor | None, tmp_path: Path) -> None:
    saved(tmp_path, TABLE["apertus"])
    path, name = tmp_path / "model.safetensors", "model.layers.1.mlp.act_fn.alpha_n"
    tensors = {n: x for n, x in {**load_file(path), name: wrong}.items() if x is not None}
    save_file(tensors, path)
    with pytest.raises(ModelError, match=f"{name}.*allowed: a number"):
        open_model_file(tmp_path)
