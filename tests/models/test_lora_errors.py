"""Adapters that can't be applied: an error of one line that names what is wrong, for GGUF files and PEFT folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo import load
from octavo.errors import FileError, HostMemoryError, ModelError, NonFiniteError, OctavoError, UsageError
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.io.safetensors import StoredTensor
from octavo.io.system_memory import Room
from octavo.models import read_model
from octavo.runtime.lora_adapters import with_adapters
from tests.models.adapters import Factors, factors, write_lora_gguf, write_peft
from tests.models.table import saved
from tests.models.tiny_checkpoints import TABLE
from tests.runtime import tiny

Q, UP = "blk.0.attn_q.weight", "blk.1.ffn_up.weight"
Q_PROJ, UP_PROJ = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = tiny.write(tmp_path_factory.mktemp("base") / "base.gguf", "llama", weights=tiny.tensors("llama"))
    with GGUFFile.open(path) as file:
        yield file


def pair(file: GGUFFile, name: str, rank: int = 4) -> Factors:
    n, k = file.tensors[name].shape
    return factors(n, k, rank)


def refused(file: GGUFFile, adapter: Path, kind: type[OctavoError], *said: str) -> None:
    with pytest.raises(kind) as caught:
        with_adapters(read_model(file), ((str(adapter), 1.0),))
    text = str(caught.value)
    assert "\n" not in text
    assert str(adapter) in text
    for part in said:
        assert part in text


@pytest.mark.parametrize(
    ("architecture", "keys", "said"),
    [
        ("qwen3", {}, "general.architecture: is 'qwen3' (allowed: 'llama', as the model's)"),
        ("llama", {"general__type": "model"}, "general.type: is 'model' (allowed: 'adapter')"),
        ("llama", {"adapter__type": "ia3"}, "adapter.type: is 'ia3' (allowed: 'lora')"),
        ("llama", {"adapter__lora__alpha": float("nan")}, "adapter.lora.alpha: is nan"),
        (
            "llama",
            {"adapter__alora__invocation_tokens": [1, 2]},
            "invocation_tokens: is there: an activated LoRA (aLoRA)",
        ),
    ],
)
def test_metadata(base: GGUFFile, tmp_path: Path, architecture: str, keys: dict[str, Any], said: str) -> None:
    path = write_lora_gguf(tmp_path / "a.gguf", {Q: pair(base, Q)}, architecture, alpha=None, **keys)
    refused(base, path, ModelError, said)


def test_tensors(base: GGUFFile, tmp_path: Path) -> None:
    a, b = pair(base, Q)
    norm = "blk.0.attn_norm.weight"
    cases = {
        "is not a tensor of the model, nor are 1 others: 'c.weight'": {"x.weight": (a, b), "c.weight": (a, b)},
        f"tensor '{norm}': is not a weight that an adapter can change": {norm: (a, b[:1])},
        "changes a weight of shape [63, 264] (allowed: [64, 264], as the model's)": {Q: (a, b[:-1])},
        "has factors [3, 264] and [64, 4] (allowed: [r, K] and [N, r]": {Q: (a[:3], b)},
        "has factors [1, 4, 264] and [64, 4]": {Q: (a[None], b)},
    }
    for i, (said, pairs) in enumerate(cases.items()):
        refused(base, write_lora_gguf(tmp_path / f"{i}.gguf", pairs), ModelError, said)
    nan = b.copy()
    nan[3, 1] = np.nan
    refused(base, write_lora_gguf(tmp_path / "n.gguf", {Q: (a, nan)}), NonFiniteError, f"'{Q}.lora_b': NaN or Inf")
    large = write_lora_gguf(tmp_path / "l.gguf", {Q: (a, 1e38 * b)}, alpha=1e10)
    refused(base, large, NonFiniteError, f"'{Q}.lora_b': times 2.5e+09 is too large for F32")


def test_parts_of_pairs(base: GGUFFile, tmp_path: Path) -> None:
    a, b = pair(base, Q)
    keys = {"general.type": "adapter", "adapter.type": "lora"}
    cases = {
        f"tensor '{Q}.lora_a': has no '{Q}.lora_b' beside it": {f"{Q}.lora_a": a},
        f"tensor '{Q}.lora_b': has no '{Q}.lora_a' beside it": {f"{Q}.lora_b": b},
        "tensor 'blk.0.attn_norm.weight': is not part of a LoRA": {"blk.0.attn_norm.weight": a[0]},
        "has no tensors": {},
    }
    for i, (said, tensors) in enumerate(cases.items()):
        path = tmp_path / f"{i}.gguf"
        write_gguf(path, "llama", keys, tensors)
        refused(base, path, ModelError, said)


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "peft_type: is 'IA3' (allowed: LORA)"),
    ({"use_dora": True}, "use_dora: is 'True': DoRA (allowed: none)"),
    ({"use_qalora": True}, "QALoRA"),
    ({"use_new": True}, "use_new: is not supported"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save: is \"['lm_head']\": whole modules beside the LoRA"),
    ({"bias": "lora_only"}, "bias: is 'lora_only' (allowed: none)"),
    ({"lora_bias": True}, "biases of a LoRA"),
    ({"alora_invocation_tokens": [1]}, "an activated LoRA (aLoRA)"),
    ({"target_parameters": "mlp.experts"}, "target_parameters: is 'mlp.experts' (allowed: names of parameters)"),
    ({"layer_replication": [[0, 2]]}, "layers that occur several times"),
    ({"init_lora_weights": "pissa_niter_4"}, "with which the model's own weights were changed before training"),
    ({"r": 0}, "r: is '0' (allowed: 1 or more)"),
    ({"r": "8"}, "r: is '8'"),
    ({"lora_alpha": None}, "lora_alpha: is 'None' (allowed: a number)"),
    ({"rank_pattern": {"q_proj": 0}}, "rank_pattern: is 0 of 'q_proj'"),
    ({"alpha_pattern": {"(": 1}}, "alpha_pattern: has '(' (allowed: regular expressions)"),
    ({"alpha_pattern": {"(?i)q_proj": 1}}, "alpha_pattern: has '(?i)q_proj' (allowed: regular expressions)"),
    ({"rank_pattern": {"a{99999999999}": 4}}, "rank_pattern: has 'a{99999999999}' (allowed: regular expressions)"),
    ({"rank_pattern": {"(" * 5000 + ")" * 5000: 4}}, "(allowed: up to 256 characters and 4 repeats, none of a group)"),
    ({"alpha_pattern": {"(a+)+$": 1}}, "repeats, none of a group"),
    ({"rank_pattern": ["q_proj"]}, "rank_pattern: is \"['q_proj']\" (allowed: numbers by names of modules)"),
    ({"r": 8}, "has factors [4, 264] and [64, 4] (allowed: [8, K] and [N, 8], of the rank in adapter_config.json)"),
]


@pytest.mark.parametrize(("config", "said"), CONFIGS)
def test_configurations(base: GGUFFile, tmp_path: Path, config: dict[str, Any], said: str) -> None:
    refused(base, write_peft(tmp_path / "peft", {Q_PROJ: pair(base, Q)}, **config), ModelError, said)


def test_one_that_no_memory_holds(base: GGUFFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found before anything of it is read."""
    folder = write_peft(tmp_path / "peft", {Q_PROJ: pair(base, Q)})
    monkeypatch.setattr("octavo.runtime.lora_adapters.room", lambda: Room(1000))
    monkeypatch.setattr(StoredTensor, "load", lambda self: pytest.fail("is read"))
    refused(base, folder, HostMemoryError, "0.00 GiB of memory are needed, but 0.00 GiB are free")


def test_modules(base: GGUFFile, tmp_path: Path) -> None:
    a, b = pair(base, Q)
    cases = {
        "tensor 'model.layers.0.self_attn.w': is not a module of the model (allowed: llama)": "self_attn.w",
        "changes a weight of shape [64, 264] (allowed: [48, 264], as the model's blk.0.ffn_up.weight)": "mlp.up_proj",
    }
    for i, (said, module) in enumerate(cases.items()):
        refused(base, write_peft(tmp_path / f"{i}", {f"model.layers.0.{module}": (a, b)}), ModelError, said)
    vision = write_peft(tmp_path / "v", {"model.visual.blocks.0.attn.proj": (a, b)})
    refused(base, vision, ModelError, "is of a part of the model that is not run")
    refused(base, write_peft(tmp_path / "e", {}), ModelError, "has no tensors")


def test_tensors_of_peft(base: GGUFFile, tmp_path: Path) -> None:
    names = {
        "lora_magnitude_vector": "is a magnitude (DoRA)",
        "bias": "is not a factor of a LoRA",
        "lora_A.bias": "is not a factor of a LoRA",
    }
    folder = write_peft(tmp_path / "peft", {Q_PROJ: pair(base, Q), UP_PROJ: pair(base, UP)})
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    for end, said in names.items():
        save_file(tensors | {f"base_model.model.{Q_PROJ}.{end}": torch.zeros(4)}, file)
        refused(base, folder, ModelError, said)
    save_file({name: x for name, x in tensors.items() if not name.endswith("up_proj.lora_B.weight")}, file)
    refused(base, folder, ModelError, f"'base_model.model.{UP_PROJ}.lora_A.weight': has no lora_B beside it")
    nan = {name: torch.full_like(x, np.inf) if "up_proj.lora_A" in name else x for name, x in tensors.items()}
    save_file(nan, file)
    refused(base, folder, NonFiniteError, "up_proj.lora_A.weight': NaN or Inf")


def test_files(base: GGUFFile, tmp_path: Path) -> None:
    refused(base, tmp_path / "none", FileError, "no such file or folder")
    folder = write_peft(tmp_path / "peft", {Q_PROJ: pair(base, Q)})
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refused(
        base, folder, FileError, "is a pickle, which runs code when it is read; use adapter_model.safetensors"
    )
    (folder / "adapter_model.bin").unlink()
    refused(base, folder, FileError, "has no adapter_model.safetensors")
    (folder / "adapter_config.json").unlink()
    refused(base, folder, FileError, "has no adapter_config.json, so it is not an adapter")


def test_experts_that_lack_one(tmp_path: Path) -> None:
    saved(tmp_path / "hf", TABLE["qwen3moe"])
    module = "model.layers.0.mlp.experts.{}.up_proj"
    with open_model_file(tmp_path / "hf") as file:
        experts, n, k = file.tensors["blk.0.ffn_up_exps.weight"].shape
        few = write_peft(tmp_path / "few", {module.format(i): factors(n, k) for i in range(experts - 1)})
        refused(file, few, ModelError, f"has {experts - 1} experts (allowed: 0 to {experts - 1})")
        unlike = {module.format(i): factors(n, k, 4 + (i == 1)) for i in range(experts)}
        ranks = {"rank_pattern": {"experts.1.up_proj": 5}}
        refused(
            file, write_peft(tmp_path / "unlike", unlike, **ranks), ModelError, "different shapes, ranks or factors"
        )


def test_a_models_own_embedding_beside_an_adapter(base: GGUFFile, tmp_path: Path) -> None:
    """PEFT saves it where it changes an embedding; another one would be another model."""
    from octavo.formats import dequantize

    name = "base_model.model.model.embed_tokens.base_layer.weight"
    folder = write_peft(tmp_path / "peft", {Q_PROJ: pair(base, Q)})
    file = folder / "adapter_model.safetensors"
    tensors, own = load_file(file), torch.from_numpy(dequantize(base.tensor("token_embd.weight")))
    save_file(tensors | {name: own.to(torch.bfloat16)}, file)
    assert set(with_adapters(read_model(base), ((str(folder), 1.0),)).added) == {Q}
    for other in (own + 0.1, torch.cat([own, own[:1]])):
        save_file(tensors | {name: other}, file)
        refused(base, folder, ModelError, "is another weight than the model's")


@pytest.mark.parametrize("lora", [3, {"a": "b"}, {"a": float("nan")}, [1], {"a": True}])
def test_arguments(lora: Any) -> None:
    with pytest.raises(UsageError, match=r"^lora is "):
        load("demo", lora=lora)


def test_twice() -> None:
    with pytest.raises(UsageError, match=re.escape("lora names a twice")):
        load("demo", lora=["a", "a"])
