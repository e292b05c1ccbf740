"""LoRA adapters of tiny models, written as PEFT and as llama.cpp's converter do, and the models that they come to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile, write_gguf

RANK, ALPHA = 4, 6.0
PREFIX = "base_model.model."
NO_MODULES = (
    "norm", "embed", "conv", "vision", "visual", "vit_", "wte", "wpe", "ln_", "tok_emb", "position", "_coefs",
    "vit.", "mlp_AR",
)
"""What names of tensors have that belong to no linear layer of the text model."""

Factors = tuple[F32, F32]


def factors(n: int, k: int, rank: int = RANK, seed: int = 0) -> Factors:
    """Random a [rank, k] and b [n, rank], so large that they change what a model says."""
    rng = np.random.default_rng([seed, n, k])
    a = rng.standard_normal((rank, k)) * 0.6 / np.sqrt(k)
    return a.astype(np.float32), (rng.standard_normal((n, rank)) * 0.1).astype(np.float32)


def write_peft(folder: Path, modules: Mapping[str, Factors], **config: Any) -> Path:
    """A PEFT folder with factors of modules, by their names in a checkpoint."""
    folder.mkdir(exist_ok=True)
    tensors = {
        f"{PREFIX}{module}.lora_{kind}.weight": torch.from_numpy(np.ascontiguousarray(values))
        for module, pair in modules.items()
        for kind, values in zip("AB", pair, strict=True)
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    usual = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(usual | config))
    return folder


def modules_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Rows and columns of a checkpoint's linear layers, by name."""
    tensors = load_file(folder / "model.safetensors")
    return {
        name.removesuffix(".weight"): (x.shape[0], x.shape[1])
        for name, x in tensors.items()
        if x.ndim == 2 and name.endswith(".weight") and not any(word in name for word in NO_MODULES)
    }


def merged_folder(
    folder: Path, to: Path, modules: Mapping[str, Factors], scale: float = ALPHA / RANK, columns: Collection[str] = ()
) -> Path:
    """A copy of a checkpoint with W + scale * B A in place of each W; outputs are columns of those in `columns`."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    for module, (a, b) in modules.items():
        delta = torch.from_numpy((scale * (b.astype(np.float64) @ a)).astype(np.float32))
        tensors[f"{module}.weight"] += delta.T if module in columns else delta
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def write_lora_gguf(
    path: Path, pairs: Mapping[str, Factors], architecture: str = "llama", alpha: float | None = ALPHA,
    stored: Callable[[F32, str], Any] = lambda values, name: values, **keys: Any,
) -> Path:
    """A GGUF file with factors of weights, by GGUF's names; of a token embedding a is [V, r], and b [K, r]."""
    tensors = {
        name: stored(np.ascontiguousarray(values), name)
        for weight, pair in pairs.items()
        for name, values in zip((f"{weight}.lora_a", f"{weight}.lora_b"), pair, strict=True)
    }
    usual: dict[str, Any] = {"general.type": "adapter", "adapter.type": "lora"}
    more = {} if alpha is None else {"adapter.lora.alpha": float(alpha)}
    write_gguf(
        path, architecture, usual | more | {key.replace("__", "."): value for key, value in keys.items()}, tensors
    )
    return path


def merged_gguf(file: GGUFFile, to: Path, deltas: Mapping[str, F32]) -> Path:
    """A copy of a model in F32 with something added to some of its weights."""
    tensors = {name: dequantize(file.tensor(name)) + deltas.get(name, np.float32(0)) for name in file.tensors}
    metadata = {key: file.metadata.typed(key) for key in file.metadata if key != "general.architecture"}
    write_gguf(to, file.metadata.get_str("general.architecture"), metadata, tensors)
    return to
