"""GGUF's names of tensors as Hugging Face's, and the order of rows that goes with them."""

from __future__ import annotations

import re

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.huggingface.tensors import BLOCK, OUTER
from octavo.models.hparams import Hyperparams

LINEAR = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""Linear layers of a block, those that schemes quantize."""

_OUTER = {gguf: name for name, gguf in OUTER.items()}
_BLOCK = {gguf: name for name, gguf in BLOCK.items()}
_IN_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def checkpoint_name(name: str) -> str | None:
    """The name that a dense model's tensor has in a checkpoint; None for one that has none."""
    found = _IN_BLOCK.fullmatch(name)
    if found is None:
        return _OUTER.get(name)
    return f"model.layers.{found[1]}.{_BLOCK[found[2]]}.{found[3]}" if found[2] in _BLOCK else None


def is_linear(name: str) -> bool:
    """Whether a tensor is the weight of one of a block's linear layers."""
    found = _IN_BLOCK.fullmatch(name)
    return found is not None and found[2] in LINEAR and found[3] == "weight"


def rows_apart(name: str, hp: Hyperparams, rows: AnyArray) -> AnyArray:
    """Rows of q or k, or values of their biases, from rope on neighbours back to rope on halves of a head.

    Of other tensors, and of models whose rope is on halves in GGUF too, the rows as they are.
    """
    found = _IN_BLOCK.fullmatch(name)
    heads = {"attn_q": hp.n_head, "attn_k": hp.n_head_kv}.get(found[2]) if found else None
    if not heads or not hp.rope.interleaved:
        return rows
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
