"""Files of deepseek2 with one matrix for keys and values, as converters wrote it at first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.calibrate.fold import find_folds
from octavo.calibrate.fold.find import Kind
from octavo.calibrate.fold.fold import ChangedFile, TensorChanges
from octavo.errors import ModelError
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from tests.calibrate.fold.test_same_logits import random_change
from tests.models.table import TOKENS, error, logits, saved
from tests.models.tiny_checkpoints import TABLE, wide

FEW = TOKENS[:20]
NEW = ("key_length_mla", "value_length_mla")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    folder, case = tmp_path_factory.mktemp("unsplit"), TABLE["deepseek2-v2"]
    saved(folder, replace(case, options=wide(case.options)))
    with open_model_file(folder) as file:
        yield file


def unsplit(file: GGUFFile, path: Path, kind: str = "F32", keys: dict[str, int | None] | None = None) -> GGUFFile:
    """The model as an older file, its matrices of keys and values in a format."""
    hp, arch = read_model(file).hparams, file.metadata.get_str("general.architecture")
    tensors: dict[str, Any] = {name: file.tensor(name) for name in file.tensors}
    for i in range(hp.n_layer):
        k, v = (dequantize(tensors.pop(f"blk.{i}.attn_{part}_b.weight")) for part in "kv")
        both = np.concatenate([k.swapaxes(1, 2), v], axis=1).reshape(-1, k.shape[1])
        tensors[f"blk.{i}.attn_kv_b.weight"] = quantize_reference(both, by_name(kind))
    names = [key for key in file.metadata if key != "general.architecture" and not key.endswith(NEW)]
    lengths = {end.removesuffix("_mla"): file.metadata.get_int(f"{arch}.attention.{end}") for end in NEW}
    changed: dict[str, int | None] = lengths | {"head_count_kv": hp.n_head} | (keys or {})
    metadata = {name: file.metadata[name] for name in names} | {f"{arch}.attention.{k}": v for k, v in changed.items()}
    write_gguf(path, arch, {key: value for key, value in metadata.items() if value is not None}, tensors)
    return GGUFFile.open(path)


def test_logits_are_those_of_the_split_file(model: GGUFFile, tmp_path: Path) -> None:
    with unsplit(model, tmp_path / "m.gguf") as file:
        got = logits(file, ReferenceBackend(), FEW, at_once=True)
    assert error(got, logits(model, ReferenceBackend(), FEW, at_once=True)) < 1e-6


@pytest.mark.parametrize("kind", ["scales", "orders"])
def test_folds_change_what_the_file_has(model: GGUFFile, tmp_path: Path, kind: Kind) -> None:
    """Not what its tensors are split into, which nothing would write back."""
    rng, changes = np.random.default_rng(5), TensorChanges()
    with unsplit(model, tmp_path / "m.gguf") as file:
        folds = find_folds(read_model(file), kind)
        assert 0 < len(folds) < len(find_folds(read_model(model), kind))
        for fold in folds:
            changes.add_fold(fold, random_change(kind, fold, rng))
        got = logits(ChangedFile(file, changes), ReferenceBackend(), FEW, at_once=True)
        assert error(got, logits(file, ReferenceBackend(), FEW, at_once=True)) < 1e-4


@pytest.mark.parametrize(("kind", "keys", "step"), [("F32", "F32", 0), ("BF16", "BF16", 0), ("Q4_K", "F16", 2**-11)])
def test_weights_are_those_of_the_file(model: GGUFFile, tmp_path: Path, kind: str, keys: str, step: float) -> None:
    with unsplit(model, tmp_path / "m.gguf", kind) as file:
        whole = dequantize(file.tensor("blk.1.attn_kv_b.weight"))
        parts = read_model(file).file
        k, v = (parts.tensor(f"blk.1.attn_{part}_b.weight") for part in "kv")
        copies = [parts.tensor(t.name, copy=True).data for t in (k, v)]
        assert (k.format.name, v.format.name) == (keys, kind)
        assert [parts.tensors[t.name].type_name for t in (k, v)] == [keys, kind]
        for tensor, data in zip((k, v), copies, strict=True):
            np.testing.assert_array_equal(tensor.data, data)
        got = np.concatenate([dequantize(k).swapaxes(1, 2), dequantize(v)], axis=1).reshape(whole.shape)
    np.testing.assert_allclose(got, whole, rtol=step)


@pytest.mark.parametrize(("keys", "says"), [
    ({"head_count": 3}, r"blk.0.attn_kv_b.weight: has shape"), ({"key_length": 16}, "attention.key_length: is 16"),
    ({"value_length": 0}, "attention.value_length: 0 is out of range"),
])
def test_sizes_that_do_not_go_together(model: GGUFFile, tmp_path: Path, keys: dict[str, int], says: str) -> None:
    with unsplit(model, tmp_path / "m.gguf", keys=keys) as file, pytest.raises(ModelError, match=says):
        read_model(file)


def test_both_forms_at_once_are_refused(model: GGUFFile, tmp_path: Path) -> None:
    tensors: dict[str, Any] = {name: model.tensor(name) for name in model.tensors}
    tensors["blk.0.attn_kv_b.weight"] = np.zeros((1280, 256), np.float32)
    metadata = {name: model.metadata[name] for name in model.metadata if name != "general.architecture"}
    write_gguf(tmp_path / "m.gguf", "deepseek2", metadata, tensors)
    with GGUFFile.open(tmp_path / "m.gguf") as both, pytest.raises(ModelError, match=r"attn_kv_b.*is not part"):
        read_model(both)
