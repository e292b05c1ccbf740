"""RWKV-6 and ARWKV: files as llama.cpp's converter writes them, other words of folders, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from legacy_cases import CASES as TABLE
from octavo.backends.reference import ReferenceBackend
from octavo.formats import dequantize
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from tests.convert import folders
from tests.models import test_hybrid as hybrid
from tests.models.table import error, logits, saved
from tests.models.test_hybrid import FEW
from tests.quantizers import test_checkpoint as checkpoint

REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("rwkv6", {"wkv.head_size": 48}, "wkv.head_size", "48 does not fit"),
    ("rwkv6", {"token_shift_count": 1}, "token_shift_count", "is 1"),
    ("rwkv6", {"time_mix_extra_dim": 0}, "time_mix_extra_dim", "0 is out of range"),
    ("rwkv6", {"time_decay_extra_dim": 8}, "tensor blk.0.time_mix_decay_w1.weight", "contradicts the"),
    ("rwkv6", {"rescale_every_n_layers": -1}, "rescale_every_n_layers", "-1 is out of range"),
    ("arwkv7", {"token_shift_count": 2}, "token_shift_count", "is 2"),
    ("arwkv7", {"attention.decay_lora_rank": 0}, "attention.decay_lora_rank", "0 does not fit"),
    ("arwkv7", {"attention.gate_lora_rank": 0}, "tensor blk.0.time_mix_lerp_fused.weight", "contradicts the"),
]


@pytest.mark.parametrize(("name", "keys", "field", "message"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_keys_that_do_not_fit(
    tmp_path: Path, name: str, keys: dict[str, Any], field: str, message: str
) -> None:
    hybrid.test_keys_that_do_not_fit(tmp_path, name, keys, field, message)


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("rwkv6", {"head_size_divisor": 4}, "head_size_divisor"),
    ("rwkv6", {"attention_hidden_size": 256}, "attention_hidden_size"),
    ("rwkv6", {"head_size": 48}, "rwkv6.wkv.head_size"),
    ("arwkv7", {"wkv_version": 6}, "wkv_version"),
    ("arwkv7", {"wkv_layers": [0, 2]}, "wkv_layers"),
    ("arwkv7", {"num_wkv_heads": 3}, "num_wkv_heads"),
    ("arwkv7", {"head_size_divisor": 4}, "head_size_divisor"),
    ("arwkv7", {"hidden_act": "gelu"}, "hidden_act"),
    ("arwkv7", {"wkv_has_gate": False}, "tensor 'blk.0.time_mix_g1.weight'"),
    ("arwkv7", {"wkv_has_group_norm": False}, "tensor 'blk.0.time_mix_ln.bias'"),
]


@pytest.mark.parametrize(("name", "values", "field"), CONFIGS, ids=[c[2] for c in CONFIGS])
def test_configurations_that_are_not_computed(tmp_path: Path, name: str, values: dict[str, Any], field: str) -> None:
    hybrid.test_configurations_that_are_not_computed(tmp_path, name, values, field)


def test_files_of_rwkv6_that_are_halved(tmp_path: Path) -> None:
    """As converters write them: what a layer adds is divided by as much as the stream that it is added to. In older
    files the shares are five tensors."""
    want = saved(tmp_path / "hf", TABLE["rwkv6"])
    with open_model_file(tmp_path / "hf") as file:
        stored = {name: dequantize(file.tensor(name)) for name in file.tensors}
        values = {key: file.metadata[key] for key in file.metadata if key != "general.architecture"}
    for i in range(3):
        for name in ("time_mix_output", "channel_mix_value"):
            stored[f"blk.{i}.{name}.weight"] /= 2**i
        fused = stored.pop(f"blk.{i}.time_mix_lerp_fused.weight")
        stored |= {f"blk.{i}.time_mix_lerp_{n}.weight": fused[j] for j, n in enumerate("wkvrg")}
    values["rwkv6.rescale_every_n_layers"] = 1
    write_gguf(tmp_path / "m.gguf", "rwkv6", values, stored)
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-3


def test_layers_of_arwkv7_as_a_list(tmp_path: Path) -> None:
    want = saved(tmp_path / "hf", TABLE["arwkv7"])
    folders.edit(tmp_path / "hf", "config.json", wkv_layers=[0, 1, 2], num_wkv_heads=None, head_size=None)
    with open_model_file(tmp_path / "hf") as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


@pytest.mark.parametrize("case", ["rwkv6", "arwkv7"])
def test_folders_with_other_tensors_are_not_written(tmp_path: Path, case: str) -> None:
    checkpoint.test_folders_with_other_tensors_are_not_written(tmp_path, case)
