"""Adapters of PEFT for experts that transformers stacks (`target_parameters`), held to merged weights of transformers.

What each version adds is written out here: factors of all experts are one matrix each, and PEFT up to 0.19.0 took all
experts for [E, K, N].
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from octavo.backends.cpu import CpuBackend
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.formats.spec import F32
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from tests.models.adapters import ALPHA, PREFIX, RANK, factors, write_lora_gguf, write_peft
from tests.models.table import error, saved
from tests.models.test_lora import FEW, logits
from tests.models.tiny_checkpoints import TABLE
from tests.sampling import slow

OLD, NEW = "0.18.1", "0.21.2"
DECLARED = ("gate_up_proj", "up_proj", "down_proj")
"""Parameters in the order in which a module has them, and PEFT wraps it for each."""


def adapter_and_logits(name: str, root: Path, version: str, wanted: tuple[str, ...]) -> tuple[Path, F32]:
    """An adapter for parameters of all layers' experts, and what transformers computes with what it comes to."""
    saved(root / "hf", TABLE[name])
    model = transformers.AutoModelForCausalLM.from_pretrained(root / "hf")
    tensors: dict[str, torch.Tensor] = {}
    for module_name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False)) if module_name.endswith("experts") else {}
        names = [parameter for parameter in DECLARED if parameter in wanted and parameter in own]
        for inside, parameter in enumerate(reversed(names)):
            stack, seed = own[parameter], len(tensors)
            turned = version == OLD or getattr(module, "is_transposed", False)
            (e, rows, columns) = stack.shape
            out, into = (columns, rows) if turned else (rows, columns)
            pairs = [factors(out, into, seed=seed + i) for i in range(e)]
            for i, (a, b) in enumerate(pairs):
                delta = torch.from_numpy(ALPHA / RANK * b @ a)
                stack.data[i] += delta.T if turned else delta
            of_a = np.concatenate([a for a, _ in pairs])
            of_b = np.stack([b for _, b in pairs], axis=-1).reshape(out, RANK * e)
            where = f"{PREFIX}{module_name}{'.base_layer' * inside}"
            tensors |= {f"{where}.lora_{kind}.weight": torch.from_numpy(x) for kind, x in (("A", of_a), ("B", of_b))}
    with torch.no_grad():
        want = model(torch.tensor([FEW])).logits[0].numpy()
    said = {"target_modules": [], "target_parameters": [f"experts.{name}" for name in wanted], "peft_version": version}
    folder = write_peft(root / "peft", {}, **said)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder, want


BOTH = ("gate_up_proj", "down_proj")
CASES = [
    ("qwen3moe", NEW, BOTH),  # rows, which the checkpoint has expert by expert
    ("llama4", NEW, BOTH),  # columns
    ("gpt-oss", NEW, BOTH),  # columns, the gate's and up's in turn
    ("nemotron_h_moe", NEW, ("up_proj", "down_proj")),  # of which shapes alone do not tell which is which
    slow(("qwen3moe", OLD, BOTH)), slow(("llama4", OLD, BOTH)), slow(("gpt-oss", OLD, BOTH)),
    slow(("nemotron_h_moe", OLD, ("up_proj", "down_proj"))), slow(("qwen3moe", NEW, ("down_proj",))),
    slow(("granitemoe", NEW, BOTH)), slow(("phimoe", NEW, BOTH)), slow(("minimax-m2", NEW, BOTH)),
    slow(("gemma4-moe", NEW, ("gate_up_proj",))), slow(("qwen35moe", NEW, BOTH)), slow(("mixtral", NEW, BOTH)),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "version", "wanted"), CASES)
def test_merged_weights_of_transformers(name: str, version: str, wanted: tuple[str, ...], tmp_path: Path) -> None:
    """From the folder, from its GGUF file on the CPU, and merged into that."""
    adapter, want = adapter_and_logits(name, tmp_path, version, wanted)
    adapters = ((str(adapter), 1.0),)
    with open_model_file(tmp_path / "hf") as folder:
        assert error(logits(folder), want) > 0.1
        assert error(logits(folder, adapters), want) < 1e-4
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert error(logits(file, adapters, CpuBackend()), want) < 1e-4
    convert_checkpoint(tmp_path / "hf", tmp_path / "merged.gguf", "F32", lora=str(adapter))
    with GGUFFile.open(tmp_path / "merged.gguf") as file:
        assert error(logits(file), want) < 1e-4


def refused(name: str, root: Path, said: str, wanted: tuple[str, ...] = BOTH, **config: Any) -> None:
    adapter, _ = adapter_and_logits(name, root, NEW, wanted)
    if config:
        usual = {"target_modules": [], "target_parameters": [f"experts.{parameter}" for parameter in wanted]}
        tensors = (adapter / "adapter_model.safetensors").read_bytes()
        write_peft(adapter, {}, **{**usual, **config})
        (adapter / "adapter_model.safetensors").write_bytes(tensors)
    with open_model_file(root / "hf") as folder, pytest.raises(ModelError, match=said) as found:
        logits(folder, ((str(adapter), 1.0),))
    assert "\n" not in str(found.value)


def test_a_rank_that_factors_do_not_have(tmp_path: Path) -> None:
    experts = "model.layers.0.mlp.experts"
    allowed = rf"{experts}.down_proj \[8, 128, 256\], {experts}.gate_up_proj \[8, 512, 128\]\)"
    factored = rf"'{experts}.base_layer': has factors \[32, 128\] and \[512, 32\]"
    refused("qwen3moe", tmp_path, rf"{factored} \(allowed: those of one of {allowed}", r=RANK - 1)


def test_a_parameter_that_the_configuration_does_not_name(tmp_path: Path) -> None:
    refused("qwen3moe", tmp_path, "'model.layers.0.mlp.experts.*has factors", target_parameters=["mlp.experts.other"])


def test_experts_that_the_model_multiplies(tmp_path: Path) -> None:
    """By a number each, which what is added would lack. Merged it has that, and an adapter of GGUF's is refused too."""
    adapter, want = adapter_and_logits("gemma4-moe", tmp_path, NEW, BOTH)
    convert_checkpoint(tmp_path / "hf", tmp_path / "merged.gguf", "F32", lora=str(adapter))
    with GGUFFile.open(tmp_path / "merged.gguf") as file:
        assert error(logits(file), want) < 1e-4
        name = "blk.0.ffn_down_exps.weight"
        e, n, k = file.tensors[name].shape
        a, b = (np.stack([pair[i] for pair in [factors(n, k)] * e]) for i in range(2))
        own = write_lora_gguf(tmp_path / "a.gguf", {name: (a, b)}, "gemma4")
        said = f"'{name}': is multiplied by a number of each expert in the model; merge it with "
        for path in (adapter, own):
            with pytest.raises(ModelError, match=re.escape(said)):
                logits(file, ((str(path), 1.0),))


def test_what_neither_shapes_nor_the_version_tell(tmp_path: Path) -> None:
    """Square experts of a class that has them as rows or as columns."""
    case = TABLE["qwen3vlmoe"]
    square = replace(case, options={**case.options, "moe_intermediate_size": case.options["hidden_size"]})
    saved(tmp_path / "hf", square)
    e, k = (square.options[key] for key in ("num_experts", "hidden_size"))
    pair = np.zeros((RANK * e, k), np.float32), np.zeros((k, RANK * e), np.float32)
    module = "model.language_model.layers.0.mlp.experts"
    adapter = write_peft(tmp_path / "peft", {module: pair}, target_parameters=["down_proj"], peft_version=NEW)
    said = "down_proj [6, 128, 128], which say whose they are and which way round"
    with open_model_file(tmp_path / "hf") as folder, pytest.raises(ModelError, match=re.escape(said)):
        logits(folder, ((str(adapter), 1.0),))
