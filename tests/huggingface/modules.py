"""Checkpoint folders with quantized modules, put together here from codes and scales, with the safetensors package."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from tests.convert.folders import byte_level, write
from tests.models.checkpoints import CASES, Case, make

LINEAR = re.compile(
    r"(?:model|backbone)\.layers\.\d+\.(?:(?:self_attn|mlp|mamba|mixer|feed_forward)\.\w+_proj"
    r"|linear_attn\.(?:in_proj_(?:qkvz?|z)|out_proj)"
    r"|shared_mlp\.\w+_linear)\.weight"
)
WEIGHTS = {
    "num_bits": 8, "type": "int", "strategy": "channel", "group_size": None, "symmetric": True, "dynamic": False,
    "actorder": None,
}
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}


def quantization(layout: str = "int-quantized", **weights: Any) -> dict[str, Any]:
    """A `quantization_config` as llm-compressor writes it."""
    arguments = {**WEIGHTS, **weights}
    group = {
        "targets": ["Linear"], "weights": arguments, "input_activations": {**TOKENS, "type": arguments["type"]},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed",
    }


def rounded(w: np.ndarray, top: int, group: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Codes int8 [N, K] from -top - 1 on, and float32 scales [N, groups]: the range has one code more below zero."""
    groups = w.reshape(len(w), -1, group or w.shape[1])
    scale = np.abs(groups).max(axis=2, keepdims=True) / (top + 0.5)
    codes = np.clip(np.round(groups / scale), -top - 1, top)
    return codes.reshape(w.shape).astype(np.int8), scale[..., 0].astype(np.float32)


def words(codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits as int32 words, value by value: code + 8 at bits 4 i of word j, for value 8 j + i."""
    out = np.zeros((len(codes), codes.shape[1] // 8), np.int64)
    for i in range(8):
        out += (codes[:, i::8].astype(np.int64) + 8) << (4 * i)
    return np.where(out >= 1 << 31, out - (1 << 32), out).astype(np.int32)


def save(
    folder: Path, config: dict[str, Any], tensors: Any, case: Case | str = "llama", key: str = "quantization_config"
) -> Any:
    """Save a random model whose linear layers are what `tensors(w)` gives by end of name, and the values that these
    have, which the model returned computes with."""
    model = make(CASES[case] if isinstance(case, str) else case)
    out: dict[str, Any] = {}
    for name, parameter in copy.deepcopy(model).state_dict().items():
        w = parameter.numpy()
        if LINEAR.fullmatch(name):
            parts, values = tensors(w)
            out |= {name.removesuffix("weight") + end: part for end, part in parts.items()}
            model.state_dict()[name].copy_(torch.from_numpy(np.ascontiguousarray(values, np.float32)))
        elif not (name == "lm_head.weight" and model.config.tie_word_embeddings):
            out[name] = w
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, folder / "model.safetensors")
    names = (
        {"architectures": [type(model).__name__], key: config} if config else {"architectures": [type(model).__name__]}
    )
    write(folder, "config.json", {**model.config.to_dict(), **names})
    byte_level().save(str(folder / "tokenizer.json"))
    return model


def edit_config(folder: Path, *path: str, value: Any) -> None:
    """Put a value at a path of keys under `quantization_config`; ... takes it away."""
    found = json.loads((folder / "config.json").read_text())
    part = found["quantization_config"]
    for key in path[:-1]:
        part = part[key]
    if value is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    write(folder, "config.json", found)


def edit_tensors(folder: Path, module: str = "mlp.down_proj", **changed: Any) -> None:
    """Change tensors of a module of the first layer by end of name; None takes one away."""
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    for end, value in changed.items():
        name = f"model.layers.0.{module}.{end}"
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    safetensors.numpy.save_file(tensors, path)
