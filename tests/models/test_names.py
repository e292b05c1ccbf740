"""Names of tensors and keys are those of the gguf package, for checkpoints and for files."""

from __future__ import annotations

import re

import gguf
import pytest

from octavo.io.gguf import GGUFFile
from octavo.models import ARCHITECTURES, read_model
from octavo.models.shared.registry import find
from tests.models.checkpoints import CASES, Write, make, tensors

NUMBERS = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
GROUPS = [group for group in vars(gguf.Keys).values() if isinstance(group, type)]
KEYS = {
    value.replace("{dense}", dense)
    for dense in ("dense_2", "dense_3")
    for group in GROUPS
    for value in vars(group).values()
    if isinstance(value, str)
} | {f"{{arch}}.{key}" for key in (  # of llama.cpp, newer than the package
    "hidden_activation", "classifier.pooling_type", "attention.recurrent_layers", "attention.value_scale",
)}


NEWER: dict[str, tuple[str, ...]] = {
    "deepseek2": ("nextn.",), "bitnet": ("attn_sub", "ffn_sub"), "step35": ("nextn.",),
    "mimo2": ("nextn.", "layer_output_norm"), "qwen35": ("nextn.",), "qwen35moe": ("nextn.",), "qwen3next": ("nextn.",),
}
"""What names of tensors begin with that llama.cpp's converters know, and the package does not yet, or that they change
first."""


ADAPTED = ".parametrizations.weight.original"
"""What converters take off names of weights that have adapters beside them."""
CHANGED = {
    "rwkv7": {
        "ffn": "feed_forward", "attn": "attention", "feed_forward_norm": "ln2", "g_norm": "ln_x",
        "_lora.lora.0": "1", "_lora.lora.2.bias": "0", "_lora.lora.2": "2",
    },
}
"""By architecture, what converters change of names of modules before they look them up, in this order."""


STACKED = {"rwkv7": ("attn.x_x",)}
"""By architecture, modules that converters have no row for, as they make of several what these are."""


def changed(name: str, module: str) -> str:
    for old, new in CHANGED.get(name, {}).items():
        module = module.replace(old, new)
    return module.removesuffix(ADAPTED)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_modules_of_checkpoints_are_named_as_converters_name_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = gguf.TensorNameMap.block_mappings_cfg  # arctic's map would put its own names into it, for all later ones
    monkeypatch.setattr(gguf.TensorNameMap, "block_mappings_cfg", dict(shared))
    names, arch = gguf.get_tensor_name_map(NUMBERS[name], 2), find(name)
    assert arch is not None
    bases = arch.base, *arch.modules.other_bases, ""
    for module, part in arch.names.items():
        of_mlx = ("switch_mlp", "embed_q", "unembed_out")  # which converters do not read
        apart = part.startswith(NEWER.get(name, ())) or "experts" in module or any(name in module for name in of_mlx)
        apart = apart or module in STACKED.get(name, ())
        if not apart and not {" ", "/"}.intersection(part) and not part.endswith((".bias", ".scale")):
            stem = changed(name, module)
            found = {names.get_name(f"{base}{arch.layer}.1.{stem}") for base in bases}
            assert f"blk.1.{part.removesuffix('.weight')}" in found, module
    known = {template(part) for part in tensors_of(NUMBERS[name])}
    for theirs, ours in arch.outer.items():
        assert not theirs.startswith(arch.base), "names stand without what they may begin with"
        assert template(ours) in known or theirs == "lm_head.weight", "models whose embedding is the output matrix"
        stacked = theirs.replace(".*.", ".").replace(ADAPTED, ".weight")
        found = {names.get_name(base + stacked, (".weight", ".bias")) for base in bases}
        assert template(ours) not in known or ours in found


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3", "qwen3moe", "phi3-long", "gemma3"])
def test_tensors_of_files_are_the_architectures(case: str, gguf: Write) -> None:
    model = make(CASES[case])
    file: GGUFFile = gguf(CASES[case], model)
    spec = read_model(file)
    known = {template(part) for part in tensors_of(NUMBERS[spec.architecture.name])}
    expected = spec.architecture.tensors(spec.hparams)
    assert {template(name) for name, want in expected.items() if not want.optional} <= known
    assert set(file.tensors) == set(tensors(CASES[case], model))


def tensors_of(number: int) -> list[str]:
    return [f"{gguf.TENSOR_NAMES[tensor]}.weight" for tensor in gguf.MODEL_TENSORS[number]]


def template(name: str) -> str:
    """A name without its layer and its end; biases go with their weights."""
    return re.sub(r"blk\.(\d+|{bid})\.", "blk.*.", name).rpartition(".")[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_keys_of_an_architectures_own_are_known(name: str) -> None:
    assert (arch := find(name)) is not None
    assert {f"{{arch}}.{key}" for key in arch.fields} <= KEYS
