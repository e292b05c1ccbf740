"""Layers that guess tokens beyond the next one are kept in files, checked, and are not in its graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.backends.reference import ReferenceBackend
from octavo.cli.inspect.facts import weight_bytes
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import ModelSpec, read_model
from octavo.models.shared.next_layer import head_of
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.convert import folders
from tests.models.table import TOKENS, error, logits, saved
from tests.models.test_hostile import refused
from tests.models.tiny_checkpoints import TABLE

FEW = TOKENS[:9]
OWN = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm", "nextn.embed_tokens")


def guessing(folder: Path, name: str) -> np.ndarray:
    """Save a checkpoint with a third layer, made of the second; gives the logits of one without."""
    want = saved(folder, TABLE[name])
    path = folder / "model.safetensors"
    stored = load_file(path)
    width = stored["model.norm.weight"].shape[0]
    last = {key.replace(".1.", ".2.", 1): value.clone() for key, value in stored.items() if "layers.1." in key}
    last |= {f"model.layers.2.{norm}.weight": torch.ones(width) for norm in ("enorm", "hnorm", "shared_head.norm")}
    last["model.layers.2.eh_proj.weight"] = torch.randn(width, 2 * width)
    last["model.layers.2.embed_tokens.weight"] = stored["model.embed_tokens.weight"].clone()
    save_file(stored | last, path)
    folders.edit(folder, "config.json", num_nextn_predict_layers=1)
    return want


def guesses(main: ModelSpec) -> None:
    """The layer reads what the model's step gives, and what it gave itself."""
    head, config = head_of(main), EngineConfig(n_ctx=64, cache_type="f32")
    assert head is not None
    engine = Engine(main, [ReferenceBackend()], config, head=head)
    guessing = Engine(head, [ReferenceBackend()], config, shares=engine)
    sequence, own = Sequence(), Sequence()
    engine.step([Feed(sequence, FEW[:-1])])
    assert sequence.hidden is not None
    first = guessing.step([Feed(own, FEW[1:], hidden=np.stack(sequence.hidden.rows))])
    second = guessing.step([Feed(own, [int(first.argmax())], hidden=guessing.hidden)])
    assert first.std() > 0
    assert np.abs(first - second).max() > 0


@pytest.mark.parametrize("name", ["glm4moe", "deepseek2-v3"])
def test_they_are_left_out_of_the_graph(name: str, tmp_path: Path) -> None:
    want, arch = guessing(tmp_path / "hf", name)[: len(FEW)], TABLE[name].arch
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    with open_model_file(tmp_path / "hf") as folder, GGUFFile.open(tmp_path / "m.gguf") as file:
        assert error(logits(folder, ReferenceBackend(), FEW, at_once=True), want) < 1e-4
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want) < 1e-4
        assert file.metadata.get_int(f"{arch}.block_count") == 3
        assert read_model(file).hparams.n_layer == 2
        for made in (folder, file):
            guesses(read_model(made))
        left = sum(info.nbytes for info in file.tensors.values() if info.name.startswith("blk.2."))
        assert weight_bytes(file, 2) == file.nbytes - left < file.nbytes
        assert {f"blk.2.{own}.weight" for own in OWN} <= set(file.tensors)
        values = {key: file.metadata[key] for key in file.metadata if key != "general.architecture"}
        tensors = {name: file.tensor(name) for name in file.tensors}
        without = {name: tensor for name, tensor in tensors.items() if not name.startswith("blk.2.")}
        write_gguf(tmp_path / "without.gguf", arch, values, without)
        other = {"blk.2.nextn.eh_proj.weight": tensors["output_norm.weight"]}
        write_gguf(tmp_path / "other.gguf", arch, values, tensors | other)
        write_gguf(tmp_path / "all.gguf", arch, values | {f"{arch}.nextn_predict_layers": 3}, tensors)
    with GGUFFile.open(tmp_path / "without.gguf") as file:
        assert read_model(file).hparams.n_next == 1
    refused(str(tmp_path / "other.gguf"), ModelError, "blk.2.nextn.eh_proj.weight", "contradicts the hyperparameters")
    refused(str(tmp_path / "all.gguf"), ModelError, "nextn_predict_layers", "3 is out of range (allowed: 0 to 2)")
