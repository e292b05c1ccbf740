"""Adapters that are merged when a checkpoint is converted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octavo.convert import convert_checkpoint
from octavo.errors import ModelError, UsageError
from octavo.formats import dequantize
from octavo.io.gguf import GGUFFile
from tests.models.adapters import factors, merged_folder, modules_of, write_peft
from tests.models.table import saved
from tests.models.tiny_checkpoints import TABLE


@pytest.mark.parametrize(("preset", "apart"), [("F32", 1e-6), ("F16", 2e-3)])
def test_weights_are_those_of_the_merged_checkpoint(tmp_path: Path, preset: str, apart: float) -> None:
    saved(tmp_path / "hf", TABLE["llama"])
    modules = {m: factors(n, k, seed=i) for i, (m, (n, k)) in enumerate(modules_of(tmp_path / "hf").items())}
    adapter = write_peft(tmp_path / "peft", modules)
    merged = merged_folder(tmp_path / "hf", tmp_path / "m", modules, 0.5 * 6 / 4)
    convert_checkpoint(merged, tmp_path / "want.gguf", preset)
    convert_checkpoint(tmp_path / "hf", tmp_path / "got.gguf", preset, lora={adapter: 0.5})
    with GGUFFile.open(tmp_path / "got.gguf") as got, GGUFFile.open(tmp_path / "want.gguf") as want:
        assert {n: (i.shape, i.type_name) for n, i in got.tensors.items()} == {
            n: (i.shape, i.type_name) for n, i in want.tensors.items()
        }
        for name in want.tensors:
            values = dequantize(want.tensor(name))
            assert np.abs(dequantize(got.tensor(name)) - values).max() <= apart * np.abs(values).max()


def test_what_cant_be_merged(tmp_path: Path) -> None:
    case = TABLE["llama"]
    saved(tmp_path / "hf", replace(case, options=case.options | {"tie_word_embeddings": True}))
    out, pair = tmp_path / "out.gguf", factors(320, 128)
    head = write_peft(tmp_path / "head", {"lm_head": pair})
    with pytest.raises(UsageError, match=r"^lora changes the embedding or the output of .*, which are one matrix"):
        convert_checkpoint(tmp_path / "hf", out, lora=head)
    with pytest.raises(ModelError, match="is not a module of the model"):
        convert_checkpoint(tmp_path / "hf", out, lora=write_peft(tmp_path / "other", {"model.nothing": pair}))
    with pytest.raises(UsageError, match="is the model that is read"):
        convert_checkpoint(tmp_path / "hf", head / "adapter_model.safetensors", lora=head)
    assert not out.exists()
