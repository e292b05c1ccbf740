"""Tiny models with a layer that guesses tokens, in their file or in one of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from octavo.io.gguf import write_gguf
from tests.runtime import tiny

LAYERS = 2


def block(seed: int = 7, *, exact: bool = False) -> dict[str, np.ndarray]:
    """The tensors of the layer behind the two of a tiny model: random ones, or of the ALPHABET model one that is always
    right."""
    rng, width = np.random.default_rng(seed), tiny.N_EMBD
    found = {
        name.replace("blk.0.", f"blk.{LAYERS}."): value
        for name, value in tiny.tensors(n_layer=1, seed=seed).items() if name.startswith("blk.0.")
    }
    first = f"blk.{LAYERS}.nextn."
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        weight = 1 + 0.2 * rng.standard_normal(width)
        found[f"{first}{norm}.weight"] = np.ones(width, np.float32) if exact else weight.astype(np.float32)
    joined = rng.standard_normal((width, 2 * width)) * (2 * width) ** -0.5
    found[f"{first}eh_proj.weight"] = joined.astype(np.float32)
    if exact:
        found[f"{first}eh_proj.weight"] = np.eye(width, 2 * width, dtype=np.float32)
        for name in ("attn_output", "ffn_down"):
            found[f"blk.{LAYERS}.{name}.weight"][:] = 0
    return found


def blocks(count: int, *, exact: bool = False) -> dict[str, np.ndarray]:
    """The tensors of several such layers, one behind the other."""
    return {
        name.replace(f"blk.{LAYERS}.", f"blk.{LAYERS + i}."): value
        for i in range(count) for name, value in block(7 + i, exact=exact).items()
    }


def several(count: int) -> dict[str, int]:
    """What metadata say of them."""
    return {"qwen3.block_count": LAYERS + count, "qwen3.nextn_predict_layers": count}


def keys(**more: Any) -> dict[str, Any]:
    return tiny.metadata() | {"qwen3.block_count": LAYERS + 1, "qwen3.nextn_predict_layers": 1} | more


def write_with_head(path: Path, weights: dict[str, np.ndarray], head: dict[str, np.ndarray], **more: Any) -> str:
    """A model and its head in one file."""
    write_gguf(path, "qwen3", keys(**more), weights | head)
    return str(path)


def write_head(path: Path, head: dict[str, np.ndarray], **more: Any) -> str:
    """A head in a file of its own, without a vocabulary unless `more` has one."""
    own = {key: value for key, value in keys(**more).items() if key in more or not key.startswith("tokenizer.")}
    write_gguf(path, "qwen3", own, head)
    return str(path)
