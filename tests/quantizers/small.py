"""A small model file to quantize: rows of whole blocks of 256, random weights, nothing to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octavo.io.gguf import write_gguf

LAYERS, WIDTH, FF, EXPERTS = 4, 256, 512, 4
KEYS: dict[str, Any] = {
    "general.name": "small",
    "general.file_type": 1,
    "llama.block_count": LAYERS,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.expert_count": EXPERTS,
    "tokenizer.ggml.tokens": ["a", "b\n", "ü"],
}


def weights(seed: int = 0, layers: int = LAYERS) -> dict[str, np.ndarray]:
    """Matrices as float16, vectors and routers as float32; one expert tensor a layer."""
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / 16).astype(np.float16)

    out = {"token_embd.weight": matrix(16, WIDTH), "output_norm.weight": np.ones(WIDTH, np.float32)}
    out["output.weight"] = matrix(16, WIDTH)
    for i in range(layers):
        block = {
            "attn_v.weight": matrix(64, WIDTH), "attn_v.bias": np.ones(64, np.float32),
            "ffn_gate_inp.weight": matrix(EXPERTS, WIDTH).astype(np.float32),
            "ffn_down_exps.weight": matrix(EXPERTS, 32, FF),
        }
        out |= {f"blk.{i}.{name}": value for name, value in block.items()}
    return out


def write(path: Path, changed: Mapping[str, np.ndarray] | None = None, *, layers: int = LAYERS) -> Path:
    write_gguf(path, "llama", KEYS | {"llama.block_count": layers}, {**weights(layers=layers), **(changed or {})})
    return path
